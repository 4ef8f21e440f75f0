"""Memory that a load fills: arrays as any, touched ahead by a thread that changes no byte."""

from __future__ import annotations

import gc
import re
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from ckpt.aio.first_touch import (
    FRESH_BYTES_MIN,
    TOUCHED_BYTES_MIN,
    AnyArray,
    FirstTouch,
    TouchedMemory,
)
from ckpt.aio.sealed_memory import HUGE_PAGE_BYTES
from ckpt.base.limits import PAGE_BYTES
from ckpt.base.units import KiB, MiB
from tests.waiting import wait_until

THREAD = "ckpt-first-touch"


def resident_bytes(array: AnyArray) -> int:
    """Of the pages in which it lies, those that are there: bit 63 of each one's pagemap entry."""
    first = array.ctypes.data // PAGE_BYTES
    behind = -(-(array.ctypes.data + array.nbytes) // PAGE_BYTES)
    with Path("/proc/self/pagemap").open("rb", buffering=0) as file:
        file.seek(first * 8)
        entries = np.frombuffer(file.read((behind - first) * 8), np.uint64)
    return int((entries >> np.uint64(63)).sum()) * PAGE_BYTES


def touching() -> bool:
    return any(thread.name == THREAD for thread in threading.enumerate())


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.complex128])
@pytest.mark.parametrize("shape", [(), (0, 3), (5, 7), (3, 1 << 21), (FRESH_BYTES_MIN + 1,)])
def test_an_array_has_its_shape_and_is_ones_own(
    shape: tuple[int, ...], dtype: type[np.generic]
) -> None:
    array = FirstTouch().array(shape, np.dtype(dtype))
    assert array.shape == shape
    assert array.dtype == dtype
    assert array.flags.c_contiguous
    assert array.flags.writeable
    array[...] = 3
    assert (array == 3).all()


def test_what_was_made_is_touched_while_entered() -> None:
    memory = FirstTouch()
    arrays = [memory.array((size,), np.dtype(np.uint8)) for size in (8 * MiB, 5 * MiB + 12345)]
    assert [resident_bytes(array) for array in arrays] == [0, 0]
    with memory:
        for array in arrays:
            wait_until(partial(_is_touched, array), "touched")
    assert not touching()


def test_what_is_filled_meanwhile_stays() -> None:
    memory = FirstTouch()
    array = memory.array((64 * MiB,), np.dtype(np.uint8))
    with memory:
        for start in reversed(range(0, array.nbytes, MiB)):
            array[start : start + MiB] = start // MiB + 1
        wait_until(partial(_is_touched, array), "touched")
    assert (array.reshape(64, MiB) == np.arange(1, 65, dtype=np.uint8)[:, None]).all()


def test_a_load_that_fails_ends_the_touching() -> None:
    memory = FirstTouch()
    array = memory.array((2048 * MiB,), np.dtype(np.uint8))
    with pytest.raises(ZeroDivisionError), memory:
        raise ZeroDivisionError
    assert not touching()
    assert resident_bytes(array) < array.nbytes


def test_it_serves_the_next_load_too() -> None:
    memory = FirstTouch()
    for _ in range(2):
        array = memory.array((6 * MiB,), np.dtype(np.uint8))
        with memory:
            wait_until(partial(_is_touched, array), "touched")


def test_small_arrays_start_no_thread() -> None:
    memory = FirstTouch()
    memory.array((FRESH_BYTES_MIN - 1,), np.dtype(np.uint8))
    with memory:
        assert not touching()


def test_memory_goes_with_its_array() -> None:
    memory = FirstTouch()
    array = memory.array((300 * MiB,), np.dtype(np.uint8))
    assert array.ctypes.data % HUGE_PAGE_BYTES == 0
    before = _mapped_bytes()
    with memory:
        array[0] = 1
    del array
    gc.collect()
    assert _mapped_bytes() <= before - 300 * MiB


def _is_touched(array: AnyArray) -> bool:
    return resident_bytes(array) >= array.nbytes


def _mapped_bytes() -> int:
    found = re.search(r"^VmSize:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * KiB


def test_an_interrupt_of_its_start_ends_the_touching(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who interrupts a load of gigabytes does not want them touched."""
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    memory = FirstTouch()
    memory.array((256 * MiB,), np.dtype(np.uint8))
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        memory.__enter__()
    assert not touching()


@pytest.mark.parametrize("size", [TOUCHED_BYTES_MIN, 1 * MiB + 12345, FRESH_BYTES_MIN - 1])
def test_arrays_of_the_allocator_are_touched_as_well_but_for_small_ones(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Their first and last page may hold something else, and never a huge page is asked for."""
    touched: list[tuple[int, int]] = []

    def noted(view: memoryview) -> None:
        touched.append((np.frombuffer(view, np.uint8).ctypes.data, len(view)))

    monkeypatch.setattr("ckpt.aio.first_touch.populate", noted)
    monkeypatch.setattr("ckpt.aio.first_touch._touch_huge", noted_as_wrong)
    memory, count = FirstTouch(), FRESH_BYTES_MIN // (size - 2 * PAGE_BYTES) + 1
    arrays = [memory.array((size,), np.dtype(np.uint8)) for _ in range(count)]
    memory.array((TOUCHED_BYTES_MIN - 1,), np.dtype(np.uint8))
    places = [(array.ctypes.data, array.ctypes.data + size) for array in arrays]
    with memory:
        wait_until(lambda: not touching(), "touched")
    assert count * (size - 2 * PAGE_BYTES) < sum(length for _, length in touched) <= count * size
    for at, length in touched:
        assert at % PAGE_BYTES == length % PAGE_BYTES == 0
        assert any(start <= at and at + length <= end for start, end in places)


def noted_as_wrong(view: memoryview) -> int:
    raise AssertionError(f"{len(view)} bytes as a huge page")


def test_what_lies_in_an_allocators_array_stays() -> None:
    memory = FirstTouch()
    arrays = [memory.array((1 * MiB,), np.dtype(np.uint8)) for _ in range(8)]
    for array in arrays:
        array[:] = 7
    with memory:
        wait_until(lambda: not touching(), "touched")
    assert all((array == 7).all() for array in arrays)


@pytest.mark.parametrize("size", [FRESH_BYTES_MIN, 2 * FRESH_BYTES_MIN, 5 * MiB + 12345])
def test_memory_that_is_made_touched_is_there(size: int) -> None:
    made = TouchedMemory()
    arrays = [np.frombuffer(made.make(size), np.uint8) for _ in range(3)]
    for array in arrays:
        assert array.nbytes == size
        assert array.flags.writeable
        assert resident_bytes(array) >= size
        assert not array.any()
