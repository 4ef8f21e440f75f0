"""Who gets how much credit, and when: tables of grants, in cells, to senders that send at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import pytest

from ckpt.base.ids import CheckpointId, Generation, RunName, Step
from ckpt.base.limits import BEAT_US, PAGE_BYTES
from ckpt.format.messages.writing import (
    AbandonColumn,
    AskPace,
    ColumnAccepted,
    CreditGranted,
    TargetPace,
)
from ckpt.protocol.events import Ticked
from ckpt.protocol.service_time import MEMORY_US
from ckpt.protocol.target.core import TargetLimits
from ckpt.protocol.target.credit import DORMANT_US
from tests.protocol.target_world import CHECKPOINT, CODE, WRITER, Column, TargetWorld, reserve

CELL = PAGE_BYTES
OTHER = CheckpointId(RunName("other"), Step(8), Generation(1, 5))


class Wish(NamedTuple):
    """A column of so many fragments, each of so many cells."""

    stripes: int
    cells: int = 1
    of: CheckpointId = CHECKPOINT

    def column(self, rank: int) -> Column:
        cell_bytes = self.cells * CELL
        payload_bytes = self.stripes * cell_bytes * CODE.k
        return Column(payload_bytes, cell_bytes=cell_bytes, checkpoint=self.of, rank=rank)


class Senders:
    """Each has a column, by its place among them, and says only what it may."""

    def __init__(self, wishes: Sequence[Wish | Column], *, pool: int, stream: int) -> None:
        """So many cells for all, and for one."""
        limits = TargetLimits(stream_credit_bytes=stream * CELL, credit_pool_bytes=pool * CELL)
        self.world = TargetWorld(limits=limits)
        self.columns = list[Column]()
        self.cells = list[int]()
        """What each may send now."""
        self.sent = list[int]()
        self.turns = list[tuple[int, int]]()
        """Who was granted how many cells, in order."""
        for each in wishes:
            self.begin(each)

    def begin(self, wish: Wish | Column) -> list[tuple[int, int]]:
        """One more."""
        number = len(self.columns)
        column = wish.column(number) if isinstance(wish, Wish) else wish
        self.columns.append(column)
        self.cells.append(0)
        self.sent.append(0)
        # Its file is made at once also where writes are held.
        held, self.world.held = self.world.held, None
        reserve(self.world, column, number + 1)
        self.world.held = held
        self.world.tell(WRITER, column.begin(number + 1), request=number)
        return self.take_in()

    def take_in(self) -> list[tuple[int, int]]:
        """What was granted since the last time."""
        granted = []
        for each in self.world.sent:
            if isinstance(each.message, ColumnAccepted | CreditGranted):
                cells, rest = divmod(each.message.credit_bytes, CELL)
                assert rest == 0
                if cells:
                    self.cells[each.request] += cells
                    granted.append((each.request, cells))
        self.world.sent.clear()
        self.turns += granted
        return granted

    def send(self, number: int) -> list[tuple[int, int]]:
        """Its next fragment; what is granted then."""
        message, cell = self.columns[number].fragment(self.sent[number])
        self.sent[number] += 1
        self.cells[number] -= -(-len(cell) // CELL)
        self.world.tell(WRITER, message, cell, request=number)
        return self.take_in()

    def may_send(self, number: int) -> bool:
        cells = self.columns[number].layout.cell_bytes // CELL
        return self.cells[number] >= cells and self.left(number) > 0

    def tick(self, us: int) -> list[tuple[int, int]]:
        self.world.now_us += us
        self.world.feed(Ticked(self.world.now_us))
        return self.take_in()

    def leave(self, number: int) -> list[tuple[int, int]]:
        self.world.tell(WRITER, AbandonColumn(), request=number)
        return self.take_in()

    def hold_writes(self) -> None:
        """From now on, until `write` is called for each."""
        self.world.held = deque()

    def write(self) -> list[tuple[int, int]]:
        """End the oldest write that is held."""
        self.world.step()
        return self.take_in()

    def left(self, number: int) -> int:
        return self.columns[number].layout.stripe_count - self.sent[number]

    def send_all(self) -> list[int]:
        """Who could first sends first, one fragment; in which order they sent."""
        order = list[int]()
        waiting = deque(number for number in range(len(self.columns)) if self.may_send(number))
        while waiting:
            number = waiting.popleft()
            order.append(number)
            others = [each for each, _ in self.send(number) if each != number]
            waiting += [each for each in others if each not in waiting]
            if self.may_send(number):
                waiting.append(number)
        assert [self.left(number) for number in range(len(self.columns))] == [0] * len(self.columns)
        return order


@pytest.mark.parametrize("of", [CHECKPOINT, OTHER], ids=["its own save", "another save"])
def test_larger_cells_have_their_turn_among_smaller_ones(of: CheckpointId) -> None:
    """A stream of the other run's had its first credit when all of them had ended: one small cell
    was free at a time, and a small cell went there.
    """
    large = 8
    columns = [*[Wish(16)] * large, Wish(8, 2, of)]
    order = Senders(columns, pool=6, stream=4).send_all()
    assert order.index(large) < 2 * len(columns)
    gaps = [at for at, number in enumerate(order) if number == large]
    assert max(after - before for before, after in pairwise(gaps)) <= 2 * len(columns)


def test_who_comes_takes_nothing_of_what_is_saved_up() -> None:
    """Columns of one fragment come all the time."""
    senders = Senders([*[Wish(16)] * 3, Wish(8, 2, OTHER)], pool=3, stream=1)
    assert senders.send(0) == []
    assert senders.begin(Wish(1, 1, OTHER)) == []
    assert senders.send(1) == [(3, 2)]


def test_what_is_saved_up_comes_also_from_senders_that_stopped() -> None:
    senders = Senders([*[Wish(16)] * 3, Wish(8, 2, OTHER)], pool=3, stream=1)
    assert senders.turns == [(0, 1), (1, 1), (2, 1)]
    assert senders.send(0) == [], "its own next cell would be free; the others' turn is first"
    assert senders.tick(DORMANT_US)[0] == (3, 2)


@pytest.mark.parametrize(
    ("streams", "pool", "stream", "share"),
    [
        (1, 16, 8, 8),
        (1, 8, 16, 8),
        (2, 16, 8, 8),
        (4, 16, 8, 4),
        (5, 16, 8, 3),
        (16, 16, 8, 1),
        (24, 16, 8, 1),
    ],
)
def test_nobody_is_granted_more_than_its_share(
    streams: int, pool: int, stream: int, share: int
) -> None:
    """Also not the one that sends all it may before anybody else; and each gets as much."""
    senders = Senders([Wish(40)] * streams, pool=pool, stream=stream)
    most = [0] * streams
    while min(map(senders.left, range(streams))) > pool:
        for number in range(streams):
            while senders.may_send(number) and senders.left(number) > 1:
                for each, _ in senders.send(number):
                    most[each] = max(most[each], senders.cells[each])
    assert most == [share] * streams


def test_the_share_grows_when_others_have_sent_all() -> None:
    """Before they are sealed: nothing more comes of them."""
    senders = Senders([Wish(40), Wish(1)], pool=4, stream=4)
    assert senders.turns == [(0, 2), (1, 1)]
    assert senders.send(1) == []
    assert senders.send(0) == [(0, 3)]
    assert senders.cells[0] == 4


def test_a_stream_has_no_credit_left_when_all_of_it_came() -> None:
    """Its last fragment is half a cell; it is not sealed: the other half is the others'."""
    half = Column(CELL * CODE.k, cell_bytes=2 * CELL, rank=7)
    assert half.layout.cell_bytes_of(0) == CELL
    senders = Senders([half, Wish(2, 2)], pool=2, stream=2)
    assert senders.turns == [(0, 2)]
    assert senders.send(0) == [(1, 2)]


def test_most_left_comes_first_and_of_equals_who_waits_longest() -> None:
    """So the ranks of a save finish together."""
    senders = Senders([Wish(2), Wish(1), Wish(4), Wish(3)], pool=1, stream=1)
    assert senders.send_all() == [0, 2, 3, 2, 3, 2, 1, 0, 3, 2]


def test_who_comes_is_granted_half_of_what_is_free() -> None:
    """The rest is for those that come next."""
    senders = Senders([Wish(40)] * 6, pool=16, stream=16)
    assert senders.turns == [(0, 8), (1, 4), (2, 2), (3, 1), (4, 1)]


def test_nobody_is_granted_more_than_it_has_to_send() -> None:
    senders = Senders([Wish(3), Wish(40)], pool=16, stream=8)
    assert senders.turns == [(0, 3), (1, 6)]
    assert senders.send(0) == []


def test_what_is_freed_is_granted_in_parts_of_half_a_share() -> None:
    """Else each fragment would be answered by a grant."""
    senders = Senders([Wish(40)], pool=8, stream=8)
    assert senders.turns == [(0, 4)]
    grants = [senders.send(0) for _ in range(16)]
    # The first of 8 - 3; then as soon as half of it is used.
    assert grants == [[(0, 5)], *([[], [], [], [(0, 4)]] * 3), [], [], []]


def test_it_is_so_again_when_another_has_waited_and_gone() -> None:
    senders = Senders([Wish(80)], pool=8, stream=8)
    assert senders.send(0) == [(0, 5)]
    assert senders.begin(Wish(8, 1, OTHER)) == []
    assert senders.leave(1) == []
    assert [senders.send(0) for _ in range(4)] == [[], [], [], [(0, 4)]]


def at_the_disk() -> Senders:
    """The first came alone; half of what it has to send is at a disk that writes nothing yet."""
    senders = Senders([Wish(10)], pool=4, stream=4)
    senders.send(0)
    senders.hold_writes()
    for _ in range(4):
        senders.send(0)
    assert (senders.cells, senders.left(0)) == ([0], 5)
    return senders


def test_who_has_its_share_at_the_disk_keeps_nobody_waiting() -> None:
    """It is the first in turn, since it has most left."""
    senders = at_the_disk()
    assert [senders.begin(Wish(3)) for _ in range(2)] == [[], []]
    assert senders.write() == [(1, 1)]
    assert [senders.write() for _ in range(3)] == [[(2, 1)], [], [(0, 1)]], "nor is it forgotten"


def test_who_waits_keeps_its_turn_as_its_writes_end() -> None:
    senders = at_the_disk()
    for _ in range(3):
        senders.begin(Wish(8))
    assert senders.write() == [(1, 1)], "and the first waits now"
    assert senders.begin(Wish(5)) == [], "as much as the first has left"
    assert [senders.write() for _ in range(3)] == [[(2, 1)], [(3, 1)], [(0, 1)]]


def test_a_column_without_a_byte_keeps_nobody_waiting() -> None:
    senders = Senders([Wish(0, 1, OTHER), *[Wish(4)] * 3], pool=1, stream=1)
    assert sorted(senders.send_all()) == [1] * 4 + [2] * 4 + [3] * 4


def test_cells_that_the_pool_can_never_hold_keep_nobody_waiting() -> None:
    senders = Senders([Wish(4), Wish(4), Wish(40, 2)], pool=1, stream=1)
    assert senders.send(0) == [(1, 1)]
    assert senders.send(1) == [(0, 1)]


def test_who_waits_and_leaves_is_granted_nothing() -> None:
    senders = Senders([*[Wish(8)] * 3], pool=2, stream=1)
    assert senders.leave(2) == []
    assert senders.send(0) == [(0, 1)]


def test_who_leaves_parts_the_pool_no_more() -> None:
    senders = Senders([Wish(40), Wish(40)], pool=8, stream=8)
    assert senders.turns == [(0, 4), (1, 2)]
    senders.leave(1)
    assert senders.send(0) == [(0, 5)]


def test_who_leaves_while_the_disk_has_its_bytes_is_granted_nothing() -> None:
    senders = Senders([Wish(40)], pool=4, stream=4)
    senders.hold_writes()
    senders.send(0)
    senders.leave(0)
    senders.world.now_us += BEAT_US
    senders.world.feed(Ticked(senders.world.now_us))
    assert senders.world.messages(WRITER) == []
    assert senders.write() == []


def idle() -> Senders:
    """The first has all that there is, and the second waits."""
    senders = Senders([Wish(40)], pool=4, stream=4)
    assert senders.send(0) == [(0, 3)]
    assert senders.begin(Wish(40)) == []
    return senders


def test_who_moves_now_and_then_keeps_what_it_has() -> None:
    senders = idle()
    senders.begin(Wish(40))
    assert senders.tick(DORMANT_US - 1) == []
    assert senders.send(0) == [(1, 1)]
    assert senders.tick(DORMANT_US - 1) == []
    assert senders.tick(1) == [(2, 1)]


def test_who_waits_for_the_disk_keeps_what_it_has() -> None:
    senders = idle()
    senders.hold_writes()
    senders.send(0)
    assert senders.tick(DORMANT_US) == []


def test_nothing_is_lent_while_nobody_waits() -> None:
    senders = Senders([Wish(40)], pool=8, stream=8)
    senders.tick(DORMANT_US)
    assert senders.begin(Wish(40)) == [(1, 2)]


def test_what_was_lent_is_used_and_what_came_later_is_lent_as_well() -> None:
    senders = idle()
    assert senders.tick(DORMANT_US) == [(1, 2)]
    assert senders.send(0) == [(0, 2)], "its share, beside what it was granted before"
    assert senders.begin(Wish(40)) == []
    assert senders.tick(DORMANT_US) == [(2, 1)]


def test_who_leaves_returns_nothing_that_was_lent() -> None:
    senders = idle()
    assert senders.tick(DORMANT_US) == [(1, 2)]
    assert senders.leave(0) == []
    assert senders.begin(Wish(40)) == [(2, 1)], "half of what is free"


def pace_of(senders: Senders) -> TargetPace | None:
    senders.world.messages(WRITER)
    senders.world.tell(WRITER, AskPace(), request=99)
    (answer,) = senders.world.messages(WRITER)
    assert isinstance(answer, CreditGranted)
    return answer.pace


def test_all_who_wait_are_counted() -> None:
    senders = Senders([*[Wish(8)] * 4, *[Wish(8, 1, OTHER)] * 2], pool=1, stream=1)
    assert pace_of(senders) == TargetPace(0, 0, waiting_count=5)


def test_what_the_disk_took_long_ago_is_forgotten() -> None:
    senders = Senders([Wish(8)], pool=8, stream=8)
    senders.hold_writes()
    senders.send(0)
    for _ in range(10):
        senders.tick(MEMORY_US // 10)
    senders.write()
    pace = pace_of(senders)
    assert pace is not None
    assert pace.write_us == MEMORY_US
    for _ in range(4):
        senders.tick(MEMORY_US)
    assert pace_of(senders) is None


def test_who_was_answered_just_now_hears_nothing_more() -> None:
    """Nor is a beat missing after it."""
    senders = Senders([Wish(8), Wish(8)], pool=1, stream=1)
    senders.world.now_us += BEAT_US - 1
    senders.world.tell(WRITER, AskPace(), request=1)
    senders.world.messages(WRITER)
    senders.world.now_us += 1
    senders.world.feed(Ticked(senders.world.now_us))
    assert senders.world.messages(WRITER) == []
    senders.world.now_us += BEAT_US - 1
    senders.world.feed(Ticked(senders.world.now_us))
    assert len(senders.world.messages(WRITER)) == 1
