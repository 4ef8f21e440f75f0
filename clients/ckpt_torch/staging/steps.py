"""Which optimizers step while a save is copied?

torch counts versions of tensors, but not for all that an optimizer changes: a fused step counts
nothing, and what a foreach step changes of a DTensor is not counted for either. So each step of an
optimizer that nobody guards is noticed as it begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Protocol
from weakref import WeakSet

import torch
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_pre_hook


class StepWatcher(Protocol):
    """Hears of optimizer steps for as long as anybody else keeps it."""

    def note_step(self, addresses: set[int]) -> None:
        """Memory at these addresses, of whole storages, is about to change."""


_watching: Final[WeakSet[StepWatcher]] = WeakSet()
#: These wait by themselves for what is copied.
_guarded: Final[WeakSet[torch.optim.Optimizer]] = WeakSet()
#: Guards of all optimizers; their number counts.
_guards_of_all: Final[list[object]] = []
#: torch's hook, once anybody watches.
_hooks: Final[list[object]] = []


def watch_steps(watcher: StepWatcher) -> None:
    """Tell it of every step of an optimizer that is not guarded."""
    if not _hooks:
        _hooks.append(register_optimizer_step_pre_hook(_note_step))
    _watching.add(watcher)


def begin_guard(guard: object, optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Let the steps of these optimizers wait from now on; without any, those of all optimizers."""
    found = list(optimizers)
    _guarded.update(found)
    if not found:
        _guards_of_all.append(guard)


def end_guard(guard: object, optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Their steps no longer wait."""
    _guarded.difference_update(optimizers)
    if guard in _guards_of_all:
        _guards_of_all.remove(guard)


def _note_step(optimizer: torch.optim.Optimizer, *_: object) -> None:
    watchers = list(_watching)
    if not watchers or _guards_of_all or optimizer in _guarded:
        return
    addresses = {tensor.untyped_storage().data_ptr() for tensor in _tensors_of(optimizer)}
    for watcher in watchers:
        watcher.note_step(addresses)


def _tensors_of(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Parameters and moments; of DTensors what lies here."""
    states = (value for state in optimizer.state.values() for value in state.values())
    parameters = (one for group in optimizer.param_groups for one in group["params"])
    for one in (*parameters, *states):
        if isinstance(one, torch.Tensor):
            yield one._local_tensor if isinstance(one, DTensor) else one
