"""Who makes lost columns again, in which order, and what counts of it."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

from ckpt.base.ids import CheckpointId, ColumnId, ColumnNumber, Rank, TargetId
from ckpt.format.messages import Message
from ckpt.format.messages.asking import DeleteStep
from ckpt.format.messages.hello import Failed, Role
from ckpt.format.messages.reading import Damage
from ckpt.format.messages.repairs import (
    EndRepair,
    LeaseRepair,
    RenewRepair,
    RepairLeased,
    RepairNoted,
)
from ckpt.format.messages.targets import ReleaseReservation, Reserve, Rot, ScrubReport
from ckpt.protocol.coordinator.catalog import ColumnsMoved
from ckpt.protocol.coordinator.repairing.tasks import (
    LEASE_US,
    LOOK_US,
    NO_ROOM_REST_US,
    REST_US,
    TRIES_MAX,
)
from ckpt.protocol.coordinator.room import RoomSeen
from ckpt.protocol.events import Session
from tests.protocol.coordinated_target import FakeTarget
from tests.protocol.coordinating import RUN, SECOND_US, Bench

LOOK_S = LOOK_US / SECOND_US
AFTER_S = 300
"""As the policy says."""
NOTHING = RepairLeased()


class Worker:
    """One `ckptd repair`."""

    def __init__(self, bench: Bench, name: str = "w") -> None:
        self.bench = bench
        self.name = name
        self.session: Session = bench.session(Role.DRAIN)
        self.leased = NOTHING
        self.read_bytes = 5
        self.question = LeaseRepair(name)

    def lease(self) -> RepairLeased:
        (answer,) = self.bench.tell(self.session, self.question)
        assert isinstance(answer, RepairLeased)
        self.leased = answer
        return answer

    def seal(self) -> None:
        """All that was leased is on its targets."""
        assert self.leased.payload is not None
        for one in self.leased.lost:
            target = self.bench.targets[one.place.target]
            assert one.place.reservation in target.reservations
            target.reservations.discard(one.place.reservation)
            column = ColumnId(self.leased.payload, one.column)
            target.columns[column] = target.proof(column, "2+1", 10_000)

    def renew(self) -> Message:
        assert self.leased.payload is not None
        message = RenewRepair(self.name, self.leased.payload, self.read_bytes)
        (answer,) = self.bench.tell(self.session, message)
        return answer

    def end(self, error: str = "") -> Message:
        assert self.leased.payload is not None
        (answer,) = self.bench.tell(self.session, EndRepair(self.name, self.leased.payload, error))
        return answer

    @property
    def places(self) -> list[TargetId]:
        return [one.place.target for one in self.leased.lost]


def holders(bench: Bench, id: CheckpointId) -> list[FakeTarget]:
    """Of rank 0, by column."""
    checkpoint = bench.machine.checkpoints.get(id)
    assert checkpoint is not None
    assert checkpoint.placement is not None
    return [bench.targets[t] for t in checkpoint.placement[Rank(0)].columns if t is not None]


def missing(bench: Bench, id: CheckpointId) -> int:
    checkpoint = bench.machine.checkpoints.get(id)
    assert checkpoint is not None
    return bench.machine.checkpoints.redundancy(checkpoint).columns_missing


def wipe(bench: Bench, target: FakeTarget) -> None:
    """It comes back without anything."""
    if target.session is not None:
        bench.stop(target.id)
    target.columns.clear()
    target.reboot()
    bench.start(target)
    bench.tick(LOOK_S)


def test_nothing_is_to_do_while_nothing_lacks() -> None:
    bench = Bench()
    bench.save(1)
    assert Worker(bench).lease() == NOTHING


def test_what_a_target_has_lost_is_made_again_and_named() -> None:
    bench = Bench(5)
    id = bench.save(1)
    lost = holders(bench, id)[1]
    wipe(bench, lost)
    worker = Worker(bench)
    leased = worker.lease()
    assert leased.payload is not None
    assert (leased.payload.checkpoint, [one.column for one in leased.lost]) == (id, [1])
    others = {target.id for j, target in enumerate(holders(bench, id)) if j != 1}
    assert not others & set(worker.places)
    worker.seal()
    mark = bench.mark()
    assert worker.renew() == RepairNoted()
    assert worker.end() == RepairNoted(1)
    assert missing(bench, id) == 0
    if worker.places[0] != lost.id:
        assert len(bench.story(mark, ColumnsMoved)) == 1
    assert worker.lease() == NOTHING
    assert bench.machine.repairs.counts.columns == 1


def test_what_is_made_again_in_its_old_place_counts_at_once() -> None:
    """Nothing moves, and the map does not change."""
    bench = Bench(3)
    id = bench.save(1)
    lost = holders(bench, id)[1]
    wipe(bench, lost)
    assert missing(bench, id) == 1
    worker = Worker(bench)
    worker.lease()
    assert worker.places == [lost.id]
    worker.seal()
    mark = bench.mark()
    assert worker.end() == RepairNoted(1)
    assert (missing(bench, id), bench.story(mark, ColumnsMoved)) == (0, [])


def rot(target: FakeTarget, column: ColumnId) -> None:
    """It has read it at rest."""
    id, damage = column.payload.checkpoint, Damage("column", "cells", 0, 4096, "checksum")
    found = Rot(id, damage, column.payload.rank, column.column)
    target.scrub = ScrubReport(rot_count=1, rot=(found,))


def test_what_its_target_found_damaged_is_made_again_elsewhere_and_counts_until_then() -> None:
    bench = Bench(5)
    id = bench.save(1)
    harmed = holders(bench, id)[1]
    (column,) = harmed.columns
    rot(harmed, column)
    bench.tick(LOOK_S)
    assert missing(bench, id) == 0
    worker = Worker(bench)
    assert [one.column for one in worker.lease().lost] == [1]
    assert harmed.id not in worker.places
    bench.tick()
    assert worker.renew() == RepairNoted()
    worker.seal()
    assert worker.end() == RepairNoted(1)
    assert (missing(bench, id), harmed.columns) == (0, {})
    assert holders(bench, id)[1].id == worker.places[0]


def test_who_has_a_copy_that_nobody_named_takes_another_column_where_no_other_place_is() -> None:
    """Else neither would ever go on: the copy stays while its payload lacks a column."""
    bench = Bench(4)
    id = bench.save(1)
    first, second, _ = holders(bench, id)
    bench.stop(first.id)
    bench.tick(AFTER_S + LOOK_S)
    worker = Worker(bench)
    worker.lease()
    worker.seal()
    worker.end()
    bench.stop(second.id)
    bench.tick(AFTER_S + LOOK_S)
    bench.start(first)
    bench.tick(LOOK_S)
    assert len(first.columns) == 1, "its payload lacks a column: the copy stays"
    assert [one.column for one in worker.lease().lost] == [1]
    assert worker.places == [first.id]
    worker.seal()
    assert worker.end() == RepairNoted(1)
    bench.tick()
    assert missing(bench, id) == 0
    assert [column.column for column in first.columns] == [1], "the copy has gone"


def test_who_is_away_is_waited_for_unless_nothing_more_may_be_lost() -> None:
    bench = Bench(7, "2+2")
    id = bench.save(1)
    first, second, *_ = holders(bench, id)
    bench.stop(first.id)
    bench.tick(AFTER_S - 20)
    assert Worker(bench).lease() == NOTHING
    bench.stop(second.id)
    bench.tick(20)
    worker = Worker(bench)
    assert [one.column for one in worker.lease().lost] == [0, 1], "it survives nothing any more"


def test_who_is_away_for_long_is_not_waited_for() -> None:
    bench = Bench(7, "2+2")
    id = bench.save(1)
    away = holders(bench, id)[3]
    bench.stop(away.id)
    bench.tick(AFTER_S + LOOK_S)
    worker = Worker(bench)
    worker.lease()
    worker.seal()
    assert worker.end() == RepairNoted(1)
    assert missing(bench, id) == 0
    bench.start(away)
    assert away.columns == {}, "all is there without it"


def test_a_lease_that_is_asked_for_again_is_the_same_and_another_worker_gets_another() -> None:
    bench = Bench(5)
    ids = [bench.save(step) for step in (1, 2)]
    common = next(t for t in bench.targets.values() if len(t.columns) == 2)
    wipe(bench, common)
    one, other = Worker(bench, "one"), Worker(bench, "other")
    leased = one.lease()
    assert one.lease() == leased
    assert other.lease().payload not in (None, leased.payload)
    assert Worker(bench, "third").lease() == NOTHING
    assert leased.payload is not None
    assert leased.payload.checkpoint == ids[1], "the newest comes first"


def test_what_can_lose_least_comes_first() -> None:
    bench = Bench(16, "2+2")
    old, new = bench.save(1), bench.save(2)
    of_old = [t for t in holders(bench, old) if t not in holders(bench, new)]
    of_new = [t for t in holders(bench, new) if t not in holders(bench, old)]
    for target in (*of_old[:2], of_new[0]):
        wipe(bench, target)
    worker = Worker(bench)
    leased = worker.lease()
    assert leased.payload is not None
    assert (leased.payload.checkpoint, len(leased.lost)) == (old, 2)


@pytest.mark.parametrize("how", ["left", "silent", "failed"])
def test_a_task_that_ends_gives_its_space_back_and_is_tried_again_later(how: str) -> None:
    bench = Bench(5)
    id = bench.save(1)
    wipe(bench, holders(bench, id)[1])
    worker = Worker(bench)
    (place,) = [one.place for one in worker.lease().lost]
    mark = bench.mark()
    match how:
        case "left":
            bench.close(worker.session)
        case "silent":
            bench.tick(LEASE_US / SECOND_US)
        case "failed":
            assert worker.end("the disk is on fire") == RepairNoted()
    released = [each.reservation for each in bench.sent(ReleaseReservation, mark)]
    assert released == [place.reservation]
    again = Worker(bench, "again")
    assert again.lease() == NOTHING
    bench.tick(REST_US / SECOND_US + LOOK_S)
    assert again.lease().payload is not None
    if how == "silent":
        late = worker.renew()
        assert isinstance(late, Failed)
        assert late.code == "fenced"


def test_what_a_worker_made_before_it_died_counts() -> None:
    bench = Bench(5)
    id = bench.save(1)
    wipe(bench, holders(bench, id)[1])
    worker = Worker(bench)
    worker.lease()
    worker.seal()
    bench.close(worker.session)
    assert missing(bench, id) == 0
    assert bench.machine.repairs.counts.problems == {}


def test_space_for_what_was_there_already_goes_back() -> None:
    """A worker of an earlier coordinator sealed it, under the space that it had then."""
    bench = Bench()
    id = bench.save(1)
    wipe(bench, holders(bench, id)[0])
    worker = Worker(bench)
    leased = worker.lease()
    assert leased.payload is not None
    (lost,) = leased.lost
    target = bench.targets[lost.place.target]
    column = ColumnId(leased.payload, lost.column)
    target.columns[column] = target.proof(column, "2+1", 10_000)
    worker.end()
    assert missing(bench, id) == 0
    assert lost.place.reservation not in target.reservations


def test_the_word_of_a_worker_counts_nothing() -> None:
    bench = Bench(5)
    id = bench.save(1)
    wipe(bench, holders(bench, id)[1])
    worker = Worker(bench)
    worker.lease()
    assert worker.end() == RepairNoted(0)
    assert missing(bench, id) == 1


def test_a_target_that_comes_back_ends_the_task() -> None:
    bench = Bench(7, "2+2")
    id = bench.save(1)
    away = holders(bench, id)[3]
    bench.stop(away.id)
    bench.tick(AFTER_S + LOOK_S)
    worker = Worker(bench)
    worker.lease()
    bench.start(away)
    bench.tick()
    answer = worker.renew()
    assert isinstance(answer, Failed)
    assert answer.code == "fenced"
    assert not any(target.reservations for target in bench.targets.values() if id)
    assert bench.machine.repairs.counts.failed == 0


@pytest.mark.parametrize("unfinished", [False, True])
def test_what_is_deleted_is_not_made_again(unfinished: bool) -> None:
    """Also while one that is away keeps the deletion from its end."""
    bench = Bench(7, "2+2")
    id = bench.save(1)
    first, second, *_ = holders(bench, id)
    if unfinished:
        bench.stop(first.id)
    wipe(bench, second)
    worker = Worker(bench)
    worker.lease()
    bench.tell(bench.session(Role.ADMIN), DeleteStep(RUN, id.step))
    bench.tick()
    assert (bench.machine.checkpoints.get(id) is not None) is unfinished
    answer = worker.renew()
    assert isinstance(answer, Failed)
    assert worker.lease() == NOTHING
    bench.tick(2 * REST_US / SECOND_US)
    assert worker.lease() == NOTHING


def test_without_room_it_is_left_alone_and_says_why() -> None:
    bench = Bench(4)
    id = bench.save(1)
    lost = holders(bench, id)[1]
    for target in bench.targets.values():
        target.refuses[Reserve] = Failed("no_space", "the device is full")
    wipe(bench, lost)
    assert Worker(bench).lease() == NOTHING
    ((payload, why),) = bench.machine.repairs.counts.problems.items()
    assert (payload.checkpoint, why[:11]) == (id, "no room on ")
    for target in bench.targets.values():
        del target.refuses[Reserve]
    bench.tick(NO_ROOM_REST_US / SECOND_US + LOOK_S)
    assert Worker(bench).lease().payload is not None


def test_nobody_hears_of_the_problems_of_what_is_gone() -> None:
    bench = Bench(4)
    id = bench.save(1)
    for target in bench.targets.values():
        target.refuses[Reserve] = Failed("no_space", "the device is full")
    wipe(bench, holders(bench, id)[1])
    Worker(bench).lease()
    assert len(bench.machine.repairs.counts.problems) == 1
    bench.tell(bench.session(Role.ADMIN), DeleteStep(RUN, id.step))
    bench.tick(LOOK_S)
    assert Worker(bench).lease() == NOTHING
    assert bench.machine.repairs.counts.problems == {}


def test_what_finds_no_place_stands_in_nobodys_way() -> None:
    """Two targets on one host that may hold one column: what is theirs has no other place."""
    bench = Bench(4, "2+1")
    ids = [bench.save(step) for step in range(1, 41)]
    for target in bench.targets.values():
        target.refuses[Reserve] = Failed("no_space", "the device is full")
    lost = bench.targets[TargetId("t0")]
    wipe(bench, lost)
    lacking = sum(missing(bench, id) for id in ids)
    worker = Worker(bench)
    assert worker.lease() == NOTHING
    assert len(bench.machine.repairs.counts.problems) == min(lacking, TRIES_MAX)
    for target in bench.targets.values():
        del target.refuses[Reserve]
    if lacking > TRIES_MAX:
        assert worker.lease().payload is not None


def test_nothing_is_made_again_where_that_is_not_wanted() -> None:
    bench = Bench(5)
    bench.policy = dataclasses.replace(bench.policy, rebuild_after_us=None)
    bench.restart(*bench.targets)
    id = bench.save(1)
    wipe(bench, holders(bench, id)[1])
    bench.tick(AFTER_S)
    assert Worker(bench).lease() == NOTHING
    assert missing(bench, id) == 1
    assert bench.machine.repairs.documents.copied == 0


def test_a_full_catalog_gives_nothing_out() -> None:
    bench = Bench(5)
    id = bench.save(1)
    wipe(bench, holders(bench, id)[1])
    bench.feed(RoomSeen(bench.now_us, "etcd says so", "make room"))
    worker = Worker(bench)
    assert worker.lease() == NOTHING
    bench.feed(RoomSeen(bench.now_us))
    bench.tick(LOOK_S)
    assert worker.lease().payload is not None


def test_what_cannot_be_read_any_more_is_no_repair() -> None:
    bench = Bench(5)
    id = bench.save(1)
    for target in holders(bench, id)[:2]:
        wipe(bench, target)
    assert Worker(bench).lease() == NOTHING


def test_it_goes_on_after_a_start_of_the_coordinator() -> None:
    bench = Bench(5)
    id = bench.save(1)
    lost = holders(bench, id)[1]
    wipe(bench, lost)
    Worker(bench).lease()
    bench.restart(*bench.targets)
    bench.tick(LOOK_S)
    worker = Worker(bench)
    assert [one.column for one in worker.lease().lost] == [ColumnNumber(1)]


def test_what_found_no_place_is_tried_soon_when_the_map_has_changed() -> None:
    bench = Bench(4)
    id = bench.save(1)
    lost = holders(bench, id)[1]
    others = [target for target in bench.targets.values() if target not in holders(bench, id)]
    bench.stop(*(target.id for target in others))
    lost.capacity_bytes = 0
    wipe(bench, lost)
    worker = Worker(bench)
    assert worker.lease() == NOTHING
    assert list(bench.machine.repairs.counts.problems.values()) == [f"no room on {lost.id}"]
    for target in others:
        bench.start(target)
    bench.tick(REST_US / SECOND_US + LOOK_S)
    assert worker.lease() != NOTHING
    assert worker.places == [others[0].id]


def test_ranks_of_one_checkpoint_do_not_wait_until_another_is_named() -> None:
    bench = Bench(5)
    id = bench.save(1, world_size=3)
    checkpoint = bench.machine.checkpoints.get(id)
    assert checkpoint is not None
    assert checkpoint.placement is not None
    named = Counter(t for placed in checkpoint.placement.values() for t in placed.columns if t)
    ((most, _),) = named.most_common(1)
    lost = bench.targets[most]
    having = [rank for rank, placed in checkpoint.placement.items() if most in placed.columns]
    wipe(bench, lost)
    worker = Worker(bench)
    bench.persist_at_once = False
    made: list[Rank] = []
    while worker.lease() != NOTHING:
        assert worker.leased.payload is not None
        made.append(worker.leased.payload.rank)
        worker.seal()
        worker.end()
    assert sorted(made) == having
    assert len(having) > 1
