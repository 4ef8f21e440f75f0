"""What of a run will have expired after a while, if the run goes on as it did?

The newest commits say how often one comes, and how far apart their steps are. A run that has
fallen silent is taken to be as slow as its silence is long: at last nothing more is foreseen of it
than what age alone takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ckpt.base.ids import Generation, Step
from ckpt.format.messages.keeping import Retention
from ckpt.plan.keeping.retention import Expirable, Verdict, judged

NEWEST: Final = 6
"""How many of the newest commits tell how fast a run saves."""
COMING_MAX: Final = 1000
"""Most saves to come that are assumed: no rule keeps more by their count."""


@dataclass(frozen=True, slots=True)
class RunPace:
    """How a run saves."""

    every_s: float
    every_steps: int


def pace_of(committed: Sequence[Expirable], now_s: float) -> RunPace | None:
    """None when there is at most one commit, which says nothing."""
    line = sorted((one for one in committed if not one.aside), key=_when)[-NEWEST:]
    if len(line) < 2:
        return None
    gaps, first, last = len(line) - 1, line[0], line[-1]
    every_s = (last.committed_at_s - first.committed_at_s) / gaps
    every_steps = max(1, (last.step - first.step) // gaps)
    return RunPace(max(every_s, now_s - last.committed_at_s), every_steps)


def foreseen(
    committed: Sequence[Expirable], rules: Retention, now_s: float, ahead_s: float
) -> list[Verdict]:
    """Of each that is there now, what will be judged then; ascending."""
    coming = _coming(committed, now_s, ahead_s)
    supposed = {(one.step, one.generation) for one in coming}
    verdicts = judged([*committed, *coming], rules, now_s + ahead_s)
    return [one for one in verdicts if (one.step, one.generation) not in supposed]


def _coming(committed: Sequence[Expirable], now_s: float, ahead_s: float) -> list[Expirable]:
    """Saves that are supposed, from now on: of a run that may have ended none is overdue."""
    pace = pace_of(committed, now_s)
    if pace is None or pace.every_s <= 0:
        return []
    newest = max(one.generation for one in committed)
    count = min(COMING_MAX, int(ahead_s / pace.every_s))
    return [
        Expirable(
            Step(max(one.step for one in committed) + number * pace.every_steps),
            Generation(newest.term, newest.counter + number),
            now_s + number * pace.every_s,
        )
        for number in range(1, count + 1)
    ]


def _when(one: Expirable) -> tuple[float, Generation]:
    return one.committed_at_s, one.generation
