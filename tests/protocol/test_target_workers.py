"""Who makes columns again is read after all others, and beside them within its share."""

from __future__ import annotations

from collections import deque

import pytest

from ckpt.base.ids import Epoch
from ckpt.base.units import US_PER_S, KiB, MiB
from ckpt.format.column import FRAGMENTS_OFFSET
from ckpt.format.messages.hello import Role
from ckpt.format.messages.reading import ByteRuns, RangesDone, ReadRanges
from ckpt.format.messages.targets import LeaseRenewed
from ckpt.format.messages.writing import AbandonColumn
from ckpt.protocol.events import Session, SessionClosed, SessionOpened
from ckpt.protocol.target.core import TargetLimits
from ckpt.protocol.target.disk_events import ReadAt, SessionDrained
from tests.protocol.target_world import (
    COORDINATOR,
    READER,
    WRITER,
    Column,
    TargetWorld,
    store,
    write,
)
from tests.protocol.target_world import reserve as reserve_space

WORKER, OTHER = Session(40), Session(41)
PIECE = 64 * KiB
SHARE = MiB
"""A second."""


def _ready(*, share: int = SHARE, pool: int = 8) -> tuple[TargetWorld, Column]:
    """A column of 64 pieces, and a worker that has a session; `pool`: pieces."""
    limits = TargetLimits(
        read_piece_bytes=PIECE, read_window_bytes=2 * PIECE, read_pool_bytes=pool * PIECE,
        read_keep_bytes=0,
    )  # fmt: skip
    world, column = TargetWorld(limits=limits), Column(payload_bytes=2 * 64 * PIECE)
    store(world, column)
    world.feed(SessionOpened(world.now_us, WORKER, Role.DRAIN, "w"))
    world.tell(COORDINATOR, LeaseRenewed(Epoch(1), None, share))
    world.performed.clear()
    return world, column


def _ask(world: TargetWorld, column: Column, session: Session, first: int, pieces: int) -> None:
    """For so many pieces from one on."""
    runs = ByteRuns(first * PIECE, (first + pieces) * PIECE)
    world.tell(session, ReadRanges(column.id, (runs,)))


def _read(world: TargetWorld) -> int:
    """Bytes that the disk was asked for since the last call."""
    asked = [each for each in world.performed if isinstance(each, ReadAt)]
    world.performed.clear()
    return sum(each.length for each in asked)


def _asked_for(world: TargetWorld) -> list[int]:
    """Pieces that the disk was asked for and has not read, in order."""
    asked = [each.offset for each in world.held or () if isinstance(each, ReadAt)]
    return [(offset - FRAGMENTS_OFFSET) // PIECE for offset in asked]


def _warm(world: TargetWorld, column: Column) -> None:
    """Its block table is in memory."""
    _ask(world, column, READER, 63, 1)
    assert isinstance(world.messages(READER)[-1], RangesDone)
    _read(world)


def test_a_worker_alone_reads_as_fast_as_it_goes() -> None:
    world, column = _ready()
    _warm(world, column)
    _ask(world, column, WORKER, 0, 60)
    assert _read(world) == 60 * PIECE
    assert [type(each) for each in world.messages(WORKER)][-1] is RangesDone


@pytest.mark.parametrize("beside", ["a writer", "a reader"])
def test_beside_others_a_worker_gets_its_share_and_no_more(beside: str) -> None:
    world, column = _ready()
    _warm(world, column)
    other = Column(rank=1)
    if beside == "a writer":
        reserve_space(world, other, 2)
        write(world, other, request=21, reservation=2)
    else:
        # It does not take what it was given: its session does not drain.
        world.auto_drain = False
        _ask(world, column, READER, 40, 20)
        world.auto_drain = True
        assert _read(world) == 2 * PIECE
    _ask(world, column, WORKER, 0, 40)
    taken = _read(world)
    for _ in range(20):
        world.tick(US_PER_S // 20)
        taken += _read(world)
    assert SHARE <= taken <= SHARE * 13 // 10


def test_what_a_worker_did_not_take_is_not_saved_up() -> None:
    world, column = _ready()
    _warm(world, column)
    other = Column(rank=1)
    reserve_space(world, other, 2)
    write(world, other, request=21, reservation=2)
    world.tick(3 * US_PER_S)
    _ask(world, column, WORKER, 0, 40)
    assert _read(world) <= SHARE // 5 + 2 * PIECE


def test_when_the_others_have_gone_a_worker_reads_on_at_once() -> None:
    world, column = _ready()
    _warm(world, column)
    other = Column(rank=1)
    reserve_space(world, other, 2)
    write(world, other, request=21, reservation=2)
    _ask(world, column, WORKER, 0, 40)
    assert _read(world) < 40 * PIECE
    world.tell(WRITER, AbandonColumn(), request=21)
    assert [type(each) for each in world.messages(WORKER)][-1] is RangesDone


def test_a_worker_that_writes_is_nobody_to_make_way_for() -> None:
    world, column = _ready()
    _warm(world, column)
    made = Column(rank=1)
    reserve_space(world, made, 2)
    world.tell(WORKER, made.begin(2), request=21)
    _ask(world, column, WORKER, 0, 40)
    assert _read(world) == 40 * PIECE


def test_where_nothing_was_said_a_worker_has_no_bound() -> None:
    world, column = _ready(share=0)
    _warm(world, column)
    other = Column(rank=1)
    reserve_space(world, other, 2)
    write(world, other, request=21, reservation=2)
    _ask(world, column, WORKER, 0, 40)
    assert _read(world) == 40 * PIECE


def test_where_room_gets_free_others_are_read_first() -> None:
    world, column = _ready(share=0, pool=3)
    _warm(world, column)
    world.feed(SessionOpened(world.now_us, OTHER, Role.READER, "r"))
    world.auto_drain = False
    _ask(world, column, OTHER, 50, 2)
    world.held = deque()
    _ask(world, column, WORKER, 0, 4)
    _ask(world, column, READER, 30, 4)
    assert _asked_for(world) == [0, 30]
    world.feed(SessionDrained(world.now_us, OTHER))
    assert _asked_for(world) == [0, 30, 31]


def test_a_session_that_comes_after_a_workers_is_nobodys() -> None:
    world, column = _ready()
    _warm(world, column)
    world.feed(SessionClosed(world.now_us, WORKER))
    world.feed(SessionOpened(world.now_us, WORKER, Role.READER, "r"))
    other = Column(rank=1)
    reserve_space(world, other, 2)
    write(world, other, request=21, reservation=2)
    _ask(world, column, WORKER, 0, 40)
    assert _read(world) == 40 * PIECE
