"""Many seeds on all cores: `python -m tests.sim.leading.campaign --seeds 10000`; prints what struck
and every seed that failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.sim.leading.history import NAMES, History, run_seed
from tests.sim.leading.strikes import STRIKES
from tests.sim.seeds import campaign, each_report, in_chunks


@dataclass(slots=True)
class Campaign:
    """What many histories did."""

    first: int = 0
    seeds: int = 0
    phases: Counter[str] = field(default_factory=Counter)
    """Those in which the leader was struck."""
    strikes: Counter[str] = field(default_factory=Counter)
    aims: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, str]] = field(default_factory=list)

    def add_history(self, one: History) -> None:
        self.phases[one.phase] += one.struck
        self.strikes.update(one.strikes)
        self.aims.update(one.aims)
        names = (
            "terms", "warm", "committed", "loaded", "labeled", "stood", "done_late", "lost",
            "given_up", "only_coordinators",
        )  # fmt: skip
        self.counts.update({name: int(getattr(one, name)) for name in names})

    def add(self, other: Campaign) -> None:
        self.seeds += other.seeds
        self.failures += other.failures
        for name in ("phases", "strikes", "aims", "counts"):
            getattr(self, name).update(getattr(other, name))


def run_either(seed: int) -> History:
    """Of every other seed the coordinators rest when nobody wants anything."""
    return run_seed(seed, rests=seed % 2 == 1)


def run_chunk(first: int, count: int) -> Campaign:
    """Seeds [first, first + count) in this process."""
    found = Campaign(first, count)
    for history in each_report(run_either, range(first, first + count), found.failures):
        found.add_history(history)
    return found


def run_campaign(first: int, seeds: int, jobs: int) -> Campaign:
    """All seeds on `jobs` processes; equal for any number of them."""
    total = Campaign(first)
    for one in in_chunks(run_chunk, first, seeds, jobs):
        total.add(one)
    return total


def table(found: Campaign) -> Iterator[str]:
    """How often what struck."""
    yield "struck in " + ", ".join(f"{phase}: {found.phases[phase]}" for phase in NAMES)
    for name in STRIKES:
        yield f"{name:<28}{found.strikes[name]:>8}"
    for name, count in sorted(found.aims.items()):
        yield f"  {name:<26}{count:>8}"
    yield ", ".join(f"{count} {name}" for name, count in sorted(found.counts.items()))
    yield f"{found.seeds} seeds from {found.first} on, {len(found.failures)} failures"


if __name__ == "__main__":
    raise SystemExit(campaign(__doc__, run_campaign, table))
