"""What no peer may do with lent memory, and what it costs to try: its connection."""

from __future__ import annotations

import fcntl
import gc
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ckpt.aio.lending import (
    REGIONS_MAX,
)
from ckpt.aio.net.socketpath import socket_path
from ckpt.base.errors import PeerError
from ckpt.format.checksum import crc32
from ckpt.format.frame import FrameReader, FrameWriter, LentPlace
from ckpt.format.messages.lending import LendMemory, MemoryReturned, TakeBackMemory
from ckpt.format.messages.writing import Fragment
from tests.aio.lendkit import CELL, SIZE, Keeper, Memory, RawLender
from tests.aio.netkit import ServerThread, serving


def bulk_of(memory: Memory) -> tuple[Fragment, bytes]:
    cell = bytes(memory.cell(0))
    return Fragment(0, crc32(cell)), cell


def unsealed(peer: RawLender, memory: Memory) -> None:
    descriptor = os.memfd_create("loose")
    os.ftruncate(descriptor, SIZE)
    peer.lend(descriptor)
    os.close(descriptor)


def a_file(peer: RawLender, memory: Memory) -> None:
    with open("/proc/self/exe", "rb") as file:
        peer.lend(file.fileno(), 4096)


def a_pipe(peer: RawLender, memory: Memory) -> None:
    reader, writer = os.pipe()
    peer.lend(reader)
    os.close(reader)
    os.close(writer)


def of_huge_pages(peer: RawLender, memory: Memory) -> None:
    """Holes can be made in it, and their pages used up: who has it mapped dies of the next look."""
    try:
        descriptor = os.memfd_create("huge", os.MFD_ALLOW_SEALING | os.MFD_HUGETLB)
    except OSError as error:
        pytest.skip(f"this kernel has no such memory: {error.strerror}")
    os.ftruncate(descriptor, SIZE)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    peer.lend(descriptor)
    os.close(descriptor)


def too_short(peer: RawLender, memory: Memory) -> None:
    peer.lend(memory.descriptor, SIZE + 1)


def nothing_came_along(peer: RawLender, memory: Memory) -> None:
    peer.say(LendMemory(0, SIZE))


def twice(peer: RawLender, memory: Memory) -> None:
    peer.lend(memory.descriptor)
    peer.lend(memory.descriptor)


def too_many(peer: RawLender, memory: Memory) -> None:
    for region in range(REGIONS_MAX + 1):
        peer.lend(memory.descriptor, region=region)


def a_flood_of_descriptors(peer: RawLender, memory: Memory) -> None:
    peer.say(LendMemory(0, SIZE), give=[memory.descriptor] * (REGIONS_MAX + 2))


def a_region_that_is_not_lent(peer: RawLender, memory: Memory) -> None:
    message, bulk = bulk_of(memory)
    peer.lend(memory.descriptor)
    peer.say(message, bulk=bulk, place=LentPlace(1, 0))


def beyond_its_end(peer: RawLender, memory: Memory) -> None:
    message, bulk = bulk_of(memory)
    peer.lend(memory.descriptor)
    peer.say(message, bulk=bulk, place=LentPlace(0, SIZE - CELL + 1))


def far_beyond_its_end(peer: RawLender, memory: Memory) -> None:
    message, bulk = bulk_of(memory)
    peer.lend(memory.descriptor)
    peer.say(message, bulk=bulk, place=LentPlace(0, (1 << 64) - 1))


def taken_back_twice(peer: RawLender, memory: Memory) -> None:
    peer.lend(memory.descriptor)
    peer.say(TakeBackMemory(0))
    peer.say(TakeBackMemory(0))


def returned_and_never_lent(peer: RawLender, memory: Memory) -> None:
    peer.say(MemoryReturned((0,)))


@pytest.mark.parametrize(
    "attack",
    [
        unsealed, a_file, a_pipe, of_huge_pages, too_short, nothing_came_along, twice, too_many,
        a_flood_of_descriptors, a_region_that_is_not_lent, beyond_its_end, far_beyond_its_end,
        taken_back_twice, returned_and_never_lent,
    ],
)  # fmt: skip
def test_a_peer_that_lends_wrongly_is_cut_and_leaves_nothing(
    borrowing: ServerThread,
    keeper: Keeper,
    memory: Memory,
    attack: Callable[[RawLender, Memory], None],
) -> None:
    path = borrowing.server.unix
    assert path is not None
    gc.collect()
    before, mapped = len(os.listdir("/proc/self/fd")), memory.mapped_count()
    with RawLender(path) as peer:
        attack(peer, memory)
        assert peer.is_cut()
    assert borrowing.do(lambda: borrowing.server.statistics().malformed) == 1
    # An earlier test's may be closed meanwhile.
    assert len(os.listdir("/proc/self/fd")) <= before
    assert memory.mapped_count() == mapped
    with RawLender(path) as honest:
        message, bulk = bulk_of(memory)
        honest.lend(memory.descriptor)
        honest.say(message, bulk=bulk, place=LentPlace(0, 0))
        borrowing.wait_until(lambda: bool(keeper.frames))


def test_lending_to_who_did_not_offer_to_borrow_cuts(tmp_path: Path, memory: Memory) -> None:
    path = socket_path(tmp_path, "s")
    with serving(unix=path) as running:
        for attack in (a_region_that_is_not_lent, returned_and_never_lent, nothing_came_along):
            with RawLender(path) as peer:
                attack(peer, memory)
                assert peer.is_cut()
        assert running.do(lambda: running.server.statistics().malformed) == 3


def test_a_frame_cannot_lend_no_bytes() -> None:
    frame = bytearray(FrameWriter().encode(MemoryReturned(()), 0))
    frame[6] = 1
    with pytest.raises(PeerError, match="flags"):
        FrameReader(b"\1" * 32).prefix(bytes(frame))
