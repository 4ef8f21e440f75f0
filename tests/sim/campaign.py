"""Many seeds on all cores: `python -m tests.sim.campaign --seeds 10000`;
prints what was hit and every failing seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.sim import aimed
from tests.sim.faults import FAULTS
from tests.sim.move_rounds import MOVE_FAULTS
from tests.sim.rebuilds import OWN_FAULTS, WORKER_FAULTS
from tests.sim.scenario import PHASES, Report, run_seed
from tests.sim.seeds import campaign, each_report, in_chunks
from tests.sim.windows import Window

UNREACHABLE = {
    ("F14 reader", "J"): "a launch some of whose ranks have no number has committed nothing",
    ("F7 document", "J"): "nor is there a document that could rot",
    ("F8 misplaced", "J"): "nor a committed column",
}
"""Cells of the matrix that no history can hit, each with its reason."""


@dataclass(frozen=True, slots=True)
class Least:
    """What every seed that ended had at least."""

    launches: int = 99
    generations: int = 99
    faults: int = 99
    """Those that struck."""

    def both(self, other: Least) -> Least:
        return Least(
            min(self.launches, other.launches),
            min(self.generations, other.generations),
            min(self.faults, other.faults),
        )


@dataclass(slots=True)
class Outcome:
    """What a campaign found."""

    first: int = 0
    seeds: int = 0
    commits: int = 0
    events: int = 0
    cells: Counter[tuple[str, str]] = field(default_factory=Counter)
    windows: Counter[tuple[Window, str]] = field(default_factory=Counter)
    failures: list[tuple[int, str]] = field(default_factory=list)
    least: Least = field(default_factory=Least)

    def add(self, other: Outcome) -> None:
        self.seeds += other.seeds
        self.commits += other.commits
        self.events += other.events
        self.cells += other.cells
        self.windows += other.windows
        self.failures += other.failures
        self.least = self.least.both(other.least)

    def add_report(self, report: Report) -> None:
        self.cells += report.cells
        self.windows += report.windows
        self.commits += report.committed
        self.events += report.steps
        mine = Least(report.launches, report.generations, report.cells.total())
        self.least = self.least.both(mine)

    @property
    def missed(self) -> list[tuple[str, str]]:
        """Cells that no seed hit."""
        wanted = [(fault, phase) for fault in FAULTS for phase in PHASES]
        wanted += [(fault, "B") for fault in OWN_FAULTS]
        wanted += [(fault, "M") for fault in (*WORKER_FAULTS, *MOVE_FAULTS)]
        return [c for c in wanted if not self.cells[c] and c not in UNREACHABLE]

    @property
    def unstruck(self) -> list[str]:
        """Windows between two durable steps in which no seed struck anybody."""
        struck = {window for window, _ in self.windows}
        return [str(window) for window in aimed.ALL if window not in struck]


def run_chunk(first: int, count: int) -> Outcome:
    """Seeds [first, first + count) in this process."""
    outcome = Outcome(seeds=count)
    for report in each_report(run_seed, range(first, first + count), outcome.failures):
        outcome.add_report(report)
    return outcome


def run_campaign(first: int, seeds: int, jobs: int) -> Outcome:
    """All seeds on `jobs` processes; equal for any number of them."""
    total = Outcome(first)
    for outcome in in_chunks(run_chunk, first, seeds, jobs):
        total.add(outcome)
    return total


def table(outcome: Outcome) -> Iterator[str]:
    """How often each fault struck in each phase, and who in each window."""
    yield f"{'fault':<18}" + "".join(f"{phase:>8}" for phase in PHASES)
    for fault in (*FAULTS, *OWN_FAULTS, *MOVE_FAULTS):
        yield f"{fault:<18}" + "".join(f"{outcome.cells[fault, phase]:>8}" for phase in PHASES)
    yield ""
    yield from aimed.table(outcome.windows)
    yield (
        f"{outcome.seeds} seeds from {outcome.first} on, {outcome.commits} commits, "
        f"{outcome.events} events, {len(outcome.failures)} failures"
    )
    least = outcome.least
    yield (
        f"every seed had at least {least.launches} launches, {least.generations} generations, "
        f"{least.faults} faults that struck"
    )


if __name__ == "__main__":
    raise SystemExit(campaign(__doc__, run_campaign, table))
