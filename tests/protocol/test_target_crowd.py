"""P5: what a crowd of readers costs a target has one bound, whatever they do with what they get;
and nobody among them is starved.

All is an eighth of a thousandth of a daemon's: its blocks and pieces have 4 KiB.
"""

from __future__ import annotations

import random
from collections import Counter, deque

from ckpt.base.limits import HEDGE_US
from ckpt.base.units import US_PER_S, KiB
from ckpt.format.messages.hello import Role
from ckpt.format.messages.reading import (
    ByteRuns,
    ManifestData,
    RangeData,
    RangesDone,
    ReadManifest,
    ReadRanges,
)
from ckpt.protocol.events import Send, Session, SessionClosed, SessionOpened
from ckpt.protocol.target.core import TargetLimits
from ckpt.protocol.target.disk_events import ReadAt, SessionDrained
from ckpt.protocol.target.reading.read_turns import CROWDED_US, PATIENCE_US, SLOW_US
from tests.protocol.target_world import Column, TargetWorld, store

PIECE = 4 * KiB
LIMITS = TargetLimits(
    read_piece_bytes=PIECE, read_window_bytes=4 * PIECE, read_pool_bytes=16 * PIECE,
    read_crowd_bytes=4 * PIECE, read_keep_bytes=0,
)  # fmt: skip
CAP = 20 * PIECE
SLOW_CAP = 4 * PIECE
CROWD = 1024
EACH = 3
"""Pieces that each of them wants."""
COLUMN = Column(payload_bytes=2 * CROWD * PIECE, cell_bytes=PIECE)


class Crowded:
    """A target whose readers take what they are sent when the test says so."""

    def __init__(self) -> None:
        self.world = world = TargetWorld(limits=LIMITS)
        store(world, COLUMN)
        # The column's table is in memory.
        self.come(3)
        self.ask(Session(3), 0)
        # A look at all readers after each event of a crowd would cost its square.
        world.looks_each = 64
        world.auto_drain = False
        world.sent.clear()
        self._seen = len(world.performed)
        self._reads: dict[int, int] = {}
        self.got: Counter[Session] = Counter()
        self.unsent: Counter[Session] = Counter()

    def come(self, *numbers: int) -> list[Session]:
        """Sessions of readers."""
        sessions = [Session(number) for number in numbers]
        for session in sessions:
            self.world.feed(SessionOpened(self.world.now_us, session, Role.READER, "r"))
        return sessions

    def ask(self, session: Session, first: int, pieces: int = EACH) -> None:
        """For pieces that nobody else wants, if there are that many."""
        first %= CROWD - pieces
        runs = ByteRuns(first * PIECE, (first + pieces) * PIECE)
        self.world.tell(session, ReadRanges(COLUMN.id, (runs,)))

    def take_in(self) -> list[Send]:
        """Note what was sent since the last call."""
        sent, self.world.sent = self.world.sent, []
        for each in sent:
            self.got[each.session] += len(each.bulk)
            self.unsent[each.session] += len(each.bulk)
        return sent

    def drain(self, session: Session) -> None:
        """It takes all that it was sent."""
        self.take_in()
        del self.unsent[session]
        self.world.feed(SessionDrained(self.world.now_us, session))
        self.take_in()

    @property
    def waiting_to_leave(self) -> list[Session]:
        self.take_in()
        return [session for session, size in self.unsent.items() if size]

    @property
    def held_bytes(self) -> int:
        """Read from the disk and not released."""
        for action in self.world.performed[self._seen :]:
            if isinstance(action, ReadAt):
                self._reads[action.op] = action.length
        self._seen = len(self.world.performed)
        for op in self.world.released:
            self._reads.pop(op, None)
        self.world.released.clear()
        return sum(self._reads.values())

    def pass_time(self, us: int, *, quick: Session | None = None) -> None:
        """In ticks; who is quick takes at once what it is sent, who is cut off goes."""
        for _ in range(us // (US_PER_S // 10)):
            self.world.tick(US_PER_S // 10)
            while quick is not None and quick in self.waiting_to_leave:
                self.drain(quick)
            for each in self.world.closed:
                self.unsent.pop(each.session, None)
                self.world.feed(SessionClosed(self.world.now_us, each.session))
            self.world.closed.clear()
            assert self.held_bytes <= CAP


def test_a_crowd_that_takes_its_bytes_slowly_costs_what_a_few_readers_do() -> None:
    crowd, draw = Crowded(), random.Random(1)
    sessions = crowd.come(*range(100, 100 + CROWD))
    for number, session in enumerate(sessions):
        crowd.ask(session, number * EACH)
        assert crowd.held_bytes <= CAP
    most = 0
    while waiting := crowd.waiting_to_leave:
        most = max(most, crowd.held_bytes)
        crowd.drain(draw.choice(waiting))
        assert crowd.held_bytes <= CAP
    assert most == CAP, "all that there is was used"
    assert {crowd.got[session] for session in sessions} == {EACH * PIECE}
    assert crowd.held_bytes == 0


def test_turns_go_round_in_a_crowd() -> None:
    """Nobody has a second piece while somebody has none."""
    crowd = Crowded()
    sessions = crowd.come(*range(100, 100 + CROWD))
    for number, session in enumerate(sessions):
        crowd.ask(session, number * EACH)
    while waiting := crowd.waiting_to_leave:
        crowd.drain(waiting[0])
        pieces = [crowd.got[session] // PIECE for session in sessions]
        # Who came first, to an empty target, has a window; and some have a turn before others.
        assert max(pieces[CAP // PIECE :]) - min(pieces) <= 1
    assert {crowd.got[session] for session in sessions} == {EACH * PIECE}


def test_a_crowd_that_asks_for_manifests_costs_no_more() -> None:
    """A manifest is copied out of its trailer, and waits in memory for its turn."""
    crowd = Crowded()
    for session in crowd.come(*range(100, 100 + CROWD)):
        crowd.world.tell(session, ReadManifest(COLUMN.id))
        crowd.take_in()
        assert sum(crowd.unsent.values()) <= CAP + len(COLUMN.manifest)
    while waiting := crowd.waiting_to_leave:
        crowd.drain(waiting[0])
        assert sum(crowd.unsent.values()) <= CAP + len(COLUMN.manifest)
    assert set(crowd.got.values()) == {len(COLUMN.manifest)}
    assert len(crowd.got) == CROWD


def test_readers_that_take_nothing_are_cut_off_while_others_wait() -> None:
    crowd = Crowded()
    asleep = crowd.come(*range(100, 160))
    for number, session in enumerate(asleep):
        crowd.ask(session, number * EACH)
    (quick,) = crowd.come(50)
    crowd.ask(quick, 900)
    assert crowd.held_bytes == CAP
    assert not crowd.got[quick]
    # What is not the share of slow ones is given up each time.
    rounds = 1 + (len(asleep) * PIECE - CAP) // (CAP - SLOW_CAP)
    crowd.pass_time(rounds * (CROWDED_US + US_PER_S // 2), quick=quick)
    assert crowd.got[quick] == EACH * PIECE


def test_whoever_waits_beside_readers_that_take_nothing_has_a_turn_before_it_gives_up() -> None:
    crowd = Crowded()
    for number, session in enumerate(crowd.come(*range(100, 110))):
        crowd.ask(session, number * EACH)
    (quick,) = crowd.come(50)
    crowd.ask(quick, 900)
    assert crowd.held_bytes == CAP
    assert not crowd.got[quick]
    crowd.pass_time(HEDGE_US - US_PER_S // 10, quick=quick)
    assert crowd.got[quick] == EACH * PIECE


def test_a_slow_reader_that_takes_nothing_gives_way_to_other_slow_ones() -> None:
    crowd = Crowded()
    slow = crowd.come(*range(100, 108))
    for session in slow:
        crowd.ask(session, 0, 20)
    for _ in range(2):
        crowd.pass_time(SLOW_US + US_PER_S // 5)
        for session in crowd.waiting_to_leave:
            crowd.drain(session)
    held = crowd.waiting_to_leave
    assert len(held) == SLOW_CAP // PIECE
    crowd.pass_time(PATIENCE_US + US_PER_S // 5)
    after = crowd.waiting_to_leave
    assert not set(held) & set(after), "they were cut off"
    assert len(after) == SLOW_CAP // PIECE


def test_a_reader_that_takes_nothing_and_keeps_nobody_waiting_stays() -> None:
    crowd = Crowded()
    (asleep, quick) = crowd.come(100, 101)
    crowd.ask(asleep, 0)
    crowd.take_in()
    crowd.pass_time(6 * PATIENCE_US)
    crowd.ask(quick, 100)
    crowd.drain(quick)
    assert crowd.unsent[asleep] == EACH * PIECE
    assert crowd.got[quick] == EACH * PIECE


def test_readers_that_fill_the_memory_and_keep_nobody_waiting_stay() -> None:
    crowd = Crowded()
    asleep = crowd.come(*range(100, 100 + CAP // PIECE))
    for number, session in enumerate(asleep):
        crowd.ask(session, number, 1)
    assert crowd.waiting_to_leave == asleep
    assert crowd.held_bytes == CAP
    crowd.pass_time(SLOW_US + CROWDED_US)
    assert crowd.waiting_to_leave == asleep


def test_slow_readers_take_the_memory_of_none_that_is_quick() -> None:
    """Each takes its piece just before it would be cut off, and asks for the next."""
    crowd = Crowded()
    slow = crowd.come(*range(100, 140))
    for number, session in enumerate(slow):
        crowd.ask(session, number * EACH, 20)
    for _ in range(3):
        crowd.pass_time(SLOW_US + US_PER_S // 5)
        for session in crowd.waiting_to_leave:
            crowd.drain(session)
    crowd.pass_time(SLOW_US + US_PER_S // 5)
    assert crowd.held_bytes <= SLOW_CAP
    assert not crowd.world.closed
    (quick,) = crowd.come(50)
    crowd.ask(quick, 500, 100)
    while quick in crowd.waiting_to_leave:
        crowd.drain(quick)
    assert crowd.got[quick] == 100 * PIECE, "at no tick and no slow one's mercy"
    # And they come to their end all the same.
    while waiting := crowd.waiting_to_leave:
        crowd.pass_time(SLOW_US + US_PER_S // 5)
        for session in waiting:
            crowd.drain(session)
    assert {crowd.got[session] for session in slow} == {20 * PIECE}


def test_who_takes_a_piece_in_time_again_is_slow_no_more() -> None:
    crowd = Crowded()
    (reader,) = crowd.come(100)
    crowd.ask(reader, 0, 30)
    crowd.pass_time(SLOW_US)
    crowd.drain(reader)
    assert crowd.unsent[reader] == PIECE, "one at a time"
    crowd.drain(reader)
    assert crowd.unsent[reader] == LIMITS.read_window_bytes


def test_what_many_wait_for_counts_once() -> None:
    """All want another part of the same few blocks, and these are in memory once."""
    crowd = Crowded()
    crowd.world.held = deque()
    sessions = crowd.come(*range(100, 300))
    for session in sessions:
        crowd.ask(session, 0, 1)
    while crowd.world.held:
        crowd.world.step()
    assert set(crowd.waiting_to_leave) == set(sessions), "none waits for another to take it"
    assert crowd.held_bytes == PIECE


def test_a_cancelled_manifest_is_in_memory_no_more() -> None:
    """Or a crowd that gave up would leave no room to those who come next."""
    crowd = Crowded()
    crowd.world.held = deque()
    sessions = crowd.come(*range(100, 100 + 300))
    for session in sessions:
        crowd.world.tell(session, ReadManifest(COLUMN.id))
    while crowd.world.held:
        crowd.world.step()
    for session in sessions:
        crowd.world.feed(SessionClosed(crowd.world.now_us, session))
    while crowd.world.held:
        crowd.world.step()
    crowd.world.held = None
    crowd.world.sent.clear()
    (last,) = crowd.come(50)
    crowd.ask(last, 0)
    sent = crowd.take_in()
    assert [type(each.message) for each in sent] == [RangeData] * EACH + [RangesDone]
    assert ManifestData not in [type(each.message) for each in sent]
