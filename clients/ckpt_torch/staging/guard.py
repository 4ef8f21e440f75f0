"""`guard`: an optimizer's step waits for the copy of the state that it changes.

ckpt_torch.guard()
...
ckpt_torch.async_save(state, checkpoint_id=f"run/{step}", staging="overlap")
"""

from __future__ import annotations

import logging
from typing import Final, Self

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from ckpt.base.errors import Refused
from ckpt_client.save.staged import stagings_under_way
from ckpt_torch.staging.steps import begin_guard, end_guard, unwrapped

SPOKEN_S: Final = 0.001
"""A shorter wait is not logged."""
_log = logging.getLogger("ckpt.save")


class StagingGuard:
    """I make what I guard wait, before it changes the state, for saves that still copy it
    (`staging="overlap"`), until `remove` or the end of a `with`.
    """

    def __init__(self, guarded: tuple[torch.optim.Optimizer | torch.nn.Module, ...]) -> None:
        self.waited_s = 0.0
        """How long the training has stood here, all together, in seconds."""
        self._handles: list[RemovableHandle] = []
        self._optimizers = [
            unwrapped(one) for one in guarded if isinstance(one, torch.optim.Optimizer)
        ]
        if not guarded:
            self._handles.append(register_optimizer_step_pre_hook(self._wait))
        if self._optimizers or not guarded:
            begin_guard(self, self._optimizers)
        for one in guarded:
            if isinstance(one, torch.optim.Optimizer):
                self._handles.append(unwrapped(one).register_step_pre_hook(self._wait))
            elif isinstance(one, torch.nn.Module):
                self._handles.append(one.register_forward_pre_hook(self._wait))
            else:
                self.remove()
                raise Refused(
                    f"a {type(one).__module__}.{type(one).__qualname__} cannot be guarded",
                    hint="give optimizers, and modules whose forward changes their buffers",
                )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Stop guarding. Idempotent."""
        while self._handles:
            self._handles.pop().remove()
        optimizers, self._optimizers = self._optimizers, []
        end_guard(self, optimizers)

    # A step that torch compiles calls it as it is: what it waits for is no part of a graph.
    @torch._disable_dynamo
    def _wait(self, *_: object) -> None:
        waited_s = sum(staged.follow() for staged in stagings_under_way())
        self.waited_s += waited_s
        if waited_s >= SPOKEN_S:
            _log.info("the training waited %.1f ms for a save to be copied", waited_s * 1000)


def guard(*guarded: torch.optim.Optimizer | torch.nn.Module) -> StagingGuard:
    """Make every step of these optimizers wait for the copies of saves that are under way.

    guarded: optimizers (none: all of this process), and modules whose forward changes their state,
        such as the running means of a BatchNorm.

    The step waits only for what is left. For what an accelerator copies, its own queue waits: the
    call returns, and the step's kernels run when the copy is through.

    Raises Refused for anything else.
    """
    return StagingGuard(guarded)
