"""The emulated device as tests see it: what they set, what they hold back, what they count.

    torch.device("emulated")    is there while the device is attached
    device.link(...)            bandwidth and latency of both directions
    device.held_link(...)       copies stop at a gate, after so many bytes
    device.held_stream(...)     kernels of a stream wait
    device.fail(...)            the next copy, wait, allocation or registration fails
    device.counters()           copies, bytes, registrations, kernels
    device.waits()              how often a thread was made to wait for the device

With gates a test says what happens first; it needs no clock. Where time is what a test is about,
events give the streams' own: what copies cost at the link's pace, whatever the host is doing.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Final

import torch

NAME: Final = "emulated"
HELD_S_MAX: Final = 60.0
"""A copy that a test waits for stands at the gate by then."""


class Direction(Enum):
    """Of a copy over the link."""

    TO_HOST = 0
    TO_DEVICE = 1


class Fault(Enum):
    """What fails next, once. Whatever fails on a stream, or for good, is raised by every later
    call, until the device is reset.
    """

    COPY = 0
    """A copy over the link, on its stream."""
    WAIT = 1
    """`Event.synchronize`, in its caller."""
    ALLOCATION = 2
    """`torch.empty` and the like: out of memory, in the caller."""
    REGISTRATION = 3
    """`host_register` returns False."""
    DEVICE = 4
    """The device is lost at once, and stays so."""


@dataclass(frozen=True, slots=True)
class Carried:
    """What went over the link in one direction."""

    copies: int
    registered_bytes: int
    """To or from host memory that was registered, or pinned by torch."""
    unregistered_bytes: int
    """Staged: each such copy made its caller wait."""
    busy_s: float
    """At the link's pace, without latencies."""


@dataclass(frozen=True, slots=True)
class Counters:
    """Since the device was attached; the first three as they are now."""

    registrations: int
    """Of `host_register`, alive."""
    pinned_bytes: int
    """That torch holds for `pin_memory`."""
    device_bytes: int
    """Allocated, rounded as the allocator does."""
    kernels: int
    to_host: Carried
    to_device: Carried


class _Counters(ctypes.Structure):
    """As streams.cpp has them."""

    _fields_ = (
        ("registrations", ctypes.c_int64),
        ("pinned_bytes", ctypes.c_int64),
        ("device_bytes", ctypes.c_int64),
        ("kernels", ctypes.c_int64),
        ("copies", ctypes.c_int64 * 2),
        ("registered_bytes", ctypes.c_int64 * 2),
        ("unregistered_bytes", ctypes.c_int64 * 2),
        ("busy_s", ctypes.c_double * 2),
    )


class Emulated:
    """The one device of this process. Its calls let other threads run while they wait."""

    def __init__(self, library: Path) -> None:
        self.library = library
        self._c = _declared(ctypes.CDLL(str(library)))
        self.is_attached = False

    @contextmanager
    def attached(self) -> Iterator[None]:
        """It is there, as new; afterwards torch is as on a machine without one. Tensors of the
        device must be gone by then.
        """
        self.reset()
        self._attach(True)
        try:
            yield
        finally:
            self.reset()
            self._attach(False)

    def _attach(self, is_attached: bool) -> None:
        self.is_attached = is_attached
        self._c.emulated_attach(is_attached)

    def reset(self) -> None:
        """A link as fast as memory, open gates, no faults, nothing counted; waits until all
        streams are through.
        """
        self._c.emulated_reset()

    def link(self, bytes_per_s: float = 0.0, latency_s: float = 0.0) -> None:
        """Pace of each direction, which all streams share, and what each copy waits before it
        begins. 0: as fast as memory.
        """
        self._c.emulated_set_link(bytes_per_s, latency_s)

    @contextmanager
    def held_link(
        self, direction: Direction = Direction.TO_HOST, after_bytes: int = 0
    ) -> Iterator[None]:
        """So many bytes pass, then copies stand at the gate."""
        self._c.emulated_hold_link(direction.value, after_bytes)
        try:
            yield
        finally:
            self._c.emulated_open_link(direction.value)

    def wait_held(self, direction: Direction = Direction.TO_HOST) -> None:
        """Until a copy stands at the gate. Raises TimeoutError when none comes."""
        if not self._c.emulated_wait_held(direction.value, HELD_S_MAX):
            raise TimeoutError("no copy came to the gate")

    @contextmanager
    def held_stream(self, stream: torch.Stream | None = None) -> Iterator[None]:
        """What is given to this stream, by default the current one, waits."""
        number = (stream or torch.accelerator.current_stream()).stream_id
        gate = self._c.emulated_hold_stream(number)
        try:
            yield
        finally:
            self._c.emulated_open_stream(gate)

    def fail(self, fault: Fault, count: int = 1) -> None:
        """The next `count` of its kind fail."""
        self._c.emulated_fail(fault.value, count)

    def counters(self) -> Counters:
        """What happened since the device was attached."""
        raw = _Counters()
        self._c.emulated_counters(ctypes.byref(raw))
        to_host, to_device = (
            Carried(
                raw.copies[way.value],
                raw.registered_bytes[way.value],
                raw.unregistered_bytes[way.value],
                raw.busy_s[way.value],
            )
            for way in Direction
        )
        return Counters(
            raw.registrations, raw.pinned_bytes, raw.device_bytes, raw.kernels, to_host, to_device
        )

    def waits(self, thread: int | None = None) -> int:
        """How often the thread, by default the caller's, was made to wait: by synchronizing the
        device, a stream or an event, and by copies that block.
        """
        count: int = self._c.emulated_waits(thread or threading.get_ident())
        return count

    def priority(self, stream: torch.Stream) -> int:
        """As it was asked for."""
        found: int = self._c.emulated_priority(stream.stream_id)
        return found

    def peek(self, pointer: int, size: int) -> bytes:
        """Bytes of the device as they are at this moment, past all streams."""
        target = ctypes.create_string_buffer(size)
        self._c.emulated_peek(pointer, target, size)
        return target.raw

    def host_register(self, pointer: int, size: int) -> bool:
        """Page-lock memory of the host; False when it cannot be, or a part is already."""
        return bool(self._c.emulated_host_register(pointer, size))

    def host_unregister(self, pointer: int) -> bool:
        """False when nothing is registered that begins here."""
        return bool(self._c.emulated_host_unregister(pointer))


class Stream(torch.Stream):
    """Of a device that knows priorities, as XPU's does; its link does not look at them."""

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """(least, greatest): a lower number goes first."""
        return 1, -1


class DeviceModule:
    """What torch and adapters find as `torch.emulated`."""

    Stream: Final = Stream
    Event: Final = torch.Event

    def __init__(self, device: Emulated) -> None:
        self._device = device
        self.host_register: Callable[[int, int], bool] = device.host_register
        self.host_unregister: Callable[[int], bool] = device.host_unregister

    def is_available(self) -> bool:
        return self._device.is_attached

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return int(self._device.is_attached)

    def current_device(self) -> int:
        return 0

    def set_device(self, device: object) -> None:
        """There is one."""

    def current_stream(self, device: object = None) -> torch.Stream:
        return torch.accelerator.current_stream()

    def synchronize(self, device: object = None) -> None:
        torch.accelerator.synchronize()

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """Its random numbers are the CPU's."""


@cache
def loaded(library: Path) -> Emulated:
    """The device, known to torch by its name for as long as this process lives."""
    torch.utils.rename_privateuse1_backend(NAME)
    torch.ops.load_library(str(library))
    device = Emulated(library)
    torch._register_device_module(NAME, DeviceModule(device))
    return device


def _declared(c: ctypes.CDLL) -> ctypes.CDLL:
    """Types that ctypes would take for int."""
    size, number, pointer = ctypes.c_size_t, ctypes.c_int64, ctypes.c_void_p
    c.emulated_set_link.argtypes = (ctypes.c_double, ctypes.c_double)
    c.emulated_hold_link.argtypes = (ctypes.c_int, number)
    c.emulated_wait_held.argtypes = (ctypes.c_int, ctypes.c_double)
    c.emulated_hold_stream.argtypes = (number,)
    c.emulated_hold_stream.restype = pointer
    c.emulated_open_stream.argtypes = (pointer,)
    c.emulated_priority.argtypes = (number,)
    c.emulated_fail.argtypes = (ctypes.c_int, number)
    c.emulated_waits.argtypes = (ctypes.c_uint64,)
    c.emulated_waits.restype = number
    c.emulated_peek.argtypes = (pointer, pointer, size)
    c.emulated_host_register.argtypes = (pointer, size)
    c.emulated_host_unregister.argtypes = (pointer,)
    return c
