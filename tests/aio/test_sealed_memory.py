"""Memory that processes share: its size is sealed, its mappings are where huge pages can be."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ckpt.aio.lending import address_of
from ckpt.aio.sealed_memory import HUGE_PAGE_BYTES, mapped, sealed_memory
from ckpt.base.limits import PAGE_BYTES
from ckpt.base.units import KiB, MiB

NAME = "ckpt-test-sealed"
SIZES = (1, PAGE_BYTES, 3 * PAGE_BYTES + 7, HUGE_PAGE_BYTES, 5 * MiB + 12 * KiB)


@contextmanager
def sealed(size: int, *, present: bool = True) -> Iterator[tuple[int, memoryview]]:
    descriptor, view = sealed_memory(NAME, size, present=present)
    try:
        yield descriptor, view
    finally:
        os.close(descriptor)


def mappings() -> int:
    return Path("/proc/self/maps").read_text().count(NAME)


def in_huge_pages(view: memoryview) -> int:
    """Bytes of the mapping that begins at the view's first byte."""
    smaps = Path("/proc/self/smaps").read_text()
    mapping = smaps[smaps.index(f"{address_of(view):x}-") :]
    found = re.search(r"^ShmemPmdMapped: +(\d+) kB$", mapping, re.MULTILINE)
    assert found is not None
    return int(found[1]) * KiB


@pytest.mark.parametrize("size", SIZES)
def test_two_mappings_show_the_same_bytes(size: int) -> None:
    with sealed(size) as (descriptor, view):
        assert len(view) == size
        assert not view.readonly
        view[-1] = 7
        for writable in (True, False):
            other = mapped(descriptor, size, writable=writable)
            assert len(other) == size
            assert other[-1] == 7
            assert other.readonly is not writable
            assert address_of(other) % HUGE_PAGE_BYTES == 0
        view[0] = 9
        assert other[0] == 9


@pytest.mark.parametrize("size", SIZES)
def test_present_memory_is_allocated(size: int) -> None:
    with sealed(size) as (descriptor, _):
        assert os.fstat(descriptor).st_blocks * 512 >= size
    with sealed(size, present=False) as (descriptor, _):
        assert os.fstat(descriptor).st_blocks == 0


def test_nobody_can_change_its_size() -> None:
    with sealed(2 * PAGE_BYTES) as (descriptor, _):
        for size in (PAGE_BYTES, 3 * PAGE_BYTES):
            with pytest.raises(PermissionError):
                os.ftruncate(descriptor, size)


def test_whole_huge_pages_are_huge_without_a_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckpt.aio.sealed_memory.DEAR_NS", 10**12)  # Whatever the host asks today.
    with sealed(5 * MiB + 12 * KiB) as (_, view):
        found = in_huge_pages(view)
        if not found:
            release = os.uname().release
            pytest.skip(f"SKIPPED LOUDLY: Linux {release} gives this process no huge pages now")
        assert found == 4 * MiB
        assert not any(view)  # And nothing else than zeros came along.


def test_after_a_huge_page_that_is_dear_all_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckpt.aio.sealed_memory.DEAR_NS", 0)
    with sealed(9 * MiB + 12 * KiB) as (descriptor, view):
        assert in_huge_pages(view) <= HUGE_PAGE_BYTES
        assert os.fstat(descriptor).st_blocks * 512 >= len(view)
        assert not any(view)


def test_a_mapping_goes_with_its_last_view() -> None:
    before = mappings()
    with sealed(3 * PAGE_BYTES) as (descriptor, view):
        part = mapped(descriptor, 3 * PAGE_BYTES)[PAGE_BYTES:]
        assert mappings() == before + 2
        del view
        part[0] = 1
    assert mappings() == before + 2 - 1
    del part
    assert mappings() == before


def test_who_may_only_read_cannot_write(tmp_path: Path) -> None:
    with sealed(PAGE_BYTES) as (descriptor, view):
        reader = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)
        view[3] = 5
        try:
            assert mapped(reader, PAGE_BYTES, writable=False)[3] == 5
            with pytest.raises(PermissionError):
                mapped(reader, PAGE_BYTES)
        finally:
            os.close(reader)


def test_memory_that_there_is_not_is_refused() -> None:
    """In a process of its own: what it may have is bounded."""
    script = f"""
import resource
from ckpt.aio.sealed_memory import sealed_memory
resource.setrlimit(resource.RLIMIT_AS, ({256 * MiB}, {256 * MiB}))
before = len(__import__("os").listdir("/proc/self/fd"))
try:
    sealed_memory("{NAME}", {512 * MiB}, present=True)
except OSError as error:
    assert len(__import__("os").listdir("/proc/self/fd")) == before
    print(error.strerror)
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.stdout == "Cannot allocate memory\n", found.stderr
