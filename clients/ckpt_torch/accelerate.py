"""Accelerate's `save_state` and `load_state` with the weights in a store: state hooks.

    hooks = CkptHooks("ckpt://10.0.0.1:7070/bert").attach(accelerator)
    accelerator.save_state("out/step_100")     # weights: bert/100; the rest: out/step_100
    accelerator.load_state("out/step_100")
    hooks.wait()

Hooks are given models and weights, and nothing else: optimizers, schedulers and random states go to
the folder as ever. Where everything shall go to the store, use `ckpt_torch.async_save`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Final, Self
from weakref import WeakMethod

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from ckpt.base.errors import Refused
from ckpt.base.extras import needing
from ckpt_client.save.handle import Commit
from ckpt_client.store import Store
from ckpt_torch.buffers import weights_of_rank
from ckpt_torch.place import find_who
from ckpt_torch.preparing import prepare_ahead
from ckpt_torch.reading.loading import load
from ckpt_torch.saving import async_save, wait_for

with needing("ckpt_torch.accelerate"):
    from accelerate import Accelerator
    from accelerate.utils import DistributedType

_NUMBER: Final = re.compile(r"([0-9]+)$")
#: Accelerate writes these models' files before it calls hooks.
_OWN_FILES: Final = frozenset(
    {DistributedType.FSDP, DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM}
)


class CkptHooks:
    """I take the weights out of what Accelerate writes, and put them back when it loads.

    run: `ckpt://HOST:PORT/RUN`, `ckpt+local:///DIR/RUN`, or RUN in `store`, else in $CKPT_STORE's.
    check_finite: refuse weights that hold NaN or infinity, by path, before a file is written.

    The folder that Accelerate is given must end with the step's number, as `checkpoint_3` or
    `step_100`: others are Refused.

    Once attached, I make this process ready for saves after the first step of an optimizer.
    """

    def __init__(
        self, run: str, *, store: Store | str | None = None, check_finite: bool = False
    ) -> None:
        self._run = run.rstrip("/")
        self._store = store
        self._check_finite = check_finite
        #: Whose models are prepared for saves; None once that is done, or a save went out.
        self._unprepared: Accelerator | None = None
        #: Saves that were handed over and are not known to be committed, oldest first.
        self._pending: list[Future[Commit]] = []

    def attach(self, accelerator: Accelerator) -> Self:
        """Register with the Accelerator. Raises Refused where Accelerate lets nobody else save the
        weights.
        """
        if accelerator.distributed_type in _OWN_FILES:
            raise Refused(
                f"Accelerate writes {accelerator.distributed_type.value} models itself",
                hint="save the state dicts with ckpt_torch.async_save",
            )
        accelerator.register_save_state_pre_hook(self._save)
        accelerator.register_load_state_pre_hook(self._load)
        self._unprepared = accelerator
        _after_steps(WeakMethod(self._prepare))
        return self

    def wait(self) -> None:
        """Wait until all weights are committed. Raises the first error that ended a save."""
        wait_for(self._pending)

    def _save(
        self,
        models: list[torch.nn.Module],
        weights: list[dict[str, torch.Tensor]],
        output_dir: str,
    ) -> None:
        """Copy every model's weights; sending goes on beside the training."""
        self._unprepared = None
        self._pending.append(
            async_save(
                _named(models, weights),
                checkpoint_id=self._name(output_dir),
                store=self._store,
                check_finite=self._check_finite,
            )
        )
        weights.clear()

    def _prepare(self) -> None:
        """Make this process ready for saves of the models that the Accelerator has."""
        accelerator, self._unprepared = self._unprepared, None
        if accelerator is not None:
            models = accelerator._models
            weights = [accelerator.get_state_dict(model, unwrap=False) for model in models]
            prepare_ahead(_named(models, weights), checkpoint_id=self._run, store=self._store)

    def _load(self, models: list[torch.nn.Module], input_dir: str) -> None:
        """Fill every model in place, by all ranks, each byte read once."""
        self.wait()
        state: dict[str, object] = {f"model{n}": each.state_dict() for n, each in enumerate(models)}
        load(state, checkpoint_id=self._name(input_dir), store=self._store)
        for n, each in enumerate(models):
            weights = state[f"model{n}"]
            assert isinstance(weights, dict)
            each.load_state_dict(weights)
        models.clear()

    def _name(self, folder: str) -> str:
        found = _NUMBER.search(Path(folder).name)
        if found is None:
            raise Refused(f"{folder} names no step", hint="let the folder's name end with a number")
        return f"{self._run}/{int(found[1])}"


def _named(
    models: list[torch.nn.Module], weights: list[dict[str, torch.Tensor]]
) -> dict[str, object]:
    """What this rank saves."""
    rank = find_who(None, no_dist=False).rank
    return {
        f"model{n}": weights_of_rank(model, each, rank)
        for n, (model, each) in enumerate(zip(models, weights, strict=True))
    }


def _after_steps(prepare: WeakMethod[Callable[[], None]]) -> None:
    """Call it after every step of an optimizer, for as long as its object lives."""

    @torch._disable_dynamo
    def stepped(*_: object) -> None:
        found = prepare()
        if found is not None:
            found()

    # It stays: none may be removed while torch goes through its hooks.
    register_optimizer_step_post_hook(stepped)
