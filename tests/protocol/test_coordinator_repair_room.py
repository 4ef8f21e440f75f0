"""A repair for which every target is full: what was drained goes, then space that only stands."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from ckpt.base.ids import CheckpointId, Generation, RunName, Step
from ckpt.format.messages import Message
from ckpt.format.messages.asking import ChangeTarget
from ckpt.format.messages.hello import Failed, Role
from ckpt.format.messages.reading import DocumentKind
from ckpt.format.messages.repairs import RepairLimits
from ckpt.format.messages.targets import PutDocument, Reserve
from ckpt.protocol.coordinator.keeping.evicting import DueColumns, RoomWanted
from ckpt.protocol.coordinator.policy import Watermarks
from ckpt.protocol.coordinator.repairing import mending, respreading
from ckpt.protocol.coordinator.repairing.clearing import AT_ONCE_S, NO_ROOM
from ckpt.protocol.coordinator.repairing.tasks import NO_ROOM_REST_US, REST_US
from tests.protocol.coordinated_target import COLUMN_BYTES, FakeTarget
from tests.protocol.coordinating import RUN, SECOND_US, Bench, RankFake
from tests.protocol.test_coordinator_draining import WorkerFake, steps
from tests.protocol.test_coordinator_evicting import drain_all
from tests.protocol.test_coordinator_labeling import label
from tests.protocol.test_coordinator_mending import is_right, rots
from tests.protocol.test_coordinator_repairing import AFTER_S, LOOK_S, NOTHING, Worker, holders
from tests.protocol.test_coordinator_respreading import having

OTHER = "other"
STEPS = 4
ID = CheckpointId(RunName(RUN), Step(1), Generation(1, 1))
OTHER_ID = CheckpointId(RunName(RUN), Step(2), Generation(1, 2))
RESTED_S = REST_US / SECOND_US + LOOK_S


class Full:
    """Four targets, 2+1. Steps of `run` are drained, and one of `other` is in no store. Of the
    latter's holders one is away for good; the only target that may take its column is full.
    """

    id: CheckpointId

    def __init__(
        self, *runs: str, is_oldest: bool = False, drained: int = STEPS, others: int = 1
    ) -> None:
        """`runs`: which are drained, RUN alone if none is given. `others`: so many steps of `other`
        there are.
        """
        self.bench = bench = Bench(4)
        # Nothing is evicted but for somebody who needs the room.
        bench.policy = dataclasses.replace(
            bench.policy, watermarks=Watermarks(1.0, 1.0), spare_count=0
        )
        bench.restart(*bench.targets)
        bench.tick(20)
        worker = WorkerFake(bench, runs=runs or (RUN,))
        self.drained = drained
        wanted = [(RUN, step) for step in range(1, drained + 1)]
        lacking = [(OTHER, step) for step in range(1, others + 1)]
        saved = {}
        for run, step in [*lacking, *wanted] if is_oldest else [*wanted, *lacking]:
            bench.wall_s += 1
            saved[run, step] = bench.save(step, run=run)
        self.id = saved[OTHER, others]
        drain_all(worker)
        placed = holders(bench, self.id)
        (self.free,) = [one for one in bench.targets.values() if one not in placed]
        all_placed = [
            target for id in saved.values() if id.run == OTHER for target in holders(bench, id)
        ]
        self.away = max(placed, key=all_placed.count)

    def lose(self) -> Worker:
        """It is away for longer than it is waited for; the others are full."""
        bench = self.bench
        for target in bench.targets.values():
            target.capacity_bytes = COLUMN_BYTES * len(target.columns)
        bench.stop(self.away.id)
        bench.tick(AFTER_S + LOOK_S)
        return Worker(bench)

    def why(self) -> str:
        """It waits."""
        problems = self.bench.machine.repairs.counts.problems.items()
        (found,) = [why for payload, why in problems if payload.checkpoint == self.id]
        return found

    def evicted(self) -> list[int]:
        return [step for step in range(1, self.drained + 1) if step not in steps(self.bench)]

    @property
    def lacking(self) -> int:
        """Steps of `other` that are not whole."""
        checkpoints = self.bench.machine.checkpoints
        kept = [one for one in checkpoints.all() if one.id.run == OTHER]
        return sum(checkpoints.redundancy(one).columns_missing > 0 for one in kept)

    def make(self, worker: Worker) -> int:
        """All for which there is room now; so many payloads."""
        made = 0
        while worker.lease() != NOTHING:
            worker.seal()
            worker.end()
            made += 1
        return made


def steps_on(target: FakeTarget) -> list[int]:
    """Of `run`, ascending."""
    found = (column.payload.checkpoint for column in target.columns)
    return sorted({int(id.step) for id in found if id.run == RUN})


def test_the_oldest_drained_step_that_frees_room_there_goes_and_no_other() -> None:
    full = Full()
    oldest = steps_on(full.free)[0]
    worker = full.lose()
    assert worker.lease() == NOTHING
    assert full.why() == (f"no room on {full.free.id}: what was drained goes from {full.free.id}")
    full.bench.tick(RESTED_S)
    assert oldest in full.evicted()
    assert len(full.evicted()) <= oldest, "none that is newer"
    leased = worker.lease()
    assert leased.payload is not None
    assert leased.payload.checkpoint == full.id
    assert worker.places == [full.free.id]


def test_nothing_goes_for_devices_that_take_no_more_files_whatever_is_free() -> None:
    full = Full()
    for target in full.bench.targets.values():
        target.counters = {**target.counters, "inodes_out": 1}
        target.refuses[Reserve] = Failed("no_space", "it has no inodes left")
    worker = full.lose()
    assert worker.lease() == NOTHING
    assert full.why() == f"no room on {full.free.id}: no inodes are left there for more files"
    full.bench.tick(RESTED_S)
    assert worker.lease() == NOTHING
    assert full.evicted() == []


def test_what_is_pinned_named_or_in_no_store_does_not_go() -> None:
    full = Full()
    for step in range(1, STEPS + 1):
        label(full.bench, step, pinned=True)
    forget_standing(full.bench)
    worker = full.lose()
    assert worker.lease() == NOTHING
    assert full.why() == f"no room on {full.free.id}"
    full.bench.tick(NO_ROOM_REST_US / SECOND_US + LOOK_S)
    assert worker.lease() == NOTHING
    assert full.evicted() == []


def test_what_only_stands_for_the_next_save_goes_back_when_nothing_may_be_evicted() -> None:
    full = Full()
    bench = full.bench
    for step in range(1, STEPS + 1):
        label(bench, step, pinned=True)
    # What stands there is what fills it; what stands on who leaves goes with it.
    allotment, full.away = next(
        (one, target)
        for one in bench.machine.reservations.standing.all()
        for target in holders(bench, full.id)
        if target.id not in (held := {place.target for place in one.places})
        and full.free.id in held
    )
    held = {place.reservation for place in allotment.places if place.target == full.free.id}
    full.free.refuses[Reserve] = Failed("no_space", "it is full")

    def released(target: FakeTarget) -> None:
        if not held & target.reservations:
            target.refuses.clear()

    full.free.on_release = released
    full.lose().lease()
    assert full.why() == (
        f"no room on {full.free.id}: {full.free.id} gives back what stood for the next saves"
    )
    assert not held & full.free.reservations
    full.free.capacity_bytes = None
    bench.tick(RESTED_S)
    worker = Worker(bench, "other")
    worker.lease()
    assert worker.leased.payload is not None
    assert worker.leased.payload.checkpoint == full.id
    assert worker.places == [full.free.id]
    assert full.evicted() == []


def forget_standing(bench: Bench) -> None:
    bench.machine.reservations.standing.drop_all()
    bench.tick()


def test_space_of_a_save_that_was_let_in_stays_its_own() -> None:
    """P6: the save is between its plan and its commit."""
    full = Full()
    bench = full.bench
    for step in range(1, STEPS + 1):
        label(bench, step, pinned=True)
    forget_standing(bench)
    rank = RankFake(bench, run="third")
    rank.open(1)
    assert rank.plan is not None
    held = {id: set(target.reservations) for id, target in bench.targets.items()}
    assert held[full.free.id]
    worker = full.lose()
    assert worker.lease() == NOTHING
    assert full.why() == f"no room on {full.free.id}"
    kept = {id: set(target.reservations) for id, target in bench.targets.items()}
    assert kept[full.free.id] == held[full.free.id]


@pytest.mark.parametrize("is_oldest", [False, True])
def test_for_what_is_in_a_store_nothing_newer_goes(is_oldest: bool) -> None:
    """It could be fetched; what is newer is worth as much."""
    full = Full(RUN, OTHER, is_oldest=is_oldest)
    machine, free = full.bench.machine, full.free.id
    lacking = machine.checkpoints.get(full.id)
    assert lacking is not None
    machine.members.targets[free].bytes_free = 0
    cleared = machine.evictor.clear([free], COLUMN_BYTES, lacking, RoomWanted)
    assert cleared == (None if is_oldest else free)
    assert machine.evictor.evicted_count == (0 if is_oldest else 1)


def test_without_an_allowed_domain_nothing_goes() -> None:
    full = Full()
    full.bench.stop(full.free.id)
    assert full.lose().lease() == NOTHING
    assert full.why() == f"{NO_ROOM}: 2 targets are live, 2+1 needs 3"
    full.bench.tick(RESTED_S)
    assert full.bench.machine.evictor.evicted_count == 0


def test_a_target_that_did_not_answer_is_not_cleared() -> None:
    """It may have room."""
    full = Full()
    worker = full.lose()
    full.free.capacity_bytes = None
    full.bench.tick(LOOK_S)
    full.free.refuses[Reserve] = Failed("unavailable", "it is starting")
    assert worker.lease() == NOTHING
    assert full.why() == NO_ROOM


def test_status_and_repair_say_why_it_waits() -> None:
    full = Full()
    for step in range(1, STEPS + 1):
        label(full.bench, step, pinned=True)
    forget_standing(full.bench)
    full.lose().lease()
    why = f"no room on {full.free.id}"
    repair: Any = full.bench.ask("repair")
    waiting = len(repair["problems"])
    assert repair["payloads_due"] == repair["columns_due"] == waiting, "what rests is due"
    assert repair["bytes_left"] > 0
    assert [str(full.id) in name and text == why for name, text in repair["problems"]].count(True)
    status: Any = full.bench.ask("status")
    (low,) = [one["message"] for one in status["checks"] if one["name"] == "REDUNDANCY_LOW"]
    assert f"{full.id} rank 0 waits: {why}" in low


def test_one_step_goes_at_a_time() -> None:
    """What goes is not free at once, and not before its targets have said so."""
    full = Full()
    worker = full.lose()
    worker.lease()
    gone = full.bench.machine.evictor.evicted_count
    assert gone >= 1
    Worker(full.bench, "other").lease()
    assert full.bench.machine.evictor.evicted_count == gone


@pytest.fixture
def no_index_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large document takes what a column of these does; a small one uses a target's reserve, and
    who has it already needs none.
    """
    put = FakeTarget._put

    def put_if_it_fits(target: FakeTarget, message: PutDocument, bulk: bytes) -> Message | None:
        has_it = (message.kind, message.checkpoint) in target.documents and not message.again
        is_large = message.kind is DocumentKind.INDEX and not has_it
        if is_large and target.space[0] < COLUMN_BYTES:
            return Failed("no_space", "no space for a document")
        return put(target, message, bulk)

    monkeypatch.setattr(FakeTarget, "_put", put_if_it_fits)
    for module in (mending, respreading):
        monkeypatch.setattr(module, "document_file_bytes", lambda _: COLUMN_BYTES)


def lose_a_copy(full: Full, *roomy: FakeTarget, drains: bool = False) -> None:
    """Of its index; the others are full. `drains`: who has it is to be emptied."""
    for target in full.bench.targets.values():
        if target not in roomy:
            target.capacity_bytes = COLUMN_BYTES * len(target.columns)
    id = having(full.bench, DocumentKind.INDEX, full.id)[0].id
    if drains:
        says = ChangeTarget(id, "draining", force=True)
        full.bench.tell(full.bench.session(Role.ADMIN), says)
    else:
        full.bench.stop(id)


@pytest.mark.usefixtures("no_index_fits")
@pytest.mark.parametrize("drains", [False, True])
def test_room_is_made_for_a_copy_of_an_index_that_no_target_has_room_for(drains: bool) -> None:
    full = Full()
    bench = full.bench
    lose_a_copy(full, drains=drains)
    for _ in range(AFTER_S):
        if not full.evicted():
            bench.tick(1)
    assert full.evicted() == [1], "the oldest, and no more at once"
    repair: Any = bench.ask("repair")
    (why,) = [why for name, why in repair["problems"] if name == str(full.id)]
    assert why.startswith("a copy of its index waits: no room on t")
    assert ": what was drained goes from t" in why
    status: Any = bench.ask("status")
    low = [one["message"] for one in status["checks"] if one["name"] == "REDUNDANCY_LOW"]
    waits = f"{full.id}: a copy of its index waits: no room on t"
    assert [waits in text for text in low] == ([] if drains else [True]), "it counts until then"
    bench.tick(4 * LOOK_S)
    copies = having(bench, DocumentKind.INDEX, full.id)
    assert len([one for one in copies if bench.machine.members.targets[one.id].stays]) == 2
    repair = bench.ask("repair")
    assert [name for name, _ in repair["problems"] if name == str(full.id)] == []


@pytest.mark.usefixtures("no_index_fits")
def test_a_copy_that_finds_another_place_does_not_wait() -> None:
    full = Full()
    bench = full.bench
    copies = having(bench, DocumentKind.INDEX, full.id)
    roomy = [one for one in bench.targets.values() if one not in copies][1]
    lose_a_copy(full, roomy)
    bench.tick(2 * LOOK_S)
    assert roomy in having(bench, DocumentKind.INDEX, full.id)
    assert full.id not in bench.machine.repairs.documents.problems


def rot_a_copy(full: Full, *roomy: FakeTarget) -> FakeTarget:
    """Whose index of it is damaged; the others are full."""
    for target in full.bench.targets.values():
        if target not in roomy:
            target.capacity_bytes = COLUMN_BYTES * len(target.columns)
    harmed = having(full.bench, DocumentKind.INDEX, full.id)[0]
    full.bench.tick(1)
    rots(full.bench, harmed, [DocumentKind.INDEX], full.id)
    return harmed


def sound_copies(full: Full) -> int:
    copies = having(full.bench, DocumentKind.INDEX, full.id)
    return sum(is_right(one, DocumentKind.INDEX, full.id) for one in copies)


@pytest.mark.usefixtures("no_index_fits")
def test_a_damaged_index_whose_target_is_full_is_copied_to_another_and_mended_later() -> None:
    full = Full()
    bench = full.bench
    copies = having(bench, DocumentKind.INDEX, full.id)
    roomy = next(one for one in bench.targets.values() if one not in copies)
    harmed = rot_a_copy(full, roomy)
    bench.tick(2 * LOOK_S)
    assert sound_copies(full) == 2, "m + 1, beside the damaged one"
    assert roomy in having(bench, DocumentKind.INDEX, full.id)
    assert not is_right(harmed, DocumentKind.INDEX, full.id)
    assert (full.evicted(), bench.machine.repairs.documents.problems) == ([], {})
    mark = bench.mark()
    bench.tick(4 * LOOK_S)
    assert bench.asked(harmed.id, PutDocument, mark) == [], "it has said that it has no room"
    harmed.capacity_bytes = None
    bench.tick(4 * LOOK_S)
    assert is_right(harmed, DocumentKind.INDEX, full.id)


@pytest.mark.usefixtures("no_index_fits")
@pytest.mark.parametrize("others", [True, False])
def test_a_damaged_index_gets_its_room_where_every_target_is_full(others: bool) -> None:
    """Also where no other one may have it."""
    full = Full()
    bench = full.bench
    if not others:
        for target in bench.targets.values():
            if target not in having(bench, DocumentKind.INDEX, full.id):
                target.refuses[PutDocument] = Failed("failed", "EIO")
    rot_a_copy(full)
    for _ in range(AFTER_S):
        if not full.evicted():
            bench.tick(1)
    assert full.evicted() == [1], "the oldest, and no more at once"
    repair: Any = bench.ask("repair")
    (why,) = [why for name, why in repair["problems"] if name == str(full.id)]
    assert why.startswith("a copy of its index waits: no room on t")
    assert ": what was drained goes from t" in why
    for target in bench.targets.values():
        target.refuses.clear()
    bench.tick(8 * LOOK_S)
    assert sound_copies(full) >= 2
    repair = bench.ask("repair")
    assert [name for name, _ in repair["problems"] if name == str(full.id)] == []


MANY = 12


def _many() -> Full:
    full = Full(drained=2 * MANY, others=MANY)
    forget_standing(full.bench)
    return full


def test_room_is_made_at_once_for_all_that_is_due_and_for_no_more() -> None:
    full = _many()
    worker = full.lose()
    lacking = full.lacking
    assert lacking > MANY // 2
    due = sum(len(one.columns) for one in full.bench.machine.repairs.waiting())
    assert worker.lease() == NOTHING
    gone = len(full.evicted())
    # A step has three columns, one of them perhaps on who is away.
    assert 2 * gone <= due, "not a column more than is due"
    assert 3 * gone >= lacking
    rounds = 0
    while full.lacking and rounds < MANY:
        full.bench.tick(RESTED_S)
        full.make(worker)
        rounds += 1
    assert full.lacking == 0
    assert rounds <= 3, "not one column each time"


def test_room_is_made_for_no_more_than_repair_fills_until_it_may_ask_again() -> None:
    full = _many()
    limits = full.bench.machine.repairs.ruling.limits
    columns = 4
    per_s = COLUMN_BYTES * columns / AT_ONCE_S
    live = len(full.bench.targets) - 1
    # Two are read for each that is made.
    cap = round(per_s * 3 / live)
    full.bench.policy = dataclasses.replace(
        full.bench.policy, repair=RepairLimits(min(cap, limits.floor_bytes), cap)
    )
    full.bench.restart(*full.bench.targets)
    full.bench.tick(20)
    worker = full.lose()
    assert full.lacking > 2 * columns
    assert worker.lease() == NOTHING
    assert 1 <= len(full.evicted()) <= columns // 2


def test_what_goes_itself_is_not_due_and_makes_no_room_for_what_is_older() -> None:
    old, new = DueColumns(ID, 5.0, True, 100), DueColumns(OTHER_ID, 7.0, True, 10)
    wanted = RoomWanted((old, new), 1000)
    assert wanted.bytes_in_all == 110
    assert wanted.bytes_beside(set(), 4.0) == 110
    assert wanted.bytes_beside(set(), 5.0) == 10, "it is not older than the first"
    assert wanted.bytes_beside({OTHER_ID}, 4.0) == 100
    in_no_store = dataclasses.replace(old, stored=False)
    assert RoomWanted((in_no_store,), 1000).bytes_beside(set(), 9.0) == 100
    assert RoomWanted((in_no_store,), 60).bytes_beside(set(), 9.0) == 60
