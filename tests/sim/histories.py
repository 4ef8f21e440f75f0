"""Many short histories of one kind, one for each seed.

What no single history can show is seen in many: saves and loads that fail with an honest error,
more often than the faults account for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tests.sim.oracles import Violation

LEAST: Final[Mapping[str, tuple[str, float]]] = {
    "main": ("committed", 0.84),
    "files": ("committed", 0.9),
    "loads": ("read", 0.78),
    "by number": ("read", 0.95),
    "references": ("referring", 0.55),
    "closed stores": ("SaveCommitted", 1.0),
}
"""By kind of history: the end that most come to, and how many of all at least: a few in a hundred
below what many seeds show."""
ENOUGH: Final = 40
"""The share of fewer ends says nothing."""


def run_each(run_seed: Callable[[int], object], seeds: int, begin: int = 0) -> None:
    """One after the other, to the first that raises: with a bug in the code one must.

    Begin at the one that does, where earlier ones only cost time.
    """
    for seed in range(begin, begin + seeds):
        run_seed(seed)


def ends_of(
    run_seed: Callable[[int], tuple[int, list[str]]], seeds: int, begin: int = 0
) -> list[str]:
    """How everybody's work ended in all of them; fails naming the seeds that broke a promise."""
    ends: list[str] = []
    failures: list[tuple[int, str]] = []
    for seed in range(begin, begin + seeds):
        try:
            ends += run_seed(seed)[1]
        except AssertionError as error:
            failures.append((seed, str(error)))
    assert not failures, failures[:5]
    return ends


def check_share(kind: str, ends: Sequence[str]) -> None:
    """Of the ends of many histories of a kind in LEAST."""
    end, least = LEAST[kind]
    share = ends.count(end) / max(1, len(ends))
    if len(ends) >= ENOUGH and share < least:
        raise Violation(f"{kind}: only {share:.0%} are {end}, at least {least:.0%} should be")
