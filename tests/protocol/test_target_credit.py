"""Credit of a target: windows from one pool, given in order, back as writes end."""

from __future__ import annotations

from collections import deque

from ckpt.format.messages import (
    AbandonColumn,
    ColumnAccepted,
    ColumnSealed,
    CreditGranted,
)
from ckpt.protocol.events import Session, SessionClosed
from ckpt.protocol.target.core import TargetLimits
from tests.protocol.target_world import WRITER, Column, TargetWorld, reserve, write

OTHER = Session(4)


def test_credit_never_exceeds_the_window_and_returns_as_writes_end() -> None:
    limits = TargetLimits(stream_credit_bytes=4 * 65536)
    world, column = TargetWorld(limits=limits), Column(payload_bytes=2_000_000)
    reserve(world, column)
    world.tell(WRITER, column.begin(), request=20)
    (accepted,) = world.messages(WRITER)
    assert accepted == ColumnAccepted(4 * 65536)
    credit = 4 * 65536
    for stripe in range(column.layout.stripe_count):
        message, cell = column.fragment(stripe)
        credit -= len(cell)
        assert credit >= 0
        world.tell(WRITER, message, cell, request=20)
        for answer in world.messages(WRITER):
            assert isinstance(answer, CreditGranted)
            credit += answer.credit_bytes
            assert credit <= 4 * 65536
    world.tell(WRITER, column.seal, column.manifest, request=20)
    (sealed,) = world.messages(WRITER)
    assert isinstance(sealed, ColumnSealed)


def test_more_than_the_credit_cuts_the_peer_off() -> None:
    limits = TargetLimits(stream_credit_bytes=65536)
    world, column = TargetWorld(limits=limits), Column()
    reserve(world, column)
    world.held = deque()
    write(world, column, stripes=[0, 1])
    assert [each.reason for each in world.closed] == ["more bytes than its credit"]


def test_a_fragment_that_comes_again_returns_its_credit() -> None:
    """Else a sender that repeats after a lost answer runs dry."""
    limits = TargetLimits(stream_credit_bytes=65536)
    world, column = TargetWorld(limits=limits), Column()
    reserve(world, column)
    write(world, column, stripes=[0])
    assert world.messages(WRITER) == [ColumnAccepted(65536), CreditGranted(65536)]
    message, cell = column.fragment(0)
    for _ in range(3):
        world.tell(WRITER, message, cell, request=20)
        assert world.messages(WRITER) == [CreditGranted(65536)]
    for stripe in range(1, column.layout.stripe_count):
        world.tell(WRITER, *column.fragment(stripe), request=20)
    world.messages(WRITER)
    world.tell(WRITER, column.seal, column.manifest, request=20)
    (sealed,) = world.messages(WRITER)
    assert isinstance(sealed, ColumnSealed)
    assert world.closed == []


def test_fragments_behind_the_end_of_their_stream_are_not_written() -> None:
    """Its file serves the next stream as soon as its last write has ended."""
    world, column = TargetWorld(), Column()
    reserve(world, column)
    world.held = deque()
    write(world, column, stripes=[0])
    message, cell = column.fragment(1)
    world.tell(WRITER, message, b"!" + cell[1:], request=20)
    under_way = list(world.held)
    assert len(under_way) == 1
    world.tell(WRITER, message, cell, request=20)
    assert list(world.held) == under_way
    assert world.closed == []


def test_streams_beyond_the_pool_wait_for_a_window_and_then_get_it() -> None:
    limits = TargetLimits(stream_credit_bytes=65536, credit_pool_bytes=2 * 65536)
    world = TargetWorld(limits=limits)
    columns = [Column(rank=rank) for rank in range(3)]
    for rank, column in enumerate(columns):
        reserve(world, column, rank + 1)
        world.tell(WRITER, column.begin(rank + 1), request=20 + rank)
    answers = world.messages(WRITER)
    assert answers == [ColumnAccepted(65536), ColumnAccepted(65536), ColumnAccepted(0)]
    world.tell(WRITER, AbandonColumn(), request=20)
    assert world.messages(WRITER) == [CreditGranted(65536)]


def test_a_window_that_comes_free_goes_to_nobody_whose_session_is_gone() -> None:
    limits = TargetLimits(stream_credit_bytes=65536, credit_pool_bytes=65536)
    world = TargetWorld(limits=limits)
    sessions = [WRITER, WRITER, OTHER]
    for rank, session in enumerate(sessions):
        column = Column(rank=rank)
        reserve(world, column, rank + 1)
        world.tell(session, column.begin(rank + 1), request=20 + rank)
    assert world.messages(WRITER) == [ColumnAccepted(65536), ColumnAccepted(0)]
    assert world.messages(OTHER) == [ColumnAccepted(0)]
    world.feed(SessionClosed(world.now_us, WRITER))
    assert world.messages(WRITER) == []
    assert world.messages(OTHER) == [CreditGranted(65536)]
