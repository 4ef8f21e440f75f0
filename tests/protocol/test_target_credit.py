"""Credit of a target: windows from one pool, given in order, back as writes end."""

from __future__ import annotations

from collections import deque

from ckpt.base.ids import CheckpointId, Generation, RunName, Step
from ckpt.base.limits import BEAT_US
from ckpt.format.messages.writing import (
    AbandonColumn,
    AskPace,
    ColumnAccepted,
    ColumnSealed,
    CreditGranted,
    TargetPace,
)
from ckpt.protocol.events import Session, SessionClosed, Ticked
from ckpt.protocol.service_time import BUSY_US_MIN
from ckpt.protocol.target.core import TargetLimits
from ckpt.protocol.target.credit import DORMANT_US
from ckpt.protocol.target.pace import Pace
from tests.protocol.target_world import WRITER, Column, TargetWorld, reserve, store, write

OTHER = Session(4)
LATER = CheckpointId(RunName("other"), Step(8), Generation(1, 5))


def test_credit_never_exceeds_the_window_and_returns_as_writes_end() -> None:
    limits = TargetLimits(stream_credit_bytes=4 * 65536)
    world, column = TargetWorld(limits=limits), Column(payload_bytes=2_000_000)
    reserve(world, column)
    world.tell(WRITER, column.begin(), request=20)
    (accepted,) = world.messages(WRITER)
    assert accepted == ColumnAccepted(4 * 65536, answers=True)
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
    assert world.messages(WRITER) == [ColumnAccepted(65536, answers=True), CreditGranted(65536)]
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
    assert answers == [
        ColumnAccepted(65536, answers=True),
        ColumnAccepted(65536, answers=True),
        ColumnAccepted(0, answers=True),
    ]
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
    assert world.messages(WRITER) == [
        ColumnAccepted(65536, answers=True),
        ColumnAccepted(0, answers=True),
    ]
    assert world.messages(OTHER) == [
        ColumnAccepted(0, TargetPace(0, 0, waiting_count=1), answers=True)
    ]
    world.feed(SessionClosed(world.now_us, WRITER))
    assert world.messages(WRITER) == []
    assert world.messages(OTHER) == [CreditGranted(65536)]


CELL = 65536


def begun(world: TargetWorld, columns: list[Column]) -> None:
    """Each with a reservation and a request of its own: 20, 21, ..."""
    for rank, column in enumerate(columns):
        reserve(world, column, rank + 1)
        world.tell(WRITER, column.begin(rank + 1), request=20 + rank)


def grants(world: TargetWorld) -> list[tuple[int, int]]:
    """(request, bytes) of what was granted, in order."""
    sent = [each for each in world.sent if each.session == WRITER]
    world.sent.clear()
    return [
        (each.request, each.message.credit_bytes)
        for each in sent
        if isinstance(each.message, ColumnAccepted | CreditGranted) and each.message.credit_bytes
    ]


def send(world: TargetWorld, columns: list[Column], request: int, stripe: int) -> None:
    message, cell = columns[request - 20].fragment(stripe)
    world.tell(WRITER, message, cell, request=request)


def test_a_stream_gets_its_share_of_a_crowd_and_none_waits_for_anothers_end() -> None:
    """Two cells for three streams: whoever has most left comes next."""
    limits = TargetLimits(stream_credit_bytes=4 * CELL, credit_pool_bytes=2 * CELL)
    world = TargetWorld(limits=limits)
    columns = [Column(rank=rank, payload_bytes=2_000_000) for rank in range(3)]
    begun(world, columns)
    assert grants(world) == [(20, CELL), (21, CELL)]
    send(world, columns, 20, 0)
    assert grants(world) == [(22, CELL)]
    send(world, columns, 21, 0)
    assert grants(world) == [(20, CELL)]
    send(world, columns, 22, 0)
    assert grants(world) == [(21, CELL)]


def test_a_small_save_takes_turns_with_a_large_one() -> None:
    limits = TargetLimits(stream_credit_bytes=CELL, credit_pool_bytes=CELL)
    world = TargetWorld(limits=limits)
    large = [Column(rank=rank, payload_bytes=4_000_000) for rank in range(2)]
    small = Column(rank=2, payload_bytes=600_000, checkpoint=LATER)
    columns = [*large, small]
    begun(world, columns)
    turns = [request for request, _ in grants(world)]
    sent = dict.fromkeys((20, 21, 22), 0)
    for _ in range(5):
        send(world, columns, turns[-1], sent[turns[-1]])
        sent[turns[-1]] += 1
        turns += [request for request, _ in grants(world)]
    assert turns == [20, 21, 22, 20, 22, 21]


def test_whoever_waits_hears_that_its_target_lives_and_how_long_it_takes() -> None:
    limits = TargetLimits(stream_credit_bytes=CELL, credit_pool_bytes=CELL)
    world = TargetWorld(limits=limits)
    columns = [Column(rank=rank, payload_bytes=2_000_000) for rank in range(2)]
    begun(world, columns)
    world.sent.clear()
    world.feed(Ticked(world.now_us + BEAT_US - 1))
    assert world.messages(WRITER) == []
    world.now_us += BEAT_US
    world.feed(Ticked(world.now_us))
    (beat,) = world.sent
    assert (beat.request, beat.message) == (21, CreditGranted(0, TargetPace(0, 0, 1)))


def test_a_seal_that_waits_for_its_disk_is_heard_of_too() -> None:
    world, column = TargetWorld(), Column()
    reserve(world, column)
    write(world, column)
    world.held = deque()
    world.tell(WRITER, column.seal, column.manifest, request=20)
    world.sent.clear()
    for _ in range(2):
        world.now_us += BEAT_US
        world.feed(Ticked(world.now_us))
    beat = world.messages(WRITER)[-1]
    assert isinstance(beat, CreditGranted)
    assert beat.pace is not None
    assert beat.pace.seal_us == 2 * BEAT_US, "as long as its first step has taken so far"


def test_credit_that_nobody_uses_is_lent_and_stays_good() -> None:
    limits = TargetLimits(stream_credit_bytes=CELL, credit_pool_bytes=CELL)
    world = TargetWorld(limits=limits)
    columns = [Column(rank=rank, payload_bytes=2_000_000) for rank in range(2)]
    begun(world, columns)
    assert grants(world) == [(20, CELL)]
    world.now_us += DORMANT_US
    world.feed(Ticked(world.now_us))
    assert grants(world) == [(21, CELL)]
    world.held = deque()
    send(world, columns, 20, 0)
    assert world.closed == [], "it had been granted"
    send(world, columns, 21, 0)
    while world.held:
        world.step()
    assert [request for request, _ in grants(world)] == [20], "until as much is free again"
    world.machine.check()


def test_a_repeated_fragment_returns_its_credit() -> None:
    limits = TargetLimits(stream_credit_bytes=CELL, credit_pool_bytes=CELL)
    world = TargetWorld(limits=limits)
    columns = [Column(payload_bytes=2_000_000)]
    begun(world, columns)
    for _ in range(3):
        assert grants(world) == [(20, CELL)]
        send(world, columns, 20, 0)
    assert grants(world) == [(20, CELL)]


def test_who_asks_is_answered_at_once_also_behind_its_columns_end() -> None:
    world, column = TargetWorld(), Column(payload_bytes=100_000)
    store(world, column)
    world.messages(WRITER)
    world.tell(WRITER, AskPace(), request=20)
    (answer,) = world.messages(WRITER)
    assert isinstance(answer, CreditGranted)
    assert answer.credit_bytes == 0
    world.tell(WRITER, AskPace(), request=77)
    assert len(world.messages(WRITER)) == 1, "as little as it takes: somebody is there"


def test_time_in_which_a_target_stood_still_itself_is_not_its_devices() -> None:
    pace = Pace()
    pace.write_began(0)
    pace.excuse(5_000_000)
    assert pace.told(5_000_000 + BUSY_US_MIN - 1, 0) is None
    told = pace.told(5_000_000 + BUSY_US_MIN, 0)
    assert told == TargetPace(BUSY_US_MIN, 0, 0, still_us=BUSY_US_MIN)


def test_a_step_of_a_seal_is_charged_from_the_end_of_what_was_given_before_it() -> None:
    """A disk that does one thing after another wrote for 5 s before it came to the step."""
    pace = Pace()
    pace.seal_step_began(0, op=3)
    pace.disk_answered(5_000_000, op=2)
    pace.seal_step_ended(5_200_000, op=3)
    told = pace.told(5_200_000, 0)
    assert told is not None
    assert told.seal_us == 200_000


def test_a_step_that_hangs_shows_although_later_writes_go_on() -> None:
    pace = Pace()
    pace.seal_step_began(0, op=3)
    pace.disk_answered(5_000_000, op=4)
    told = pace.told(5_000_000, 0)
    assert told is not None
    assert told.seal_us == 5_000_000


def test_a_target_says_what_its_device_takes_for_one_thing_alone() -> None:
    """It ends one each 10 ms, since it does twenty at a time."""
    pace = Pace()
    pace.step_began(0, 1, open_count=0)
    pace.disk_answered(200_000, 1)
    for op in range(2, 22):
        pace.step_began(200_000 + 10_000 * op, op, open_count=1)
        pace.seal_step_began(200_000 + 10_000 * op, op)
    for op in range(2, 22):
        pace.seal_step_ended(400_000 + 10_000 * op, op)
        pace.disk_answered(400_000 + 10_000 * op, op)
    told = pace.told(610_000, 0)
    assert told is not None
    assert told.alone_us == 200_000
    assert told.seal_us < 30_000
