"""The accelerators that torch knows (CUDA, ROCm, XPU, or one that registers itself), for staging
and loading. Only the generic calls of `torch.accelerator` are used, but for locking pages.

Staging, for each save:

    device   | small ones ──gather──> buffer |  large tensors |       on a stream of copies' own,
                                        │            │                after the caller's
    arena    |  document  | small ones, side by side | large ones |   locked pages: no copy between
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import cast

import torch

from ckpt.base.errors import Aborted
from ckpt_client.accelerator import OutPlan, StreamPoint
from ckpt_torch.device.gathering import GATHER_BYTES, Gathered, runs_of
from ckpt_torch.device.page_locks import PageLocks, locked_memory


@cache
def accelerator_of(device: torch.device) -> TorchAccelerator:
    """The only one of this process for that device, which has an index."""
    return TorchAccelerator(device)


@contextmanager
def _device_errors(name: str) -> Iterator[None]:
    """What a device says, in our words."""
    try:
        yield
    except RuntimeError as error:
        raise Aborted(
            f"the device {name} failed: {error}",
            hint="the last committed step is whole; look at the device, and load that step",
        ) from error


@dataclass(frozen=True, slots=True)
class TorchStreamPoint:
    """A recorded event; see StreamPoint."""

    name: str
    event: torch.Event

    @property
    def passed(self) -> bool:
        with _device_errors(self.name):
            return bool(self.event.query())

    def wait(self) -> None:
        with _device_errors(self.name):
            self.event.synchronize()


@dataclass(slots=True)
class _Plan:
    """See OutPlan."""

    gathered: list[Gathered] = field(default_factory=list)
    single: list[tuple[int, torch.Tensor]] = field(default_factory=list)
    """(number of the source, target)."""


class TorchAccelerator:
    """See Accelerator. Thread safe: each store stages on a thread of its own."""

    def __init__(self, device: torch.device) -> None:
        self.name = str(device)
        self._device = device
        self._stream = torch.Stream(device=device)
        self._locks = PageLocks(device)
        #: Held while copies out are queued, which share what follows.
        self._queueing = threading.Lock()
        #: Small tensors meet here, chunk after chunk, in the order of the stream.
        self._buffer: torch.Tensor | None = None
        #: Two, of locked memory of torch's own, for where the arena's pages cannot be locked.
        self._slots: list[torch.Tensor] = []

    def now(self) -> TorchStreamPoint:
        with _device_errors(self.name):
            return self._record(torch.accelerator.current_stream(self._device))

    def lock_pages(self, memory: memoryview) -> bool:
        return self._locks.lock(memory)

    def unlock_pages(self, memory: memoryview) -> None:
        self._locks.unlock(memory)

    def plan_out(self, sources: Sequence[object], targets: Sequence[object]) -> OutPlan:
        plan = _Plan()
        here = cast(Sequence[torch.Tensor], targets)
        for run in runs_of(here):
            if len(run) == 1:
                plan.single.append((run[0], here[run[0]]))
            else:
                plan.gathered.append(Gathered.of(run, here, self._gather_buffer()))
        return plan

    def copy_out(self, plan: OutPlan, sources: Sequence[object], after: StreamPoint) -> StreamPoint:
        assert isinstance(plan, _Plan)
        assert isinstance(after, TorchStreamPoint)
        tensors = cast(Sequence[torch.Tensor], sources)
        with self._queueing, _device_errors(self.name), self._on_stream():
            self._stream.wait_event(after.event)
            for few in plan.gathered:
                for group in few.groups:
                    group.gather(sources)
                assert self._buffer is not None
                self._move_out(self._buffer[: few.target.numel()], few.target)
            for number, target in plan.single:
                self._move_out(tensors[number], target)
            return self._record(self._stream)

    def copy_in(self, sources: Sequence[object], targets: Sequence[object]) -> StreamPoint:
        asked = self.now()
        with _device_errors(self.name), self._on_stream():
            self._stream.wait_event(asked.event)
            for source, target in zip(sources, targets, strict=True):
                cast(torch.Tensor, target).copy_(cast(torch.Tensor, source), non_blocking=True)
            return self._record(self._stream)

    def flat_bytes(self, tensor: torch.Tensor, after: StreamPoint) -> torch.Tensor:
        """The tensor's bytes in C order, as copies that are queued later see them. Raises Aborted.

        A strided tensor is copied on its device first, after `after`.
        """
        assert isinstance(after, TorchStreamPoint)
        with _device_errors(self.name), self._on_stream():
            self._stream.wait_event(after.event)
            return _bytes_of(tensor)

    def follow(self, moment: StreamPoint) -> None:
        assert isinstance(moment, TorchStreamPoint)
        with _device_errors(self.name):
            torch.accelerator.current_stream(self._device).wait_event(moment.event)

    # ----------------------------------------------------------------------- inside

    def _record(self, stream: torch.Stream) -> TorchStreamPoint:
        event = torch.Event(device=self._device)
        event.record(stream)
        return TorchStreamPoint(self.name, event)

    @contextmanager
    def _on_stream(self) -> Iterator[None]:
        with torch.no_grad(), self._stream:
            yield

    def _gather_buffer(self) -> torch.Tensor:
        if self._buffer is None:
            with _device_errors(self.name), self._on_stream():
                self._buffer = torch.zeros(GATHER_BYTES, dtype=torch.uint8, device=self._device)
        return self._buffer

    def _move_out(self, source: torch.Tensor, target: torch.Tensor) -> None:
        if not self._locks.failed:
            target.copy_(source, non_blocking=True)
            return
        self._through_slots(_bytes_of(source), _bytes_of(target))

    def _through_slots(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """A chunk crosses while the one before it is copied on by the host."""
        waiting: tuple[torch.Tensor, torch.Tensor, TorchStreamPoint] | None = None
        for number, start in enumerate(range(0, source.numel(), GATHER_BYTES)):
            part = source[start : start + GATHER_BYTES]
            slot = self._slot(number % 2)[: part.numel()]
            slot.copy_(part, non_blocking=True)
            crossing = slot, target[start : start + GATHER_BYTES], self._record(self._stream)
            _take_over(waiting)
            waiting = crossing
        _take_over(waiting)

    def _slot(self, number: int) -> torch.Tensor:
        while len(self._slots) <= number:
            self._slots.append(locked_memory(self._device, GATHER_BYTES))
        return self._slots[number]


def _take_over(crossing: tuple[torch.Tensor, torch.Tensor, TorchStreamPoint] | None) -> None:
    if crossing is not None:
        slot, target, crossed = crossing
        crossed.wait()
        target.copy_(slot)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """In C order; a copy of a strided one."""
    return tensor.contiguous().view(-1).view(torch.uint8)
