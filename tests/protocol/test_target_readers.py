"""Whose turn it is to read: who holds nothing first, and nobody for ever last."""

from __future__ import annotations

import random
from collections import deque

import pytest

from ckpt.base.units import KiB, MiB
from ckpt.format.messages.hello import Role
from ckpt.format.messages.reading import ByteRuns, RangeData, RangesDone, ReadRanges
from ckpt.protocol.events import Session, SessionClosed, SessionOpened
from ckpt.protocol.reader.events import ReadLimits
from ckpt.protocol.target.core import TargetLimits
from ckpt.protocol.target.disk_events import ReadAt, SessionDrained
from ckpt.protocol.target.reading.read_jobs import StreamJob
from ckpt.protocol.target.reading.read_turns import ReadingSessions
from tests.protocol.target_world import Column, TargetWorld, cut_up, store

A, B, C = Session(1), Session(2), Session(3)
NOW_US = 7


def reading(*sessions: Session, pool: int = 100, crowd: int = 0) -> ReadingSessions:
    """Each with a question; a piece has 10 bytes."""
    limits = TargetLimits(
        read_piece_bytes=10, read_window_bytes=20, read_pool_bytes=pool, read_crowd_bytes=crowd
    )
    readers = ReadingSessions(limits)
    for session in sessions:
        readers.begin(session).jobs.append(_question(session))
        readers.wake(session)
    return readers


def _question(session: Session) -> StreamJob:
    def never(_job: StreamJob, _start: int, _end: int) -> None:
        raise AssertionError

    return StreamJob(session, 1, deque([(0, 1)]), never)


def turn(readers: ReadingSessions) -> Session | None:
    taken = readers.take()
    return None if taken is None else taken[0]


def read_for(readers: ReadingSessions, session: Session, size: int = 10) -> None:
    """It had its turn, and the disk reads for it."""
    readers.asked(readers.find(session), size)
    readers.memory.take(size)
    readers.wake(session)


def came_for(readers: ReadingSessions, session: Session, size: int = 10) -> None:
    """And it failed to."""
    readers.memory.give_back(size)
    readers.came(session, readers.find(session), size)


def test_turns_go_round() -> None:
    readers = reading(A, B, C)
    for expected in (A, B, C, A, B, C, A):
        assert turn(readers) == expected
        read_for(readers, expected)
    readers.check()


def test_who_holds_nothing_comes_first_and_has_a_piece_beyond_the_pool() -> None:
    readers = reading(A, B, C, pool=20, crowd=10)
    for session in (A, B, C):
        assert turn(readers) == session
        read_for(readers, session)
    assert turn(readers) is None
    came_for(readers, B)
    readers.check()
    assert turn(readers) == B


def test_beyond_the_pool_and_the_share_of_crowds_nobody_has_a_piece() -> None:
    readers = reading(A, B, C, pool=20)
    for session in (A, B):
        assert turn(readers) == session
        read_for(readers, session)
    assert turn(readers) is None
    came_for(readers, A)
    assert [turn(readers), turn(readers)] == [C, A], "the longest waiting first"


def test_nobody_has_more_than_there_is_room_for_beside_what_is_read_for_nobody() -> None:
    readers = reading(A, B, pool=20, crowd=100)
    assert turn(readers) == A
    read_for(readers, A, 20)
    gone = readers.find(A)
    assert readers.close(A, NOW_US) == []
    assert (readers.held_bytes, turn(readers)) == (20, None)
    readers.memory.give_back(20)
    readers.came(A, gone, 20)
    assert (readers.held_bytes, turn(readers)) == (0, B)


def test_who_had_nothing_to_do_is_left_out_until_something_changes() -> None:
    readers = reading(A, B)
    assert turn(readers) == A
    read_for(readers, A)
    assert [turn(readers), turn(readers), turn(readers)] == [B, A, None]
    came_for(readers, A)
    assert turn(readers) == A


def test_who_was_given_something_in_between_counts_as_holding() -> None:
    readers = reading(A, B, pool=20, crowd=100)
    readers.gave_copy(readers.find(A), 15, NOW_US)
    assert turn(readers) == B
    assert turn(readers) is None
    assert readers.left(A, readers.find(A), NOW_US) == []
    assert turn(readers) == A


def test_what_left_is_held_no_more_and_who_wants_nothing_is_forgotten() -> None:
    readers = reading(A)
    reader = readers.find(A)
    reader.jobs.clear()
    readers.gave_buffer(reader, 77, 5, NOW_US)
    assert readers.left(A, reader, NOW_US) == [77]
    assert (readers.held_bytes, readers.memory.bytes, readers.get(A)) == (0, 0, None)
    assert turn(readers) is None


def test_whose_answer_is_in_memory_comes_first_and_needs_no_room() -> None:
    readers = reading(A, B, C, pool=20)
    for session in (A, B):
        assert turn(readers) == session
        read_for(readers, session)
    came_for(readers, B)
    readers.keep(readers.find(B), 10)
    assert turn(readers) == B
    assert turn(readers) is None, "it takes what C would have"


def test_a_buffer_that_many_frames_use_is_in_memory_once() -> None:
    readers = reading(A, B, pool=20)
    for session in (A, B):
        readers.gave_buffer(readers.find(session), 77, 10, NOW_US)
    assert (readers.held_bytes, readers.memory.bytes) == (20, 10)
    readers.left(A, readers.find(A), NOW_US)
    assert (readers.held_bytes, readers.memory.bytes) == (10, 10)
    readers.left(B, readers.find(B), NOW_US)
    assert (readers.held_bytes, readers.memory.bytes) == (0, 0)


def test_what_a_reader_asks_for_at_once_is_one_read_and_one_frame() -> None:
    """By the limits of both as they are made: each read and each frame costs both ends."""
    asked = ReadLimits().ask_bytes
    column = Column(payload_bytes=2 * asked, cell_bytes=asked, column=0)
    world, reader = TargetWorld(), Session(100)
    store(world, column)
    world.feed(SessionOpened(world.now_us, reader, Role.READER, "r"))
    world.performed.clear()
    world.tell(reader, ReadRanges(column.id, (ByteRuns(0, asked),)))
    answers = [each for each in world.sent if each.session == reader]
    assert [type(each.message) for each in answers] == [RangeData, RangesDone]
    assert bytes(answers[0].bulk) == column.data
    reads = [each for each in world.performed if isinstance(each, ReadAt)]
    assert [each.length for each in reads] == [asked]


@pytest.mark.parametrize("seed", range(6))
def test_a_crowd_gets_all_its_bytes_in_whatever_order_frames_leave(seed: int) -> None:
    """Of a pool that holds three pieces; some of them close in between."""
    column = Column(payload_bytes=2 * MiB, cell_bytes=256 * KiB, column=0)
    pool = TargetLimits(
        read_piece_bytes=128 * KiB,
        read_window_bytes=256 * KiB,
        read_pool_bytes=384 * KiB,
        read_keep_bytes=0,
    )
    world = TargetWorld(limits=pool)
    store(world, column)
    world.auto_drain = False
    draw = random.Random(seed)
    crowd = [Session(100 + number) for number in range(60)]
    for session in crowd:
        world.feed(SessionOpened(world.now_us, session, Role.READER, "r"))
        world.tell(session, ReadRanges(column.id, (ByteRuns(0, len(column.data)),)))
        world.machine.check()
    for session in draw.sample(crowd, 12):
        crowd.remove(session)
        world.feed(SessionClosed(world.now_us, session))
        world.machine.check()
    got: dict[Session, dict[int, bytes]] = {session: {} for session in crowd}
    waiting = list(crowd)
    while waiting:
        session = draw.choice(waiting)
        for each in world.sent:
            if each.session == session and isinstance(each.message, RangeData):
                got[session] |= cut_up(each.message, bytes(each.bulk))
        if any(isinstance(each, RangesDone) for each in world.messages(session)):
            waiting.remove(session)
        world.feed(SessionDrained(world.now_us, session))
        world.machine.check()
    for parts in got.values():
        assert b"".join(part for _, part in sorted(parts.items())) == column.data
