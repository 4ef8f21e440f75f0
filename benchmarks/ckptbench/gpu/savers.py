"""The kinds of saves that `ckptbench gpu` compares, each called the same way."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import cast

import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncSaveResponse, async_save

import ckpt
import ckpt_torch

State = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class SaveBegun:
    """A save whose call has returned."""

    call_s: float
    wait_staged: Callable[[], object]
    """Until the state may be changed by anything."""
    wait_saved: Callable[[], object]
    """Until it is over. Raises what ended it."""


class Saver:
    """I save a state on one device, by ckpt and by DCP."""

    def __init__(self, store: ckpt.Store, directory: Path, device: str) -> None:
        self._store = store
        self._steps = count()
        self._dcp = _Dcp(directory, on_device=device != "cpu")

    def begin(self, state: State, mode: str) -> SaveBegun:
        """mode: one of MODES."""
        begun = time.perf_counter()
        if mode == "dcp":
            wait_staged, wait_saved = self._dcp.save(state)
        else:
            future = ckpt_torch.async_save(
                state, checkpoint_id=f"gpu/{next(self._steps)}", store=self._store, staging=mode,
                no_dist=True,
            )  # fmt: skip
            wait_staged, wait_saved = future.staged.wait, future.result
        return SaveBegun(time.perf_counter() - begun, wait_staged, wait_saved)

    def load(self, state: dict[str, object], order: list[str]) -> tuple[float, float]:
        """Fill it with the last save: seconds until the first prefix was there, and until all."""
        begun = time.perf_counter()
        loading = ckpt_torch.async_load(
            state, order=order, checkpoint_id="gpu", store=self._store, no_dist=True
        )
        loading.prefixes[order[0]].result()
        first_s = time.perf_counter() - begun
        loading.result()
        return first_s, time.perf_counter() - begun

    def close(self) -> None:
        """Let DCP's memory and thread go."""
        self._dcp.close()


class _Dcp:
    """torch's asynchronous save, staged as its documentation advises; its files are not synced."""

    def __init__(self, directory: Path, *, on_device: bool) -> None:
        self._writer = FileSystemWriter(directory / "dcp", sync_files=False)
        self._stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=on_device,
                use_shared_memory=on_device,
                use_async_staging=on_device,
                use_non_blocking_copy=on_device,
            )
        )

        # torch 2.11 drops what it has staged into after each save, and then fails at the next.
        self._stager._state_dict_stager.close = _at_once

    def save(self, state: State) -> tuple[Callable[[], object], Callable[[], object]]:
        """What waits for the staging, and for the whole save."""
        found = async_save(
            dict(state), storage_writer=self._writer, async_stager=self._stager, no_dist=True
        )
        if isinstance(found, AsyncSaveResponse):
            return found.staging_completion.result, found.upload_completion.result
        return _at_once, found.result

    def close(self) -> None:
        self._stager.close()


def _at_once() -> None:
    """A state that was copied within the call."""


def plain_copy_s(states: list[torch.Tensor], loops: int) -> float:
    """The fastest of some copies of the tensors' bytes, one tensor on their device, into torch's
    own locked memory; of the host's memory, into memory that was touched.
    """
    size = sum(tensor.nbytes for tensor in states)
    source = torch.zeros(size, dtype=torch.uint8, device=states[0].device)
    target = torch.zeros(size, dtype=torch.uint8, pin_memory=not source.is_cpu)
    return min(_seconds(lambda: target.copy_(source, non_blocking=True)) for _ in range(loops))


def _seconds(work: Callable[[], object]) -> float:
    synchronize()
    begun = time.perf_counter()
    work()
    synchronize()
    return time.perf_counter() - begun


def synchronize() -> None:
    """Until the device, if there is one, has done what was queued."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def state_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, object]:
    """As a save takes it: `prefix/name` lies below the prefix."""
    found: dict[str, object] = {}
    for path, tensor in tensors.items():
        prefix, _, name = path.partition("/")
        cast(dict[str, torch.Tensor], found.setdefault(prefix, {}))[name] = tensor
    return found
