"""What several readers want of the same blocks is read once, and kept only for a moment."""

from __future__ import annotations

from collections import deque

import pytest

from ckpt.base.limits import BLOCK_BYTES
from ckpt.base.units import KiB
from ckpt.format.messages.hello import CancelRequest
from ckpt.format.messages.reading import (
    ByteRange,
    ByteRuns,
    ColumnVerified,
    RangeDamaged,
    RangeData,
    RangesDone,
    ReadRanges,
    VerifyColumn,
)
from ckpt.protocol.events import Session, SessionClosed
from ckpt.protocol.target.core import TargetLimits, column_name
from ckpt.protocol.target.disk_events import ReadAt
from ckpt.protocol.target.reading.shared_reads import KEEP_US
from ckpt.testing.disk import Fault
from tests.protocol.target_world import READER, Column, TargetWorld, cut_up, store

ROW, QUARTER = 4096, 1024
SESSIONS = (READER, Session(4), Session(5), Session(6))


def _column(rank: int = 0) -> Column:
    return Column(payload_bytes=3_000_000, cell_bytes=512 * KiB, column=0, rank=rank)


def _stored(*columns: Column, limits: TargetLimits | None = None) -> TargetWorld:
    """A restarted target whose table caches are warm."""
    world = TargetWorld()
    for number, column in enumerate(columns):
        store(world, column, request=20 + number, reservation=1 + number)
    again = TargetWorld(world.disk, boot=12, limits=limits)
    for column in columns:
        again.tell(READER, ReadRanges(column.id, (ByteRuns(1_400_000, 1_500_000),)))
    again.tick(KEEP_US)
    again.sent.clear()
    again.performed.clear()
    return again


def _quarter(column: Column, part: int, rows: int = 128) -> ReadRanges:
    """A quarter of each row."""
    starts = [row * ROW + part * QUARTER for row in range(rows)]
    return ReadRanges(column.id, tuple(ByteRuns(at, at + QUARTER) for at in starts))


def _found(world: TargetWorld, session: Session) -> dict[int, bytes]:
    found = {}
    for each in world.sent:
        if each.session == session and isinstance(each.message, RangeData):
            found |= cut_up(each.message, bytes(each.bulk))
    return found


def _expected(column: Column, question: ReadRanges) -> dict[int, bytes]:
    return {each.start: column.data[each.start : each.end] for each in question.ranges}


def _reads(world: TargetWorld) -> list[ReadAt]:
    return [action for action in world.performed if isinstance(action, ReadAt)]


@pytest.mark.parametrize("together", [False, True])
def test_four_readers_of_a_quarter_each_cost_one_read(together: bool) -> None:
    column = _column()
    world = _stored(column)
    before = world.machine.counters["bytes_read"]
    world.held = deque() if together else None
    for part, session in enumerate(SESSIONS):
        world.tell(session, _quarter(column, part))
    while world.held:
        world.step()
    assert len(_reads(world)) == 1
    for part, session in enumerate(SESSIONS):
        assert _found(world, session) == _expected(column, _quarter(column, part))
        assert world.messages(session)[-1] == RangesDone()
    assert world.machine.counters["bytes_read"] - before == 128 * ROW


def test_what_everybody_has_is_let_go() -> None:
    column = _column()
    world = _stored(column)
    for part, session in enumerate(SESSIONS):
        world.tell(session, _quarter(column, part))
        (read,) = _reads(world)
        assert (read.op in world.released) == (part == 3)
    world.tell(READER, _quarter(column, 0))
    assert len(_reads(world)) == 2


def test_what_nobody_used_for_a_moment_is_read_again() -> None:
    column = _column()
    world = _stored(column)
    world.tell(READER, _quarter(column, 0))
    (read,) = _reads(world)
    assert read.op not in world.released
    world.tick(KEEP_US - 1)
    assert read.op not in world.released
    world.tick(1)
    assert read.op in world.released
    world.tell(READER, _quarter(column, 1))
    assert len(_reads(world)) == 2


def test_use_keeps_it_and_so_much_is_kept_and_no_more() -> None:
    column = _column()
    world = _stored(column, limits=TargetLimits(read_keep_bytes=2 * BLOCK_BYTES))
    block = [
        ReadRanges(column.id, (ByteRuns(at * 512 * KiB, at * 512 * KiB + 9),)) for at in range(3)
    ]
    for number in (0, 1, 0, 2, 0, 2):
        world.tell(READER, block[number])
    assert len(_reads(world)) == 3
    world.tell(READER, block[1])
    assert len(_reads(world)) == 4, "the least lately used one made room"


def test_what_is_wanted_whole_is_not_kept() -> None:
    column = _column()
    world = _stored(column)
    for _ in range(2):
        world.tell(READER, ReadRanges(column.id, (ByteRuns(0, BLOCK_BYTES),)))
    assert len(_reads(world)) == 2
    assert {read.op for read in _reads(world)} <= set(world.released)


def test_damage_is_told_to_all_who_wait_and_is_looked_for_again() -> None:
    column = _column()
    world = _stored(column)
    world.disk.rot(f"columns/{column_name(column.id)}", 4096 + 5)
    world.held = deque()
    for part, session in enumerate(SESSIONS[:2]):
        world.tell(session, _quarter(column, part, rows=64))
    world.step()
    assert not world.held
    for session in SESSIONS[:2]:
        damaged = [m for m in world.messages(session) if isinstance(m, RangeDamaged)]
        assert len(damaged) == 32, "one of two blocks"
    assert world.machine.counters["blocks_damaged"] == 1
    world.held = None
    world.tell(READER, _quarter(column, 2, rows=64))
    assert world.machine.counters["blocks_damaged"] == 2


def test_a_failed_read_is_tried_again_by_block_for_all_who_wait() -> None:
    column = _column()
    world = _stored(column)
    file = f"columns/{column_name(column.id)}"
    world.held = deque()
    for part, session in enumerate(SESSIONS[:2]):
        world.tell(session, _quarter(column, part, rows=64))
    world.disk.faults.append(Fault("read", "EIO", file=file, count=2))
    while world.held:
        world.step()
    assert len(_reads(world)) == 3, "both blocks, the first one and the second one"
    for part, session in enumerate(SESSIONS[:2]):
        whole = _expected(column, _quarter(column, part, rows=64))
        good = {at: data for at, data in whole.items() if at >= BLOCK_BYTES}
        assert _found(world, session) == good
        damaged = [m for m in world.messages(session) if isinstance(m, RangeDamaged)]
        assert {(m.start, m.reason) for m in damaged} == {(at, "EIO") for at in whole.keys() - good}


def test_who_leaves_while_it_is_under_way_takes_nothing_from_the_others() -> None:
    column = _column()
    world = _stored(column)
    world.held = deque()
    for part, session in enumerate(SESSIONS[:3]):
        world.tell(session, _quarter(column, part), request=50)
    world.tell(SESSIONS[0], CancelRequest(), request=50)
    world.feed(SessionClosed(world.now_us, SESSIONS[1]))
    world.step()
    assert not _found(world, SESSIONS[0])
    assert not _found(world, SESSIONS[1])
    assert _found(world, SESSIONS[2]) == _expected(column, _quarter(column, 2))
    world.tick(KEEP_US)
    assert {read.op for read in _reads(world)} <= set(world.released)
    assert world.machine.operations_open == 0


def test_a_scrub_asks_the_disk_itself() -> None:
    column = _column()
    world = _stored(column)
    world.tell(READER, _quarter(column, 0))
    world.disk.rot(f"columns/{column_name(column.id)}", 4096 + 5)
    world.tell(READER, VerifyColumn(column.id))
    (verified,) = [m for m in world.messages(READER) if isinstance(m, ColumnVerified)]
    assert verified.damaged == (ByteRange(0, BLOCK_BYTES),)


def test_columns_are_not_confused() -> None:
    columns = _column(), _column(rank=1)
    world = _stored(*columns)
    for column in columns:
        world.tell(READER, _quarter(column, 0))
        assert _found(world, READER) == _expected(column, _quarter(column, 0))
        world.sent.clear()
    assert len(_reads(world)) == 2
