"""Months of the same: once bounds are reached, a coordinator holds no more than it did before."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ckpt.base.ids import BootId, Rank, RunName, Step, TargetId
from ckpt.format.messages.asking import DeleteStep, LabelStep, StepDeleted
from ckpt.format.messages.launches import JoinLaunch
from ckpt.format.messages.loading import ConfirmLoad, LoadConfirmed, Resolve, Resolved
from ckpt.protocol.coordinator.cluster import holdings, launches
from ckpt.protocol.coordinator.keeping import deletion
from ckpt.protocol.coordinator.reading import rounds
from ckpt.protocol.coordinator.saving import ending
from ckpt.protocol.coordinator.saving.space import standing
from tests.protocol.coordinating import RUN, SECOND_US, Bench, RankFake
from tests.protocol.held import grown, held
from tests.protocol.test_coordinator_rounds import Loader
from tests.protocol.test_coordinator_standings import change, done

WARM = 12
"""So many times each first: bounds are lowered to less."""
MORE = 8
CALM_S = 4.0
"""More than any reader or rank is waited for here."""

Habit = Callable[[Bench, int], None]


@pytest.fixture(autouse=True)
def low_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "ENDED_KEPT", 2)
    monkeypatch.setattr(deletion, "GONE_ROWS_MAX", 4)
    monkeypatch.setattr(deletion, "GONE_ROWS_BATCH", 2)
    monkeypatch.setattr(launches, "LAUNCHES_KEPT", 3)
    monkeypatch.setattr(launches, "UNSAVED_RUNS_MAX", 3)
    monkeypatch.setattr(launches, "UNSAVED_RUNS_BATCH", 2)
    monkeypatch.setattr(rounds, "ROUND_HELD_US", SECOND_US)
    monkeypatch.setattr(standing, "STANDING_LIFE_US", SECOND_US)
    monkeypatch.setattr(holdings, "REVISIONS_MAX", 2)


def save(bench: Bench, number: int) -> None:
    bench.save(number)


def train_another_model(bench: Bench, number: int) -> None:
    """Under a name of its own, and delete all of it."""
    run = f"model {number}"
    bench.save(1, run=run)
    session = bench.session()
    (answer,) = bench.tell(session, DeleteStep(RunName(run), Step(1)))
    assert isinstance(answer, StepDeleted)
    bench.close(session)


def ask_for_what_never_was(bench: Bench, number: int) -> None:
    session = bench.session()
    bench.tell(session, JoinLaunch(RunName(f"typo {number}"), "k", Rank(0), 1, "h/1", reads=True))
    bench.close(session)


def start_the_run_again(bench: Bench, number: int) -> None:
    bench.save(number, key=f"start {number}")


def start_it_without_a_key(bench: Bench, number: int) -> None:
    bench.save(number, key=None)


def load_the_newest(bench: Bench, number: int) -> None:
    """Each time in another process, as a job that evaluates does."""
    bench.save(number)
    loader = Loader(RankFake(bench, key=f"evaluation {number}"))
    assert loader.load() == [LoadConfirmed()]
    bench.close(loader.session)
    bench.close(loader.rank.session)


def load_by_number(bench: Bench, number: int) -> None:
    step = bench.save(number).step
    rank, session = RankFake(bench, key=f"evaluation {number}"), bench.session()
    (found,) = bench.tell(session, Resolve(RUN, step, rank.launch, rank.rank, 1, turn=1))
    assert isinstance(found, Resolved)
    id, timeout_us = found.info.checkpoint, 30 * SECOND_US
    confirm = ConfirmLoad(RUN, rank.launch, rank.rank, 1, id, timeout_us, step=step)
    assert bench.tell(session, confirm) == [LoadConfirmed()]
    bench.close(session)
    bench.close(rank.session)


def leave_an_attempt(bench: Bench, number: int) -> None:
    ranks = [RankFake(bench, rank, 2, key=f"start {number}") for rank in range(2)]
    ranks[0].open(number)
    ranks[0].seal_all()
    for rank in ranks:
        rank.leave()
        bench.close(rank.session)
    bench.tick(3)


def name(bench: Bench, number: int) -> None:
    """Another name for each, and one that moves; an old one's is taken away."""
    bench.save(number)
    session = bench.session()
    bench.tell(session, LabelStep(RUN, Step(number), add=("best", f"name {number}")))
    if number > 1:
        bench.tell(session, LabelStep(RUN, Step(number - 1), remove=(f"name {number - 1}",)))
    bench.close(session)


def restart_a_target(bench: Bench, number: int) -> None:
    bench.save(number)
    bench.stop("t1")
    bench.targets[TargetId("t1")].boot = BootId(1000 + number)
    bench.start("t1")


def test_of_a_target_that_was_removed_stays_its_name_and_nothing_that_it_held() -> None:
    bench = Bench(5)
    for step in range(1, 6):
        bench.save(step)
    known = bench.machine.members.targets[TargetId("t1")]
    assert list(known.documents)
    assert len(known.proved)
    bench.stop("t1")
    bench.tick(5)
    done(change(bench, "t1", "removed", force=True))
    assert bench.machine.members.targets[TargetId("t1")] is known
    assert (list(known.documents), len(known.proved)) == ([], 0)


@pytest.mark.parametrize(
    "habit",
    [
        save, train_another_model, ask_for_what_never_was, start_the_run_again,
        start_it_without_a_key, load_the_newest, load_by_number, leave_an_attempt, name,
        restart_a_target,
    ],
)  # fmt: skip
def test_what_is_done_for_months_leaves_nothing_that_grows(habit: Habit) -> None:
    bench = Bench(keep=2)
    looks = []
    for begin, end in ((1, WARM), (WARM, WARM + MORE)):
        for number in range(begin, end):
            habit(bench, number)
            bench.tick(1)
        bench.tick(CALM_S)
        looks.append(held(bench.machine, without=(Bench,)))
    assert grown(*looks) == []
