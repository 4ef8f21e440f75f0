"""Bulks that stay where they lie: who borrows them, and how they come back."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from ckpt.aio.lending import (
    LEND_BYTES_MIN,
    LENT_BYTES_MAX,
    REGIONS_MAX,
    Borrower,
)
from ckpt.aio.net.link import Link, LinkClosed, LinkDrained
from ckpt.aio.net.link_loop import LinkLoop
from ckpt.aio.net.socketpath import socket_path
from ckpt.base.errors import PeerError
from ckpt.format.checksum import crc32
from ckpt.format.frame import LentPlace
from ckpt.format.messages.lending import LendMemory, MemoryReturned
from ckpt.format.messages.writing import Fragment
from tests.aio.lendkit import CELL, SIZE, Keeper, Memory, RawLender
from tests.aio.netkit import ServerThread, serving
from tests.aio.test_link import connect, opened, poll_until


@pytest.fixture
def loop() -> Iterator[LinkLoop]:
    with LinkLoop() as loop:
        yield loop


def send_cell(
    link: Link, memory: Memory, number: int, sent: Callable[[], None] | None = None
) -> None:
    view = memory.cell(number)
    assert link.try_send(5, Fragment(number, crc32(view)), view, sent=sent)


# ----------------------------------------------------------------------- borrowed in place


def test_a_bulk_in_lendable_memory_is_used_where_it_lies(
    loop: LinkLoop, borrowing: ServerThread, keeper: Keeper, memory: Memory
) -> None:
    loop.lendables.add(memory.lendable)
    link, told = opened(loop, connect(loop, borrowing)), []
    send_cell(link, memory, 3, lambda: told.append(3))
    poll_until(loop, lambda _: len(keeper.frames) == 1)
    _, _, message, bulk = keeper.frames[0]
    assert message == Fragment(3, crc32(memory.cell(3)))
    assert bulk is not None
    assert bulk.view == memory.cell(3)
    assert bulk.view.readonly
    memory.cell(3)[0] ^= 1
    assert bulk.view[0] == memory.cell(3)[0], "it is the same memory"
    assert link.channel is not None
    assert link.channel.lent_bytes == CELL
    assert not told
    borrowing.do(bulk.release)
    poll_until(loop, lambda _: bool(told))
    assert link.channel.lent_bytes == 0
    assert borrowing.do(lambda: borrowing.server.statistics().received_bytes) > CELL


def test_over_tcp_and_to_who_does_not_borrow_it_is_sent(
    loop: LinkLoop, tmp_path: Path, memory: Memory
) -> None:
    loop.lendables.add(memory.lendable)
    keeper = Keeper()
    for unix in (None, socket_path(tmp_path, "s")):
        with serving(unix=unix, handler=keeper) as running:
            link = opened(loop, connect(loop, running))
            send_cell(link, memory, 0)
            poll_until(loop, lambda _: bool(keeper.frames))
            bulk = keeper.frames.pop()[3]
            assert bulk is not None
            assert bulk.view == memory.cell(0)
            assert not bulk.view.readonly
            running.do(bulk.release)
            loop.close(link)


def test_small_bulks_and_those_that_lie_elsewhere_are_sent(
    loop: LinkLoop, borrowing: ServerThread, keeper: Keeper, memory: Memory
) -> None:
    loop.lendables.add(memory.lendable)
    link = opened(loop, connect(loop, borrowing))
    for view in (memory.view[: LEND_BYTES_MIN - 1], memoryview(bytearray(CELL))):
        assert link.try_send(1, Fragment(0, crc32(view)), view)
    poll_until(loop, lambda _: len(keeper.frames) == 2)
    assert link.channel is not None
    assert link.channel.lent_bytes == 0
    for _, _, _, bulk in keeper.frames:
        assert bulk is not None
        borrowing.do(bulk.release)


def test_a_link_is_full_while_too_much_is_lent(
    loop: LinkLoop, borrowing: ServerThread, keeper: Keeper, memory: Memory
) -> None:
    loop.lendables.add(memory.lendable)
    link = opened(loop, connect(loop, borrowing))
    for number in range(LENT_BYTES_MAX // CELL):
        assert link.writable_now
        send_cell(link, memory, number)
    assert not link.writable_now
    poll_until(loop, lambda _: len(keeper.frames) == LENT_BYTES_MAX // CELL)
    bulk = keeper.frames[0][3]
    assert bulk is not None
    borrowing.do(bulk.release)
    events = poll_until(loop, lambda events: LinkDrained(link) in events)
    assert events.count(LinkDrained(link)) == 1
    assert link.writable_now


def test_what_is_lent_is_told_once_when_the_link_dies(
    loop: LinkLoop, borrowing: ServerThread, keeper: Keeper, memory: Memory
) -> None:
    loop.lendables.add(memory.lendable)
    link, told = opened(loop, connect(loop, borrowing)), []
    for number in range(3):
        send_cell(link, memory, number, partial(told.append, number))
    borrowing.wait_until(lambda: len(keeper.frames) == 3)
    session = keeper.frames[0][0]
    borrowing.do(lambda: borrowing.server.close_session(session, "for this test"))
    poll_until(loop, lambda events: any(isinstance(e, LinkClosed) for e in events))
    assert told == [0, 1, 2]
    for _, _, _, bulk in keeper.frames:
        assert bulk is not None
        borrowing.do(bulk.release)


@pytest.mark.parametrize("bulks", [(0, 0), (1, 7), (0, 1, 2, 3), (2, 1, 2)])
def test_who_returns_what_is_not_lent_keeps_nothing_that_is(
    loop: LinkLoop, borrowing: ServerThread, keeper: Keeper, memory: Memory, bulks: tuple[int, ...]
) -> None:
    """Each bulk is its sender's again, once: a parity cell that never came back was lost for all
    later saves.
    """
    loop.lendables.add(memory.lendable)
    link, told = opened(loop, connect(loop, borrowing)), []
    for number in range(3):
        send_cell(link, memory, number, partial(told.append, number))
    borrowing.wait_until(lambda: len(keeper.frames) == 3)
    session = keeper.frames[0][0]
    borrowing.do(lambda: borrowing.server.send(session, 0, MemoryReturned(bulks)))
    events = poll_until(loop, lambda events: any(isinstance(e, LinkClosed) for e in events))
    assert isinstance(events[-1], LinkClosed)
    assert isinstance(events[-1].error, PeerError)
    assert sorted(told) == [0, 1, 2]
    for _, _, _, bulk in keeper.frames:
        assert bulk is not None
        borrowing.do(bulk.release)


def test_what_is_given_back_while_the_lender_reads_nothing_comes_when_it_does(
    borrowing: ServerThread, keeper: Keeper, memory: Memory
) -> None:
    """Nothing else is said to it, which would have its socket watched."""
    path, count = borrowing.server.unix, 200
    assert path is not None
    with RawLender(path) as peer:
        (watch,) = borrowing.server._watches.values()
        # So little that the socket is full before all are given back.
        watch.channel.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 0)
        peer.lend(memory.descriptor)
        for offset in range(count):
            byte = bytes(memory.view[offset : offset + 1])
            peer.say(Fragment(0, crc32(byte)), bulk=byte, place=LentPlace(0, offset))
        borrowing.wait_until(lambda: len(keeper.frames) == count)

        def give_back() -> None:
            for _, _, _, bulk in keeper.frames:
                assert bulk is not None
                bulk.release()

        borrowing.do(give_back)
        assert watch.channel.queued_bytes
        back: list[int] = []
        while len(back) < count:
            message = peer.receive()[1]
            assert isinstance(message, MemoryReturned)
            back += message.bulks
        assert back == list(range(count))


def test_memory_that_is_withdrawn_is_let_go(
    loop: LinkLoop, borrowing: ServerThread, keeper: Keeper, memory: Memory
) -> None:
    loop.lendables.add(memory.lendable)
    link = opened(loop, connect(loop, borrowing))
    before = memory.mapped_count()
    send_cell(link, memory, 1)
    poll_until(loop, lambda _: bool(keeper.frames))
    assert memory.mapped_count() == before + 1
    loop.withdraw(memory.lendable)
    bulk = keeper.frames.pop()[3]
    assert bulk is not None
    assert bulk.view == memory.cell(1), "a borrowed bulk stays good"
    borrowing.do(bulk.release)
    del bulk
    send_cell(link, memory, 2)  # It lies in no lendable memory any more: it is sent.
    poll_until(loop, lambda _: bool(keeper.frames))
    again = keeper.frames[0][3]
    assert again is not None
    assert again.view == memory.cell(2)
    borrowing.do(again.release)
    assert memory.mapped_count() == before


def test_more_regions_than_a_peer_takes_are_sent(
    loop: LinkLoop, borrowing: ServerThread, keeper: Keeper
) -> None:
    link = opened(loop, connect(loop, borrowing))
    memories = [Memory(CELL) for _ in range(REGIONS_MAX + 2)]
    for each in memories:
        loop.lendables.add(each.lendable)
        assert link.try_send(1, Fragment(0, crc32(each.view)), each.view)
    poll_until(loop, lambda _: len(keeper.frames) == len(memories))
    for each, (_, _, _, bulk) in zip(memories, keeper.frames, strict=True):
        assert bulk is not None
        assert bulk.view == each.view
        borrowing.do(bulk.release)
        loop.withdraw(each.lendable)
        os.close(each.descriptor)


def test_without_a_free_descriptor_it_is_sent(
    loop: LinkLoop, borrowing: ServerThread, keeper: Keeper, memory: Memory
) -> None:
    loop.lendables.add(memory.lendable)
    link = opened(loop, connect(loop, borrowing))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        send_cell(link, memory, 0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    poll_until(loop, lambda _: bool(keeper.frames))
    bulk = keeper.frames[0][3]
    assert bulk is not None
    assert bulk.view == memory.cell(0)
    assert not bulk.view.readonly
    borrowing.do(bulk.release)


def test_memory_that_nobody_uses_is_unmapped(memory: Memory) -> None:
    borrower = Borrower()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        socket.send_fds(theirs, [b"x"], [memory.descriptor])
        assert borrower.receive(ours, memoryview(bytearray(1))) == 1
    borrower.take(LendMemory(0, SIZE))
    view = borrower.view(LentPlace(0, 0), CELL)
    borrower.borrowed()
    assert crc32(view) == crc32(memory.cell(0))
    mapped = memory.mapped_count()
    borrower.rest()
    assert borrower.view(LentPlace(0, 0), CELL) == view
    assert memory.mapped_count() == mapped
    borrower.rest()
    assert crc32(view) == crc32(memory.cell(0)), "what is borrowed stays good"
    del view
    assert memory.mapped_count() == mapped - 1
    assert crc32(borrower.view(LentPlace(0, 0), CELL)) == crc32(memory.cell(0))
    borrower.close()
