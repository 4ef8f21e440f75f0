"""The accelerators that torch knows (CUDA, ROCm, XPU, or one that registers itself), for staging
and loading. Only the generic calls of `torch.accelerator` are used, but for locking pages.

Staging, for each save:

    device   | small ones ──gather──> buffer |  large tensors |       on streams of copies' own,
                                        │            │                after the caller's
    arena    |  document  | small ones, side by side | large ones |   locked pages: no copy between

    gathering   |fill 0|fill 1|      |fill 0|      |fill 1|           two buffers, in turns: one is
    copies             |copy 0       |copy 1       |copy 0            filled while the other crosses
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Final, cast

import torch

from ckpt.base.errors import Aborted
from ckpt_client.accelerator import OutPlan, StreamPoint
from ckpt_torch.device.gathering import GATHER_BYTES, Gathered, runs_of
from ckpt_torch.device.page_locks import PageLocks, locked_memory

BUFFERS: Final = 2
"""Of GATHER_BYTES each."""


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


@dataclass(slots=True)
class _Buffer:
    """Where small tensors meet on the device."""

    memory: torch.Tensor
    free: torch.Event
    """Passed when its bytes have left it."""


class TorchAccelerator:
    """See Accelerator. Thread safe: each store stages on a thread of its own."""

    def __init__(self, device: torch.device) -> None:
        self.name = str(device)
        self._device = device
        priority = _least_priority(device)
        self._stream = torch.Stream(device=device, priority=priority)
        self._gathering = torch.Stream(device=device, priority=priority)
        self._locks = PageLocks(device)
        #: Held while copies out are queued, which share what follows.
        self._queueing = threading.Lock()
        #: Two, once small tensors are planned; each run of a plan has its own of them.
        self._buffers: list[_Buffer] = []
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
                number = len(plan.gathered) % BUFFERS
                plan.gathered.append(Gathered.of(run, here, self._gather_buffer(number).memory))
        return plan

    def copy_out(self, plan: OutPlan, sources: Sequence[object], after: StreamPoint) -> StreamPoint:
        assert isinstance(plan, _Plan)
        assert isinstance(after, TorchStreamPoint)
        tensors = cast(Sequence[torch.Tensor], sources)
        with self._queueing, _device_errors(self.name), self._on_stream():
            self._stream.wait_event(after.event)
            # And after what `flat_bytes` was asked for.
            self._gathering.wait_event(self._record(self._stream).event)
            for number, target in plan.single:
                self._move_out(tensors[number], target)
            for number, few in enumerate(plan.gathered):
                self._gather_out(few, sources, self._buffers[number % BUFFERS])
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

    def joined(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """One after the other, on the caller's stream; None if there is no memory for it. Raises
        Aborted.
        """
        with _device_errors(self.name), torch.no_grad():
            try:
                return torch.cat(list(tensors))
            except torch.OutOfMemoryError:
                return None

    def bring(
        self, source: torch.Tensor, target: torch.Tensor, after: StreamPoint
    ) -> TorchStreamPoint:
        """Queue one copy into locked memory, after `after` and the copies out before. Raises
        Aborted.
        """
        assert isinstance(after, TorchStreamPoint)
        with _device_errors(self.name), self._on_stream():
            self._stream.wait_event(after.event)
            target.copy_(source, non_blocking=True)
            return self._record(self._stream)

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

    def _gather_out(self, few: Gathered, sources: Sequence[object], buffer: _Buffer) -> None:
        with self._gathering:
            self._await_free(buffer)
            for group in few.groups:
                group.gather(sources)
        self._stream.wait_event(self._record(self._gathering).event)
        self._move_out(buffer.memory[: few.target.numel()], few.target)
        buffer.free = self._record(self._stream).event

    def _await_free(self, buffer: _Buffer) -> None:
        self._gathering.wait_event(buffer.free)

    def _gather_buffer(self, number: int) -> _Buffer:
        # Whoever prepares a save plans beside whoever copies one.
        # The buffers stay when the caller has left inference mode.
        normal = torch.inference_mode(False)
        with self._queueing, _device_errors(self.name), normal, torch.no_grad(), self._gathering:
            while len(self._buffers) <= number:
                memory = torch.zeros(GATHER_BYTES, dtype=torch.uint8, device=self._device)
                self._buffers.append(_Buffer(memory, self._record(self._gathering).event))
            return self._buffers[number]

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


def _least_priority(device: torch.device) -> int:
    """So that the device does the training's work first, where it can choose. 0, which streams have
    by themselves, is the least of CUDA's; others have one below it, or none at all.
    """
    stream = getattr(torch.get_device_module(device), "Stream", torch.Stream)
    priority_range = getattr(stream, "priority_range", lambda: (0, 0))
    return int(priority_range()[0])


def _take_over(crossing: tuple[torch.Tensor, torch.Tensor, TorchStreamPoint] | None) -> None:
    if crossing is not None:
        slot, target, crossed = crossing
        crossed.wait()
        target.copy_(slot)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """In C order; a copy of a strided one."""
    return tensor.contiguous().view(-1).view(torch.uint8)
