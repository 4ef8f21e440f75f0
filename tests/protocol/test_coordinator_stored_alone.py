"""What the tier has lost and an object store has: found without a reader, told as stored, read from
the store, judged by retention as it was, and committed again when its columns come back.
"""

from __future__ import annotations

from ckpt.base.ids import CheckpointId, ColumnId, ColumnNumber, PayloadId, Rank, RunName, Step
from ckpt.format.messages.asking import DeleteStep, LabelStep
from ckpt.format.messages.drains import ForgetStore
from ckpt.format.messages.hello import Role
from ckpt.format.messages.keeping import KeepSteps, Retention
from ckpt.format.messages.loading import Resolve, Resolved
from ckpt.format.messages.reading import ByteRange, VerifyColumn
from ckpt.format.messages.writing import ColumnProof
from ckpt.protocol.coordinator import catalog
from tests.protocol.coordinated_target import FakeTarget
from tests.protocol.coordinating import RUN, Bench
from tests.protocol.test_coordinator_draining import URL, WorkerFake

Taken = list[tuple[FakeTarget, ColumnId, ColumnProof]]


def drained(bench: Bench, *ids: CheckpointId) -> WorkerFake:
    """A store has these; its worker stays."""
    worker = WorkerFake(bench)
    for id in ids:
        assert worker.lease() == id
        worker.end(id)
    return worker


def take(bench: Bench, id: CheckpointId, *columns: int, rank: int = 0) -> Taken:
    """Holders start again without these columns."""
    taken: Taken = []
    for column in columns:
        wanted = ColumnId(PayloadId(id, Rank(rank)), ColumnNumber(column))
        target = next(t for t in bench.targets.values() if wanted in t.columns)
        taken.append((target, wanted, target.columns.pop(wanted)))
        start_again(bench, target)
    return taken


def give_back(bench: Bench, taken: Taken) -> None:
    """They find the files after all."""
    for target, column, proof in taken:
        target.columns[column] = proof
        start_again(bench, target)


def start_again(bench: Bench, target: FakeTarget) -> None:
    bench.stop(target.id)
    target.reboot()
    bench.start(target)


def steps(bench: Bench) -> dict[int, tuple[str, bool]]:
    """State, and whether it is the newest, of each step."""
    shown = bench.ask("steps", RUN)
    assert isinstance(shown, list)
    return {view["step"]: (view["state"], view["newest"]) for view in shown}


def checks(bench: Bench) -> dict[str, str]:
    status = bench.ask("status")
    assert isinstance(status, dict)
    return {check["name"]: check["command"] for check in status["checks"]}


def test_what_a_store_has_is_found_to_be_lost_without_a_reader_and_is_stored() -> None:
    bench = Bench()
    old, new = bench.save(1), bench.save(2)
    drained(bench, old, new)
    take(bench, new, 0, 1)
    bench.tick(2)
    assert bench.states()[str(new)] == "damaged"
    assert steps(bench) == {1: ("committed", False), 2: ("stored", True)}
    assert checks(bench)["CHECKPOINT_STORED"] == "ckpt fetch --lost"
    assert "CHECKPOINT_LOST" not in checks(bench)
    assert "CHECKPOINT_UNREACHABLE" not in checks(bench)
    (run,) = bench.ask("runs")  # type: ignore[misc]
    assert (run["latest"], run["steps"], run["bytes"]) == (2, 2, 10_000)


def test_what_no_store_has_waits_for_a_reader_and_is_lost() -> None:
    bench = Bench()
    id = bench.save(1)
    take(bench, id, 0, 1)
    mark = bench.mark()
    bench.tick(60)
    assert bench.sent(VerifyColumn, mark) == []
    assert bench.states()[str(id)] == "committed"
    bench.tell(bench.session(), Resolve(RUN, None))
    assert steps(bench) == {1: ("damaged", False)}
    assert "CHECKPOINT_LOST" in checks(bench)


def test_while_a_holder_is_away_nothing_is_lost_for_sure() -> None:
    bench = Bench()
    id = bench.save(1)
    drained(bench, id)
    wanted = ColumnId(PayloadId(id, Rank(0)), ColumnNumber(2))
    away = next(t for t in bench.targets.values() if wanted in t.columns)
    bench.stop(away.id)
    take(bench, id, 0, 1)
    bench.tick(60)
    assert steps(bench) == {1: ("committed", True)}
    bench.start(away)
    bench.tick(2)
    assert steps(bench) == {1: ("stored", True)}


def test_loads_go_to_the_store_and_who_can_read_none_walks_back() -> None:
    bench = Bench()
    old, new = bench.save(1), bench.save(2)
    drained(bench, old, new)
    take(bench, new, 0, 1)
    bench.tick(2)
    (found,) = bench.tell(bench.session(), Resolve(RUN, None, stored=True))
    assert isinstance(found, Resolved)
    assert (found.info.checkpoint, found.stored, found.away) == (new, (URL,), "")
    (found,) = bench.tell(bench.session(), Resolve(RUN, None))
    assert isinstance(found, Resolved)
    assert found.info.checkpoint == old


def test_a_store_that_is_forgotten_leaves_it_lost() -> None:
    bench = Bench()
    id = bench.save(1)
    worker = drained(bench, id)
    take(bench, id, 0, 1)
    bench.tick(2)
    assert steps(bench) == {1: ("stored", True)}
    bench.close(worker.session)
    bench.tick(3)
    bench.tell(bench.session(Role.ADMIN), ForgetStore(URL))
    assert steps(bench) == {1: ("damaged", False)}


# ------------------------------------------------------------------------ it comes back


def test_columns_that_come_back_are_read_whole_and_it_is_committed_again_durably() -> None:
    bench = Bench()
    id = bench.save(1)
    drained(bench, id)
    taken = take(bench, id, 0, 1)
    bench.tick(2)
    assert bench.states()[str(id)] == "damaged"
    give_back(bench, taken[:1])
    mark = bench.mark()
    bench.persist_at_once = False
    bench.tick(2)
    assert len(bench.sent(VerifyColumn, mark)) == 3
    assert steps(bench) == {1: ("stored", True)}, "not before it is durable"
    bench.sync()
    assert bench.durable.count(catalog.CheckpointFound(id)) == 1
    assert steps(bench) == {1: ("committed", True)}
    bench.persist_at_once = True
    bench.restart(*bench.targets)
    bench.tick(2)
    assert steps(bench) == {1: ("committed", True)}
    (found,) = bench.tell(bench.session(), Resolve(RUN, None, stored=True))
    assert isinstance(found, Resolved)
    assert found.stored == ()


def test_columns_that_are_listed_and_rotten_leave_it_stored_and_are_read_once() -> None:
    bench = Bench()
    id = bench.save(1)
    drained(bench, id)
    taken = take(bench, id, 0, 1)
    bench.tick(2)
    for target, column, _ in taken:
        target.damaged[column] = (ByteRange(0, 9),)
    give_back(bench, taken)
    mark = bench.mark()
    bench.tick(90)
    assert len(bench.sent(VerifyColumn, mark)) == 3
    assert steps(bench) == {1: ("stored", True)}


def test_what_was_deleted_while_it_is_read_stays_deleted() -> None:
    bench = Bench()
    id = bench.save(1)
    drained(bench, id)
    taken = take(bench, id, 0, 1)
    bench.tick(2)
    give_back(bench, taken)
    for target in bench.targets.values():
        target.silent.add(VerifyColumn)
    bench.tick(2)
    bench.tell(bench.session(), DeleteStep(RUN, Step(1)))
    for name in bench.targets:
        bench.let_answer(name)
    bench.tick(2)
    assert catalog.CheckpointFound(id) not in bench.durable
    assert bench.states()[str(id)] in ("tombstoned", "deleted")


# ------------------------------------------------------------------------ what stays


def test_it_goes_when_it_would_have_gone_unharmed_and_nothing_goes_for_it() -> None:
    bench = Bench()
    ids = [bench.save(step) for step in (1, 2, 3)]
    drained(bench, *ids)
    take(bench, ids[2], 0, 1)
    bench.tick(2)
    bench.tell(bench.session(), KeepSteps(RunName(RUN), Retention(last=2)))
    assert list(steps(bench)) == [1, 2, 3], "the last two are those that the tier has"
    bench.save(4)
    assert list(steps(bench)) == [2, 3, 4]
    bench.save(5)
    assert list(steps(bench)) == [4, 5]


def test_a_name_of_the_lost_one_holds_what_is_saved_in_its_place() -> None:
    bench = Bench()
    ids = [bench.save(step) for step in (1, 2, 3)]
    drained(bench, *ids)
    bench.tell(bench.session(), LabelStep(RunName(RUN), Step(1), add=("best",)))
    take(bench, ids[0], 0, 1)
    bench.tick(2)
    bench.tell(bench.session(), KeepSteps(RunName(RUN), Retention(last=1)))
    assert list(steps(bench)) == [1, 3]
    again = bench.save(1, key="fetch")
    assert bench.states()[str(again)] == "committed", "its name comes after its commit"
    bench.tell(bench.session(), LabelStep(RunName(RUN), Step(1), again.generation, add=("best",)))
    bench.tick(2)
    assert bench.states()[str(again)] == "committed"
    assert bench.states()[str(ids[0])] in ("tombstoned", "deleted")
