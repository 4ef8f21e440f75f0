"""What will have expired after a while, if a run goes on as it did."""

from __future__ import annotations

import pytest

from ckpt.base.ids import Generation, Step
from ckpt.format.messages.keeping import ALL_STAYS, Best, Better, Retention
from ckpt.plan.keeping.foresight import RunPace, foreseen, pace_of
from ckpt.plan.keeping.retention import Expirable

EVERY_S = 60.0
NOW_S = 1000.0


def run_of(*steps: int, last_at_s: float = NOW_S, held: tuple[int, ...] = ()) -> list[Expirable]:
    """Committed EVERY_S apart, the last of them then."""
    first_s = last_at_s - EVERY_S * (len(steps) - 1)
    return [
        Expirable(
            Step(step), Generation(1, 1 + number), first_s + number * EVERY_S,
            {"loss": float(step)}, held="pinned" if step in held else "",
        )
        for number, step in enumerate(steps)
    ]  # fmt: skip


def gone(committed: list[Expirable], rules: Retention, ahead_s: float) -> list[int]:
    return [one.step for one in foreseen(committed, rules, NOW_S, ahead_s) if not one.stays]


def test_a_step_goes_when_so_many_more_will_have_come() -> None:
    committed = run_of(10, 20, 30)
    assert gone(committed, Retention(last=3), EVERY_S - 1) == []
    assert gone(committed, Retention(last=3), EVERY_S) == [10]
    assert gone(committed, Retention(last=3), 3 * EVERY_S) == [10, 20, 30]


def test_a_step_goes_when_it_will_be_too_old() -> None:
    committed = run_of(10, 20, 30)
    assert gone(committed, Retention(age_s=150), 29) == []
    assert gone(committed, Retention(age_s=150), 31) == [10]


def test_the_newest_of_a_run_that_has_ended_stays() -> None:
    """One commit says nothing of a pace, and silence makes it slow."""
    assert gone(run_of(10), Retention(age_s=1), 1e6) == []
    silent = run_of(10, 20, 30, last_at_s=NOW_S - 3600)
    assert gone(silent, Retention(last=1), 3599) == [10, 20]
    assert gone(silent, Retention(last=3), 3599) == []
    assert gone(silent, Retention(last=3), 3600) == [10]


def test_what_other_rules_keep_stays() -> None:
    committed = run_of(100, 110, 120, held=(110,))
    assert gone(committed, Retention(last=1, every=100), 1e4) == [120]
    best = Retention(last=1, best=Best("loss", Better.MIN, 1))
    assert gone(committed, best, 1e4) == [120]
    assert gone(committed, ALL_STAYS, 1e4) == []


def test_saves_that_are_supposed_are_in_no_answer() -> None:
    committed = run_of(10, 20)
    found = foreseen(committed, Retention(last=2), NOW_S, 1e9)
    assert [one.step for one in found] == [10, 20]


@pytest.mark.parametrize(
    ("committed", "pace"),
    [
        ([], None),
        (run_of(7), None),
        (run_of(10, 20, 30), RunPace(EVERY_S, 10)),
        (run_of(*range(1, 50)), RunPace(EVERY_S, 1)),
        (run_of(10, 20, last_at_s=NOW_S - 500), RunPace(500.0, 10)),
        (run_of(20, 10), RunPace(EVERY_S, 1)),
    ],
)
def test_how_a_run_saves(committed: list[Expirable], pace: RunPace | None) -> None:
    assert pace_of(committed, NOW_S) == pace
