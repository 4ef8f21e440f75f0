"""Slots: a free list of page-aligned memory; and where a socket lies when its path is too long."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckpt.aio.net.socketpath import socket_path
from ckpt.aio.slots import Slot, SlotPool
from ckpt.base.errors import Refused
from ckpt.base.limits import PAGE_BYTES
from ckpt.base.units import KiB, MiB


@pytest.fixture
def short_path() -> Iterator[Path]:
    """pytest's own directories can be too long for a socket."""
    with tempfile.TemporaryDirectory(prefix="ckpt-", dir="/tmp") as path:
        yield Path(path)


def address(slot: Slot) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(slot.view))


def whole_bytes(pool: SlotPool, slot: Slot) -> int:
    """What it takes of the pool: whole units."""
    return -(-len(slot.view) // pool.unit_bytes) * pool.unit_bytes


def test_a_slot_has_the_size_asked_for_and_lies_on_a_page() -> None:
    pool = SlotPool(8 * MiB)
    for size in (1, 4096, 100_000, 512 * KiB):
        slot = pool.take(size)
        assert slot is not None
        assert len(slot.view) == size
        assert pool.free_bytes == pool.total_bytes - whole_bytes(pool, slot)
        assert address(slot) % PAGE_BYTES == 0
        slot.release()
    assert pool.free_bytes == pool.total_bytes


def test_a_full_pool_gives_nothing_until_a_slot_comes_back() -> None:
    pool = SlotPool(8 * MiB)
    first, second = pool.take(5 * MiB), pool.take(3 * MiB)
    assert first is not None
    assert second is not None
    assert pool.take(1) is None
    told: list[int] = []
    listener = lambda: told.append(1)  # noqa: E731
    pool.listen(listener)
    second.release()
    pool.unlisten(listener)
    first.release()
    assert told == [1]
    assert pool.free_bytes == pool.total_bytes


def test_a_slot_is_released_once() -> None:
    slot = SlotPool(8 * MiB).take(1)
    assert slot is not None
    slot.release()
    with pytest.raises(AssertionError):
        slot.release()


@pytest.mark.parametrize("seed", range(20))
def test_slots_never_overlap_and_all_memory_comes_back(seed: int) -> None:
    rng = random.Random(seed)
    pool = SlotPool(8 * MiB)
    held: list[tuple[Slot, int]] = []
    for number in range(300):
        slot = pool.take(rng.choice((1, 4096, 70_000, 512 * KiB, 2 * MiB)))
        if slot is not None and rng.random() < 0.7:
            slot.view[:] = bytes([number % 251]) * len(slot.view)
            held.append((slot, number % 251))
        elif slot is not None:
            slot.release()
        while held and (slot is None or rng.random() < 0.3):
            old, mark = held.pop(rng.randrange(len(held)))
            assert bytes(old.view) == bytes([mark]) * len(old.view)
            old.release()
            slot = old
        taken = sum(whole_bytes(pool, each) for each, _ in held)
        assert pool.free_bytes == pool.total_bytes - taken
    for old, _ in held:
        old.release()
    whole = pool.take(pool.total_bytes)
    assert whole is not None


def resident_bytes(pool: SlotPool) -> int:
    """How much of it is backed by memory."""
    whole = pool.take(pool.total_bytes)
    assert whole is not None
    pages = ctypes.create_string_buffer(pool.total_bytes // mmap.PAGESIZE)
    failed = ctypes.CDLL(None).mincore(
        ctypes.c_void_p(address(whole)), ctypes.c_size_t(pool.total_bytes), pages
    )
    assert not failed
    whole.release()
    return sum(page & 1 for page in pages.raw[: len(pages)]) * mmap.PAGESIZE


def test_a_pool_has_all_its_memory_ahead_or_what_was_used_of_it() -> None:
    assert resident_bytes(SlotPool(64 * MiB, ahead=True)) == 64 * MiB
    pool = SlotPool(64 * MiB)
    for _ in range(32):
        slot = pool.take(2 * MiB)
        assert slot is not None
        slot.view[:] = bytes(2 * MiB)
        slot.release()
    assert 2 * MiB <= resident_bytes(pool) <= 4 * MiB


def test_slots_may_be_released_from_any_thread() -> None:
    pool = SlotPool(8 * MiB)

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(500):
            slot = pool.take(rng.randrange(1, MiB))
            if slot is not None:
                slot.release()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pool.free_bytes == pool.total_bytes


def test_a_short_socket_path_stays_where_it_is(tmp_path: Path) -> None:
    assert socket_path("/run/x", "s") == "/run/x/s"


@pytest.mark.parametrize("variable", ["XDG_RUNTIME_DIR", None])
def test_a_long_socket_path_moves_to_the_runtime_directory(
    short_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str | None
) -> None:
    runtime = short_path
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    if variable is None:
        monkeypatch.setattr("tempfile.tempdir", str(runtime))
    else:
        monkeypatch.setenv(variable, str(runtime))
    deep = Path("/") / ("d" * 200)
    paths = {socket_path(deep, "a"), socket_path(deep, "b"), socket_path(str(deep) + "/", "a")}
    assert len(paths) == 2
    for path in paths:
        assert len(path) <= 107
        assert Path(path).is_relative_to(runtime)
        assert os.stat(Path(path).parent).st_mode & 0o077 == 0


def test_who_cannot_write_into_the_runtime_directory_takes_the_temporary_one(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable may be another user's, after `su`, or name what is not there."""
    monkeypatch.setattr("tempfile.tempdir", str(short_path))
    for base in (short_path / "nowhere", __file__):
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
        path = Path(socket_path("/" + "d" * 200, "s"))
        assert path.parent == short_path / f"ckpt-{os.getuid()}"


def test_without_any_place_for_sockets_the_error_says_which_variable_to_set(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    (short_path / "file").touch()
    for place in ("/proc/1", str(short_path / "file")):
        monkeypatch.setattr("tempfile.tempdir", place)
        with pytest.raises(Refused, match=r"this user's sockets: .*set XDG_RUNTIME_DIR"):
            socket_path("/" + "d" * 200, "s")


def test_a_runtime_directory_that_others_can_enter_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "ckpt").mkdir(mode=0o755)
    with pytest.raises(Refused):
        socket_path("/" + "d" * 200, "s")
