"""Columns go from full targets to empty ones: as tasks of repair, after all else, until no move
helps.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ckpt.base.ids import ColumnId, Step, TargetId
from ckpt.format.messages import Message
from ckpt.format.messages.asking import DeleteStep
from ckpt.format.messages.balancing import BalanceTargets, TargetsBalanced
from ckpt.format.messages.hello import Failed, Role
from ckpt.format.messages.loading import ReleasePin, Resolve, Resolved
from ckpt.format.messages.reading import Damage
from ckpt.format.messages.repairs import SetRepair
from ckpt.format.messages.targets import DropColumn, Rot, ScrubReport
from ckpt.protocol.coordinator.catalog import ColumnsMoved
from ckpt.protocol.coordinator.cluster.membership import GATHERING_US
from ckpt.protocol.coordinator.policy import CoordinatorPolicy
from ckpt.protocol.coordinator.repairing.balancing import IDLE_MAX, LOOK_US, SETTLE_US
from tests.protocol.coordinated_target import COLUMN_BYTES, FakeTarget
from tests.protocol.coordinating import RUN, SECOND_US, Bench
from tests.protocol.test_coordinator_repairing import LOOK_S, NOTHING, Worker, holders, missing
from tests.protocol.test_coordinator_standings import change, done

GATHERING_S = GATHERING_US / SECOND_US
ROOM: int = 20
"""Columns that a target may have."""
PLAN_S = LOOK_US / SECOND_US
SETTLE_S = SETTLE_US / SECOND_US


class Uneven:
    """Three targets with eight columns each, and an empty one."""

    def __init__(self, count: int = 8, **policy: object) -> None:
        self.bench = bench = Bench(4)
        bench.policy = CoordinatorPolicy(
            bench.policy.cluster, bench.policy.code, **policy  # type: ignore[arg-type]
        )  # fmt: skip
        bench.restart(*bench.targets)
        self.empty = bench.targets[TargetId("t3")]
        bench.stop("t3")
        self.ids = [bench.save(step) for step in range(1, count + 1)]
        for target in bench.targets.values():
            target.capacity_bytes = ROOM * COLUMN_BYTES
        bench.start("t3")
        self.tick(2)
        self.worker = Worker(bench)

    def tick(self, seconds: float) -> None:
        """Each second the targets say what they have."""
        for _ in range(round(seconds)):
            for target in self.bench.targets.values():
                used = COLUMN_BYTES * len(target.columns)
                target.counters = {
                    "usable_bytes": ROOM * COLUMN_BYTES, "device_used_bytes": used,
                }  # fmt: skip
            self.bench.tick(1)

    def say(self, **what: bool) -> Message:
        (answer,) = self.bench.tell(self.bench.session(Role.ADMIN), BalanceTargets(**what))
        return answer

    def told(self, **what: bool) -> TargetsBalanced:
        answer = self.say(**what)
        assert isinstance(answer, TargetsBalanced), answer
        return answer

    def move(self, worker: Worker | None = None) -> bool:
        """One payload, by a worker."""
        worker = worker or self.worker
        if worker.lease() == NOTHING:
            return False
        worker.seal()
        worker.end()
        self.tick(1)
        return True

    def settle(self) -> None:
        """Whatever is planned moves, plan after plan."""
        for _ in range(20):
            self.tick(SETTLE_S + PLAN_S + LOOK_S + 1)
            moved = True
            while moved:
                moved = self.move()

    @property
    def counts(self) -> list[int]:
        return [len(target.columns) for target in self.bench.targets.values()]

    @property
    def is_asked(self) -> bool:
        return self.bench.machine.repairs.balancer.is_asked


def refused(answer: Message, *words: str) -> None:
    assert isinstance(answer, Failed)
    assert all(word in answer.message + answer.hint for word in words), answer


# ----------------------------------------------------------------------- what people say


def test_what_is_asked_for_moves_until_all_are_about_as_full_and_ends() -> None:
    uneven = Uneven()
    assert uneven.counts == [8, 8, 8, 0]
    told = uneven.told()
    assert (told.running, told.columns_moved) == (True, 0)
    assert told.bytes_left == 6 * COLUMN_BYTES
    assert told.devices[-1].targets == ("t3",)
    uneven.settle()
    assert uneven.counts == [6, 6, 6, 6]
    assert not uneven.is_asked
    assert all(missing(uneven.bench, id) == 0 for id in uneven.ids)
    assert uneven.worker.lease() == NOTHING
    refused(uneven.say(), "nothing is moved for less than 5%", "ckpt target ls")


def test_a_dry_run_begins_nothing() -> None:
    uneven = Uneven()
    told = uneven.told(dry_run=True)
    assert (told.running, told.bytes_left) == (False, 6 * COLUMN_BYTES)
    uneven.tick(60)
    assert uneven.worker.lease() == NOTHING


def test_said_again_while_it_goes_on_it_tells_how_far_it_is() -> None:
    uneven = Uneven()
    uneven.told()
    uneven.tick(LOOK_S + 1)
    assert uneven.move()
    uneven.tick(1)
    told = uneven.told()
    assert (told.running, told.columns_moved, told.bytes_moved) == (True, 1, COLUMN_BYTES)
    view = uneven.bench.ask("repair")
    assert isinstance(view, dict)
    assert view["balance"]["asked"]
    assert view["balance"]["columns_moved"] == 1
    assert view["balance"]["columns_left"] == view["columns_due"] == 5


def test_what_is_stopped_leaves_the_rest_where_it_is() -> None:
    uneven = Uneven()
    uneven.told()
    uneven.tick(LOOK_S + 1)
    assert uneven.move()
    uneven.worker.lease()
    told = uneven.told(stop=True)
    assert not told.running
    uneven.tick(60)
    assert sorted(uneven.counts) == [1, 7, 8, 8]
    assert uneven.worker.lease() == NOTHING
    assert not uneven.told(stop=True).running


def test_one_device_alone_has_nothing_to_give_to() -> None:
    uneven = Uneven()
    for target in uneven.bench.targets.values():
        uneven.bench.stop(target.id)
        target.domain = "p/r/h/d"
        uneven.bench.start(target)
    uneven.tick(2)
    refused(uneven.say(), "all targets lie on p/r/h/d", "ckpt target add")


def test_a_target_that_is_out_is_no_place_that_things_could_go_to() -> None:
    """It was named as the empty one, and counted in what there would be to move."""
    uneven = Uneven()
    change(uneven.bench, "t3", "out")
    refused(uneven.say(), "p/r/h0/d0 40%: nothing is moved for less than 5%")
    change(uneven.bench, "t3", "in")
    assert uneven.told(dry_run=True).bytes_left == 6 * COLUMN_BYTES


def test_nothing_goes_to_a_device_that_takes_no_more_files() -> None:
    uneven = Uneven()
    uneven.empty.counters = {**uneven.empty.counters, "inodes_out": 1}
    uneven.bench.tick(1)
    refused(uneven.say(), "nothing is moved", "nor what another device may not take")
    uneven.tick(1)
    assert uneven.told(dry_run=True).bytes_left == 6 * COLUMN_BYTES


def test_where_nothing_is_made_again_nothing_moves() -> None:
    uneven = Uneven(rebuild_after_us=None)
    refused(uneven.say(), "repair = false", "repair = true")


def test_while_an_upgrade_is_not_finished_nothing_moves() -> None:
    bench = Bench(4, protocol=2)
    (answer,) = bench.tell(bench.session(Role.ADMIN), BalanceTargets())
    refused(answer, "upgrade")


def test_the_next_coordinator_goes_on_with_what_was_asked_for() -> None:
    uneven = Uneven()
    uneven.told()
    uneven.tick(LOOK_S + 1)
    uneven.worker.lease()
    uneven.worker.seal()
    uneven.bench.restart(*uneven.bench.targets)
    uneven.worker = Worker(uneven.bench)
    uneven.tick(3)
    assert uneven.is_asked
    assert uneven.counts == [8, 8, 8, 0], "the copy that nobody had named went"
    uneven.settle()
    assert not uneven.is_asked
    assert uneven.counts == [6, 6, 6, 6]
    uneven.bench.restart(*uneven.bench.targets)
    assert not uneven.is_asked, "it has ended, durably"


def test_who_has_just_begun_does_not_end_it_before_all_is_known() -> None:
    """No move helps while targets are away and indexes were not read."""
    uneven = Uneven()
    uneven.told()
    uneven.bench.restart()
    uneven.tick(GATHERING_S - 1)
    assert uneven.is_asked
    for id in uneven.bench.targets:
        uneven.bench.start(id)
    uneven.worker = Worker(uneven.bench)
    uneven.settle()
    assert uneven.counts == [6, 6, 6, 6]


def test_what_is_stopped_is_not_begun_by_the_next_coordinator() -> None:
    uneven = Uneven()
    uneven.told()
    uneven.told(stop=True)
    uneven.bench.restart(*uneven.bench.targets)
    assert not uneven.is_asked


@pytest.mark.parametrize("stop", [False, True])
def test_the_answer_waits_for_the_catalog(stop: bool) -> None:
    uneven = Uneven()
    if stop:
        uneven.told()
    operator = uneven.bench.session(Role.ADMIN)
    uneven.bench.persist_at_once = False
    assert uneven.bench.tell(operator, BalanceTargets(stop=stop)) == []
    mark = uneven.bench.mark()
    uneven.bench.sync()
    (answer,) = uneven.bench.sent(TargetsBalanced, mark)
    assert answer.running != stop


# ----------------------------------------------------------------------- by itself


def test_what_is_too_full_sheds_columns_until_it_is_below_the_mark() -> None:
    uneven = Uneven(18, balance_above=0.80)
    uneven.settle()
    assert uneven.counts == [16, 16, 16, 6]
    assert not uneven.is_asked


@pytest.mark.parametrize("above", [None, 0.95])
def test_what_is_not_too_full_sheds_nothing(above: float | None) -> None:
    uneven = Uneven(18, balance_above=above)
    uneven.settle()
    assert uneven.counts == [18, 18, 18, 0]


# ----------------------------------------------------------------------- as a task of repair


def test_a_copy_is_named_before_the_old_one_goes() -> None:
    uneven = Uneven()
    uneven.told()
    uneven.tick(LOOK_S + 1)
    leased = uneven.worker.lease()
    assert leased.payload is not None
    (one,) = leased.lost
    assert one.place.target == "t3"
    assert one.alone == (one.column < 2), "data is read where it is"
    source = holders(uneven.bench, leased.payload.checkpoint)[one.column]
    uneven.worker.seal()
    uneven.bench.persist_at_once = False
    mark = uneven.bench.mark()
    uneven.worker.end()
    uneven.tick(2)
    assert uneven.bench.sent(DropColumn, mark) == []
    uneven.bench.sync()
    story = uneven.bench.story(mark, ColumnsMoved, DropColumn)
    assert [type(told) for told in story] == [ColumnsMoved, DropColumn]
    assert ColumnId(leased.payload, one.column) not in source.columns


def test_what_somebody_reads_keeps_its_old_place_and_is_not_moved_for_twice() -> None:
    uneven = Uneven()
    reader = uneven.bench.session()
    pins = []
    for step in range(1, 9):
        (found,) = uneven.bench.tell(reader, Resolve(RUN, Step(step)))
        assert isinstance(found, Resolved)
        pins.append(found.pin)
    uneven.told()
    uneven.settle()
    assert uneven.counts == [8, 8, 8, 6], "the copies are there, and the old ones too"
    assert not uneven.is_asked
    for pin in pins:
        uneven.bench.tell(reader, ReleasePin(pin))
    uneven.tick(5)
    assert uneven.counts == [6, 6, 6, 6]


def test_what_is_lost_is_made_again_before_anything_moves() -> None:
    uneven = Uneven()
    uneven.told()
    uneven.tick(1)
    id = uneven.ids[0]
    lost = holders(uneven.bench, id)[0]
    column = next(c for c in lost.columns if c.payload.checkpoint == id)
    uneven.bench.stop(lost.id)
    del lost.columns[column]
    lost.reboot()
    uneven.bench.start(lost)
    uneven.tick(LOOK_S + 1)
    leased = uneven.worker.lease()
    assert leased.payload is not None
    assert leased.payload.checkpoint == id
    assert [one.column for one in leased.lost] == [column.column]


def test_a_payload_that_loses_a_column_meanwhile_is_not_moved() -> None:
    uneven = Uneven()
    uneven.told()
    uneven.tick(1)
    move = uneven.bench.machine.repairs.balancer.planned()[0]
    payload = move.column.payload
    lost = next(
        target for target in holders(uneven.bench, payload.checkpoint) if target.id != move.source
    )
    uneven.bench.stop(lost.id)
    uneven.tick(2)
    planned = uneven.bench.machine.repairs.balancer.planned()
    assert payload not in {one.column.payload for one in planned}


def test_a_deletion_ends_the_moves_of_its_checkpoint() -> None:
    uneven = Uneven()
    uneven.told()
    uneven.tick(LOOK_S + 1)
    leased = uneven.worker.lease()
    assert leased.payload is not None
    step = leased.payload.checkpoint.step
    uneven.bench.tell(uneven.bench.session(), DeleteStep(RUN, step))
    uneven.tick(2)
    planned = uneven.bench.machine.repairs.balancer.planned()
    assert leased.payload not in {move.column.payload for move in planned}
    assert uneven.empty.reservations == set(), "its place went back"


LEAVES: list[Callable[[Bench, FakeTarget], object]] = [
    lambda bench, target: bench.stop(target.id),
    lambda bench, target: done(change(bench, target.id, "draining", force=True)),
]


@pytest.mark.parametrize("leave", LEAVES)
def test_moves_to_a_target_that_leaves_are_none_any_more(
    leave: Callable[[Bench, FakeTarget], object],
) -> None:
    uneven = Uneven()
    uneven.told()
    uneven.tick(1)
    assert uneven.bench.machine.repairs.balancer.planned()
    leave(uneven.bench, uneven.empty)
    uneven.tick(1)
    assert uneven.bench.machine.repairs.balancer.planned() == []


def test_a_column_that_rots_is_no_move_any_more() -> None:
    uneven = Uneven()
    uneven.told()
    uneven.tick(1)
    move = uneven.bench.machine.repairs.balancer.planned()[0]
    payload = move.column.payload
    damage = Damage("column", "cells", 0, 9, "rot")
    rotten = Rot(payload.checkpoint, damage, payload.rank, move.column.column)
    uneven.bench.targets[move.source].scrub = ScrubReport(rot=(rotten,), rot_count=1)
    uneven.tick(2)
    planned = uneven.bench.machine.repairs.balancer.planned()
    assert move.column not in {one.column for one in planned}


def test_a_balance_whose_moves_all_fail_ends() -> None:
    uneven = Uneven()
    uneven.told()
    for _ in range(IDLE_MAX + 2):
        uneven.tick(SETTLE_S + PLAN_S + LOOK_S)
        while uneven.worker.lease() != NOTHING:
            uneven.worker.end("it does not go")
            uneven.tick(1)
    assert not uneven.is_asked
    assert uneven.counts == [8, 8, 8, 0]


def test_a_failed_move_does_not_keep_its_payload_from_being_made_whole() -> None:
    uneven = Uneven()
    uneven.told()
    uneven.tick(LOOK_S + 1)
    leased = uneven.worker.lease()
    assert leased.payload is not None
    uneven.worker.end("it does not go")
    id = leased.payload.checkpoint
    lost = holders(uneven.bench, id)[2]
    column = next(c for c in lost.columns if c.payload == leased.payload)
    uneven.bench.stop(lost.id)
    del lost.columns[column]
    lost.reboot()
    uneven.bench.start(lost)
    uneven.tick(LOOK_S + 1)
    again = uneven.worker.lease()
    assert again.payload == leased.payload


def test_a_pause_holds_moves_which_are_not_said_to_be_due() -> None:
    uneven = Uneven()
    uneven.told()
    uneven.bench.tell(uneven.bench.session(Role.ADMIN), SetRepair(paused=True))
    uneven.tick(LOOK_S + 1)
    assert uneven.worker.lease() == NOTHING
    status = uneven.bench.ask("status")
    assert isinstance(status, dict)
    (check,) = [each for each in status["checks"] if each["name"] == "REPAIR_PAUSED"]
    assert check["message"] == "repair is paused, and nothing is to be made again now"
    uneven.bench.tell(uneven.bench.session(Role.ADMIN), SetRepair(paused=False))
    uneven.settle()
    assert uneven.counts == [6, 6, 6, 6]
