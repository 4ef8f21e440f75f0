"""Many seeds on all cores: `python -m tests.sim.leading.campaign --seeds 10000`; prints what struck
and every seed that failed.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context

from tests.sim.leading.history import NAMES, History, run_seed
from tests.sim.leading.strikes import STRIKES

CHUNK = 50


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
            "terms", "warm", "committed", "loaded", "done_late", "lost", "given_up",
            "only_coordinators",
        )  # fmt: skip
        self.counts.update({name: int(getattr(one, name)) for name in names})

    def add(self, other: Campaign) -> None:
        self.seeds += other.seeds
        self.failures += other.failures
        for name in ("phases", "strikes", "aims", "counts"):
            getattr(self, name).update(getattr(other, name))


def run_chunk(first: int, count: int) -> Campaign:
    """Seeds [first, first + count) in this process. A failure is noted, the next seed goes on."""
    found = Campaign(first)
    for seed in range(first, first + count):
        # A world is a knot of cycles.
        gc.collect()
        found.seeds += 1
        try:
            found.add_history(run_seed(seed))
        except Exception as error:
            found.failures.append((seed, f"{type(error).__name__}: {error}"))
    return found


def _settle_down() -> None:
    """Of a process that runs chunks: what is imported stays, and is never looked at again."""
    gc.collect()
    gc.freeze()
    gc.disable()


def run_campaign(first: int, seeds: int, jobs: int) -> Campaign:
    """All seeds on `jobs` processes; equal for any number of them."""
    total = Campaign(first)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # Its threads spin, and nobody here uses it.
    with ProcessPoolExecutor(
        jobs, mp_context=get_context("spawn"), initializer=_settle_down
    ) as pool:
        starts = range(first, first + seeds, CHUNK)
        counts = [min(CHUNK, first + seeds - start) for start in starts]
        for one in pool.map(run_chunk, starts, counts):
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


def main(argv: list[str] | None = None) -> int:
    """0 when no seed failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(argv)
    found = run_campaign(options.first, options.seeds, options.jobs)
    for line in table(found):
        sys.stdout.write(line + "\n")
    for seed, text in found.failures[:20]:
        sys.stdout.write(f"seed {seed}: {text}\n")
    return 1 if found.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
