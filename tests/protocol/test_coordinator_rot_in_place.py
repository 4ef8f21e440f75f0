"""A damaged column that finds no other place is made again where it lies."""

from __future__ import annotations

from msgspec import UNSET

from ckpt.base.ids import BootId, CheckpointId, ColumnId, TargetId
from ckpt.base.limits import DEVICE_FAILURES_MAX
from ckpt.format.messages.hello import OLDEST_VERSION, Failed, Role
from ckpt.format.messages.repairs import RepairLeased, RepairNoted
from ckpt.format.messages.targets import DeviceReport, DropColumn, Reserve
from ckpt.format.messages.upgrading import FinishUpgrade
from ckpt.protocol.coordinator.catalog import ColumnsMoved
from ckpt.protocol.coordinator.repairing.tasks import LEASE_US, NO_ROOM_REST_US, REST_US
from tests.protocol.coordinated_target import FakeTarget
from tests.protocol.coordinating import SECOND_US, Bench
from tests.protocol.test_coordinator_repairing import (
    LOOK_S,
    NOTHING,
    Worker,
    holders,
    missing,
    rot,
)


def damaged(bench: Bench) -> tuple[CheckpointId, FakeTarget, ColumnId]:
    """Column 1, as its target has said."""
    id = bench.save(1)
    target = holders(bench, id)[1]
    (column,) = target.columns
    rot(target, column)
    bench.tick(LOOK_S)
    return id, target, column


def mend(worker: Worker) -> None:
    """What it was leased is written where it was leased to; each target knows of no damage."""
    worker.seal()
    for id in worker.places:
        worker.bench.targets[id].scrub = UNSET


def test_it_goes_to_its_own_target_and_nothing_moves() -> None:
    bench = Bench(3)
    id, target, column = damaged(bench)
    worker = Worker(bench)
    assert [one.column for one in worker.lease().lost] == [1]
    assert worker.places == [target.id]
    assert not worker.leased.lost[0].alone, "it is not read where it is damaged"
    mend(worker)
    mark = bench.mark()
    assert worker.end() == RepairNoted(1)
    assert worker.lease() == NOTHING, "the target need not say it once more"
    assert (missing(bench, id), list(target.columns)) == (0, [column])
    assert bench.machine.repairs.counts.columns == 1
    bench.tick(LOOK_S)
    assert bench.story(mark, ColumnsMoved, DropColumn) == []
    assert worker.lease() == NOTHING


def test_what_was_not_written_counts_as_not_made_and_is_tried_again() -> None:
    """The damaged copy is there and is proved; it is no proof of work."""
    bench = Bench(3)
    _, target, _ = damaged(bench)
    worker = Worker(bench)
    worker.lease()
    assert worker.end("its target does not answer") == RepairNoted(0)
    counts = bench.machine.repairs.counts
    assert (counts.columns, list(counts.problems.values())) == (0, ["its target does not answer"])
    assert worker.lease() == NOTHING
    bench.tick(REST_US / SECOND_US + LOOK_S)
    worker.lease()
    assert worker.places == [target.id]
    mend(worker)
    assert worker.end() == RepairNoted(1)
    assert not counts.problems


def test_a_worker_that_dies_after_it_was_written_has_made_it() -> None:
    bench = Bench(3)
    damaged(bench)
    worker = Worker(bench)
    worker.lease()
    mend(worker)
    bench.tick(LEASE_US / SECOND_US + 1)
    assert Worker(bench, "other").lease() == NOTHING
    assert bench.machine.repairs.counts.columns == 1


def test_a_place_elsewhere_is_taken_first() -> None:
    bench = Bench(4)
    _, target, _ = damaged(bench)
    worker = Worker(bench)
    worker.lease()
    assert set(worker.places) == bench.targets.keys() - {t.id for t in _holders_of(bench)}
    assert target.id not in worker.places


def _holders_of(bench: Bench) -> list[FakeTarget]:
    (kept,) = bench.machine.checkpoints.all()
    return holders(bench, kept.id)


def test_where_the_other_one_has_no_room_it_stays() -> None:
    bench = Bench(4)
    _, target, _ = damaged(bench)
    (free,) = bench.targets.keys() - {t.id for t in _holders_of(bench)}
    bench.targets[free].refuses[Reserve] = Failed("no_space", "it is full")
    worker = Worker(bench)
    worker.lease()
    assert worker.places == [target.id]


def test_without_room_for_a_second_file_it_waits_and_counts_until_then() -> None:
    bench = Bench(3)
    id, target, column = damaged(bench)
    target.refuses[Reserve] = Failed("no_space", "it is full")
    worker = Worker(bench)
    assert worker.lease() == NOTHING
    (why,) = bench.machine.repairs.counts.problems.values()
    assert why.startswith(f"no room on {target.id}")
    assert (missing(bench, id), list(target.columns)) == (0, [column])
    del target.refuses[Reserve]
    bench.tick(NO_ROOM_REST_US / SECOND_US + LOOK_S)
    assert worker.lease() != NOTHING


def test_two_damaged_ones_stay_each_where_it_is() -> None:
    bench = Bench(4, "2+2")
    id = bench.save(1)
    first, second, *_ = holders(bench, id)
    for target in (first, second):
        (column,) = target.columns
        rot(target, column)
    bench.tick(LOOK_S)
    worker = Worker(bench)
    assert [one.column for one in worker.lease().lost] == [0, 1]
    assert worker.places == [first.id, second.id]
    mend(worker)
    assert worker.end() == RepairNoted(2)
    assert worker.lease() == NOTHING


def test_it_is_not_mended_beside_a_column_that_went_to_its_domain() -> None:
    """A target that came in between may take one, where there was no place for the other."""
    bench = Bench(5, "2+2", hosts=4)
    id, last = _on_first_host(bench, 2)
    placed = holders(bench, id)
    first, second = placed[:2]
    for target in (first, second, placed[last]):
        (column,) = [one for one in target.columns if one.payload.checkpoint == id]
        rot(target, column)
    (silent,) = [bench.targets[t] for t in FIRST_HOST if t != placed[last].id]
    silent.silent.add(Reserve)
    bench.tick(LOOK_S)
    worker = Worker(bench)
    assert bench.tell(worker.session, worker.question) == []
    late = FakeTarget(TargetId("t9"), f"{second.domain}9", BootId(99))
    bench.targets[late.id] = late
    bench.start(late)
    bench.let_answer(silent.id)
    leased = bench.to(worker.session)[-1]
    assert isinstance(leased, RepairLeased)
    went = {int(one.column): one.place.target for one in leased.lost}
    assert went == {0: late.id, last: silent.id}


FIRST_HOST = (TargetId("t0"), TargetId("t4"))


def _on_first_host(bench: Bench, least: int) -> tuple[CheckpointId, int]:
    """A checkpoint, and the number of its column there: at least this."""
    for step in range(1, 20):
        id = bench.save(step)
        held = [target.id in FIRST_HOST for target in holders(bench, id)]
        if any(held[least:]):
            return id, held.index(True)
    raise AssertionError("no such place")


def test_a_failing_device_is_not_written_to() -> None:
    bench = Bench(3)
    _, target, _ = damaged(bench)
    target.device = DeviceReport({"write": DEVICE_FAILURES_MAX}, DEVICE_FAILURES_MAX)
    bench.tick(LOOK_S)
    assert Worker(bench).lease() == NOTHING


def test_before_the_upgrade_is_finished_nothing_is_written_over() -> None:
    """An earlier target says at once that it has the column."""
    bench = Bench(3, protocol=OLDEST_VERSION)
    damaged(bench)
    assert Worker(bench).lease() == NOTHING
    bench.tell(bench.session(Role.ADMIN), FinishUpgrade())
    bench.tick(LOOK_S)
    assert Worker(bench).lease() != NOTHING
