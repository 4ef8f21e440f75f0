"""What one bad target costs a burst, short or long, in virtual time: P4 in numbers.

    python -m tests.sim.short_bursts [RANKS ...]      prints the table of docs/performance.md

A target is stopped, or its device becomes 10 or 100 times slower, when all ranks have their plans,
or in the middle of the burst. `kill` stands for what nobody can do better: its connections end, so
that everybody knows at once; what is left is to send its columns again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from statistics import mean
from typing import Final

from ckpt.base.units import US_PER_S
from ckpt.erasure.code import Code
from ckpt.protocol.stager.events import SaveCommitted
from tests.sim.crowd import DAEMONS, Crowd
from tests.sim.harms import kill, stop
from tests.sim.target_node import TargetNode

CELLS: Final = 8
OPERATION_US: Final = 215
"""What one of a disk takes on average, and"""
COLUMN_OPERATIONS: Final = CELLS + 6
"""so many of them a column."""
GAP_US: Final = 30 * US_PER_S
FIRST, SECOND = 10, 11
Harm = Callable[[TargetNode], None]


def slow_down(times: int, target: TargetNode) -> None:
    target.disk_slow *= times


HARMS: Final[dict[str, Harm]] = {
    "kill": kill,
    "stop": stop,
    "100 x": partial(slow_down, 100),
    "10 x": partial(slow_down, 10),
}


@dataclass(frozen=True, slots=True)
class Burst:
    """Its devices are as slow as it takes to last for about `seconds`."""

    ranks: int
    targets: int
    code: Code
    seconds: float
    seed: int = 1
    former: bool = False
    """An equal one went before: the run's columns are known."""

    @property
    def slow(self) -> int:
        columns = self.ranks * self.code.n / self.targets
        return max(1, round(self.seconds * 1e6 / columns / COLUMN_OPERATIONS / OPERATION_US))


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one burst."""

    seconds: float
    missing: int
    sent_again: float
    """Of the planned bytes."""


def cost(burst: Burst, harm: Harm | None = None, after_s: float = 0.0) -> Cost:
    """`after_s`: how long the burst has run when the harm strikes."""
    steps = (FIRST, SECOND) if burst.former else (FIRST,)
    crowd = Crowd(
        burst.seed, burst.ranks, [burst.slow] * burst.targets, burst.code, CELLS, steps,
        ticks=DAEMONS, gap_us=GAP_US,
    )  # fmt: skip
    crowd.start()
    for _ in steps[1:]:
        crowd.clock.run(lambda: not any(node.writers for node in crowd.ranks), GAP_US)
    assert crowd.clock.run(lambda: all(node.writers for node in crowd.ranks), 2 * GAP_US)
    victim = list(crowd.targets.values())[3]
    if harm is not None:
        crowd.clock.after(round(after_s * US_PER_S), harm, victim)
    outcome = crowd.finish()
    ends = [node.outcomes[steps[-1]] for node in crowd.ranks]
    infos = [end.info for end in ends if isinstance(end, SaveCommitted)]
    return Cost(
        max(info.commit_us for info in infos) / 1e6,
        max(info.columns_missing for info in infos),
        outcome.fragment_bytes / outcome.planned_bytes - 1,
    )


@cache
def healthy(burst: Burst) -> Cost:
    """Equal bursts take equal time: each is simulated once, whatever is asked of it."""
    return cost(burst)


def ratio(burst: Burst, harm: str, part: float, seeds: range = range(1, 3)) -> float:
    """To the same burst without harm, which strikes after so great a part of it."""
    ratios = []
    for seed in seeds:
        one = replace(burst, seed=seed)
        well = healthy(one)
        ratios.append(cost(one, HARMS[harm], part * well.seconds).seconds / well.seconds)
    return mean(ratios)


def row(burst: Burst, seeds: range) -> str:
    """Of the table."""
    well = mean(healthy(replace(burst, seed=seed)).seconds for seed in seeds)
    cells = [f"{burst.ranks}, {burst.code} on {burst.targets}", f"{well:.2f} s"]
    for harm in HARMS:
        cells.append("; ".join(f"{ratio(burst, harm, part, seeds):.2f}" for part in (0, 0.5)))
    return f"| {' | '.join(cells)} |"


def main(ranks: list[int]) -> None:
    say("| ranks, code | healthy | known at once | stopped | 100 x | 10 x |")
    say("|---|---|---|---|---|---|")
    for count in ranks:
        for targets, code in ((7, Code(4, 2)), (12, Code(4, 2)), (12, Code(8, 2))):
            for seconds in (0.3, 0.5, 1, 2, 4) if count < 64 else (0.5, 2):
                seeds = range(1, 3 if count < 24 else 2)
                say(row(Burst(count, targets, code, seconds), seeds))


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or [4, 24, 64])
