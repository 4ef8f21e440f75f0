"""What counts, and what is still due, when a worker's task ends."""

from __future__ import annotations

from ckpt.base.ids import ColumnId
from ckpt.base.limits import LEASE_US, SEAL_WAIT_US
from ckpt.format.messages.hello import Failed, Role
from ckpt.format.messages.loading import ReleasePin, Resolve, Resolved
from ckpt.format.messages.repairs import EndRepair, RepairNoted, SetRepair
from ckpt.format.messages.targets import Attest, DropColumn, ReleaseReservation
from ckpt.protocol.coordinator.catalog import ColumnsMoved
from ckpt.protocol.coordinator.repairing.tasks import REST_US
from tests.protocol.coordinating import RUN, SECOND_US, Bench
from tests.protocol.test_coordinator_repairing import (
    AFTER_S,
    LOOK_S,
    Worker,
    holders,
    missing,
    wipe,
)


def test_a_copy_that_is_about_to_go_is_not_named() -> None:
    """Its target said that it is there before it heard that it goes; then the other one was away
    again.
    """
    bench = Bench(5)
    id = bench.save(1)
    lost = holders(bench, id)[1]
    bench.stop(lost.id)
    bench.tick(AFTER_S + LOOK_S)
    worker = Worker(bench)
    worker.lease()
    worker.seal()
    (made,) = [bench.targets[place] for place in worker.places]
    reader = bench.session()
    (resolved,) = bench.tell(reader, Resolve(RUN, id.step))
    assert isinstance(resolved, Resolved)
    bench.start(lost)
    bench.stop(made.id)
    bench.start(made)  # It lists the copy, which the reader may know.
    made.silent |= {Attest, DropColumn}
    bench.tick()
    bench.tell(reader, ReleasePin(resolved.pin))
    assert [type(send.message) for send in made.unanswered] == [Attest, DropColumn]
    bench.stop(lost.id)
    mark = bench.mark()
    bench.let_answer(made.id)
    bench.tick(AFTER_S)
    assert not made.columns
    assert (missing(bench, id), bench.story(mark, ColumnsMoved)) == (1, [])


def test_its_space_is_given_back_before_its_places_are_asked_what_there_is() -> None:
    """Between answer and release a worker had the column sealed, and nobody knew of that copy."""
    bench = Bench(5)
    id = bench.save(1)
    lost = holders(bench, id)[1]
    bench.stop(lost.id)
    bench.tick(AFTER_S + LOOK_S)
    worker = Worker(bench)
    worker.lease()
    (place,) = [bench.targets[place] for place in worker.places]
    session, mark = place.session, bench.mark()
    assert session is not None
    bench.start(lost)
    bench.tick()
    said = [type(one) for one in bench.to(session, mark)]
    assert [one for one in said if one in (Attest, ReleaseReservation)] == [
        ReleaseReservation, Attest,
    ]  # fmt: skip


def due(bench: Bench) -> list[int]:
    """Columns, as `ckpt repair` says; with --wait it ends when there are none."""
    return [column for one in bench.machine.repairs.waiting() for column in one.columns]


def test_what_a_pause_has_ended_is_due_at_once() -> None:
    bench = Bench(5)
    id = bench.save(1)
    wipe(bench, holders(bench, id)[1])
    worker = Worker(bench)
    worker.lease()
    bench.tick(2)
    bench.tell(bench.session(Role.ADMIN), SetRepair(paused=True))
    assert (missing(bench, id), due(bench)) == (1, [1])


def test_a_copy_that_has_lost_its_place_leaves_its_column_due() -> None:
    """Another holder of its payload was moved to the host it goes to: there it is not named."""
    bench = Bench(5)
    id = bench.save(1)
    other, lost, _ = holders(bench, id)
    bench.stop(lost.id)
    bench.tick(AFTER_S + LOOK_S)
    worker = Worker(bench)
    worker.lease()
    (place,) = worker.places
    bench.stop(other.id)
    other.domain = bench.targets[place].domain.rpartition("/")[0] + "/another"
    bench.start(other)
    bench.tick(2)
    assert Worker(bench, "other").lease().payload is None, "it is in hand"
    bench.tick(2)
    worker.seal()
    assert worker.end() == RepairNoted(1)
    assert (missing(bench, id), due(bench)) == (1, [1])
    again = worker.lease()
    assert again.payload is not None
    assert place not in worker.places


def test_a_target_that_waits_for_its_disk_before_it_answers_is_waited_for() -> None:
    """A worker died while the column's seal was on the disk's way; it counts all the same."""
    bench = Bench(5)
    id = bench.save(1)
    wipe(bench, holders(bench, id)[1])
    worker = Worker(bench)
    leased = worker.lease()
    assert leased.payload is not None
    (lost,) = leased.lost
    made = bench.targets[lost.place.target]
    made.silent.add(Attest)
    bench.close(worker.session)
    bench.tick(SEAL_WAIT_US / SECOND_US)
    column = ColumnId(leased.payload, lost.column)
    made.columns[column] = made.proof(column, "2+1", 10_000)
    bench.let_answer(made.id)
    assert (missing(bench, id), bench.machine.repairs.counts.problems) == (0, {})


def test_a_task_that_ends_is_its_workers_no_more() -> None:
    """Its places were given back: the worker is not to go on, nor to end it a second time."""
    bench = Bench(5)
    id = bench.save(1)
    wipe(bench, holders(bench, id)[1])
    worker = Worker(bench)
    worker.lease()
    assert worker.leased.payload is not None
    (place,) = worker.places
    bench.targets[place].silent.add(Attest)
    end = EndRepair(worker.name, worker.leased.payload, "no memory")
    assert bench.tell(worker.session, end) == []
    for answer in (worker.renew(), worker.end("no memory")):
        assert isinstance(answer, Failed)
        assert answer.code == "fenced"
    bench.let_answer(place)
    assert missing(bench, id) == 1


def test_a_task_ends_when_a_place_of_it_is_gone() -> None:
    """Its worker waits for that target for long, and only the coordinator knows better."""
    bench = Bench(6)
    id = bench.save(1)
    wipe(bench, holders(bench, id)[1])
    worker = Worker(bench)
    worker.lease()
    (gone,) = worker.places
    bench.stop(gone)
    assert isinstance(worker.renew(), RepairNoted), "it may dial again"
    bench.tick(2 * LEASE_US / SECOND_US)
    late = worker.renew()
    assert isinstance(late, Failed)
    assert late.code == "fenced"
    (why,) = bench.machine.repairs.counts.problems.values()
    assert why == f"target {gone} has left"
    bench.tick(REST_US / SECOND_US + LOOK_S)
    again = Worker(bench, "again")
    again.lease()
    assert gone not in again.places
    again.seal()
    again.end()
    assert missing(bench, id) == 0


def test_what_found_a_place_for_some_columns_alone_says_what_lacks() -> None:
    bench = Bench(5, "2+2")
    id = bench.save(1)
    for holder in holders(bench, id)[:2]:
        bench.stop(holder.id)
    bench.tick(AFTER_S + LOOK_S)
    worker = Worker(bench)
    assert len(worker.lease().lost) == 1
    worker.seal()
    worker.end()
    assert missing(bench, id) == 1
    (why,) = bench.machine.repairs.counts.problems.values()
    assert why.endswith("has room for it: 3 targets are live, 2+2 needs 4")
