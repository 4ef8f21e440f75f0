"""Which optimizers step while a save is copied?

torch counts versions of tensors, but not for all that an optimizer changes: a fused step counts
nothing, and what a foreach step changes of a DTensor is not counted for either. So each step of an
optimizer that nobody guards is noticed as it begins.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Final, Protocol
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from ckpt_torch.dtensors import is_dtensor


class StepWatcher(Protocol):
    """Hears of optimizer steps for as long as anybody else keeps it."""

    def note_step(self, addresses: set[int]) -> None:
        """Memory at these addresses, of whole storages, is about to change."""


_watching: Final[WeakSet[StepWatcher]] = WeakSet()
#: These wait by themselves for what is copied; and how many guards each of them has.
_guarded: Final[WeakKeyDictionary[Optimizer, int]] = WeakKeyDictionary()
#: Guards of all optimizers; their number counts.
_guards_of_all: Final[list[object]] = []
#: torch's hook, once anybody watches.
_hooks: Final[list[object]] = []


def watch_steps(watcher: StepWatcher) -> None:
    """Tell it of every step of an optimizer that is not guarded."""
    if not _hooks:
        _hooks.append(register_optimizer_step_pre_hook(_note_step))
    _watching.add(watcher)


def begin_guard(guard: object, optimizers: Iterable[Optimizer]) -> None:
    """Let the steps of these optimizers wait from now on; without any, those of all optimizers."""
    found = list(optimizers)
    for one in found:
        _guarded[one] = _guarded.get(one, 0) + 1
    if not found:
        _guards_of_all.append(guard)


def end_guard(guard: object, optimizers: Iterable[Optimizer]) -> None:
    """Their steps no longer wait."""
    for one in optimizers:
        left = _guarded.pop(one, 0) - 1
        if left > 0:
            _guarded[one] = left
    if guard in _guards_of_all:
        _guards_of_all.remove(guard)


def is_stepping() -> bool:
    """Whether the calling thread is within an optimizer's step that may change the state later: in
    a closure, such as all of a Lightning batch, or in a hook before the step.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        # What the step has returned stands there while hooks after it run.
        if frame.f_code is _STEP and "out" not in frame.f_locals:
            return True
        frame = frame.f_back
    return False


def _nothing() -> None:
    """For `_STEP`."""


_STEP: Final = Optimizer.profile_hook_step(_nothing).__code__
"""Of what torch puts around the step of each class of optimizers."""


def unwrapped(optimizer: Optimizer) -> Optimizer:
    """The one that steps, of what Accelerate, Lightning and Fabric put around it: something that
    takes itself for an optimizer, and has no hooks of its own.
    """
    while "_optimizer_step_pre_hooks" not in vars(optimizer):
        inner = getattr(optimizer, "optimizer", None)
        if not isinstance(inner, Optimizer):
            break
        optimizer = inner
    return optimizer


# Of a step that torch compiles it is called as it is.
@torch._disable_dynamo
def _note_step(optimizer: Optimizer, *_: object) -> None:
    watchers = list(_watching)
    if not watchers or _guards_of_all or optimizer in _guarded:
        return
    addresses = {tensor.untyped_storage().data_ptr() for tensor in _tensors_of(optimizer)}
    for watcher in watchers:
        watcher.note_step(addresses)


def _tensors_of(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    """Parameters and moments; of DTensors what lies here."""
    states = (value for state in optimizer.state.values() for value in state.values())
    parameters = (one for group in optimizer.param_groups for one in group["params"])
    for one in (*parameters, *states):
        if isinstance(one, torch.Tensor):
            yield one._local_tensor if is_dtensor(one) else one
