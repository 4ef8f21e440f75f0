"""Runs that are deleted whole: what is known of them is bounded, in memory and in the catalog."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ckpt.base.ids import CheckpointId, Rank, RunName, Step
from ckpt.format.messages.asking import DeleteStep, StepDeleted
from ckpt.format.messages.launches import JoinLaunch, LaunchJoined
from ckpt.protocol.coordinator.catalog import RowState
from ckpt.protocol.coordinator.cluster import launches
from ckpt.protocol.coordinator.image import CatalogImage
from ckpt.protocol.coordinator.keeping import deletion
from ckpt.testing.catalog_entries import apply_all
from tests.protocol.coordinating import Bench, RankFake


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most 3 rows of gone generations, 4 more before they are forgotten."""
    monkeypatch.setattr(deletion, "GONE_ROWS_MAX", 3)
    monkeypatch.setattr(deletion, "GONE_ROWS_BATCH", 4)


def come_and_go(bench: Bench, run: str, *steps: int) -> None:
    """The first of these steps is deleted."""
    for step in steps:
        bench.save(step, run=run)
    session = bench.session()
    (answer,) = bench.tell(session, DeleteStep(RunName(run), Step(steps[0])))
    assert isinstance(answer, StepDeleted)
    bench.close(session)


def catalog_of(bench: Bench) -> CatalogImage:
    return apply_all(CatalogImage(bench.term), bench.durable)  # type: ignore[arg-type]


def known(bench: Bench) -> tuple[set[str], set[str], set[str]]:
    """Runs by their rows, and by their launches, in the catalog; and in memory."""
    image = catalog_of(bench)
    rows, numbered = {id.run for id in image.rows}, {run for run, _ in image.launches}
    return set(rows), set(numbered), set(bench.machine.launches.runs)


def test_a_run_goes_with_its_last_row_and_a_restart_knows_no_more() -> None:
    bench = Bench()
    for number in range(1, 9):
        come_and_go(bench, f"run {number}", 1)
    left = {f"run {number}" for number in (5, 6, 7, 8)}
    assert known(bench) == (left, left, left)
    bench.restart(*bench.targets)
    assert known(bench) == (left, left, left)
    bench.save(1, run="run 1")
    assert RowState.COMMITTED.value in bench.states().values()


def test_a_run_in_which_somebody_is_at_work_or_that_has_a_step_keeps_its_last_row() -> None:
    bench = Bench()
    worker = RankFake(bench, run="in use", key="another start")
    come_and_go(bench, "in use", 1)
    come_and_go(bench, "kept", 1, 2)
    for number in range(1, 9):
        come_and_go(bench, f"run {number}", 1)
    rows, numbered, held = known(bench)
    assert {"in use", "kept"} <= rows & numbered & held
    assert "run 1" not in rows | numbered | held
    bench.close(worker.session)
    for number in range(9, 17):
        come_and_go(bench, f"run {number}", 1)
    rows, numbered, held = known(bench)
    assert "in use" not in rows | numbered | held
    assert "kept" in rows & numbered & held


def test_of_runs_that_were_only_asked_for_the_newest_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launches, "UNSAVED_RUNS_MAX", 2)
    monkeypatch.setattr(launches, "UNSAVED_RUNS_BATCH", 1)
    bench = Bench()
    bench.save(1, run="saved")
    stays = RankFake(bench, run="about to save")
    for number in range(9):
        session = bench.session()
        join = JoinLaunch(RunName(f"typo {number}"), "k", Rank(0), 1, "h/1", reads=True)
        assert isinstance(bench.tell(session, join)[-1], LaunchJoined)
        bench.close(session)
    _, numbered, held = known(bench)
    assert numbered == held
    assert {"saved", "about to save", "typo 8"} <= held
    assert len(held) <= 2 + 2 + 1 + 1
    stays.open(1)
    assert stays.plan is not None


class Counting(dict[CheckpointId, RowState]):
    """It counts how often all of it is gone through."""

    walks = 0

    def __iter__(self) -> Iterator[CheckpointId]:
        self.walks += 1
        return super().__iter__()


def test_rows_that_stay_are_not_gone_through_at_each_deletion() -> None:
    bench = Bench()
    for number in range(9):
        come_and_go(bench, f"kept {number}", 1, 2)
    bench.machine.deleter.gone = gone = Counting(bench.machine.deleter.gone)
    for number in range(9, 17):
        come_and_go(bench, f"kept {number}", 1, 2)
    assert len(gone) == 17, "each is its run's newest"
    assert gone.walks <= 3, "once for each four deletions"
