"""Many short histories of one kind, one for each seed."""

from __future__ import annotations

from collections.abc import Callable


def run_each(run_seed: Callable[[int], object], seeds: int) -> None:
    """One after the other, to the first that raises: with a bug in the code one must."""
    for seed in range(seeds):
        run_seed(seed)


def ends_of(run_seed: Callable[[int], tuple[int, list[str]]], seeds: int) -> list[str]:
    """How everybody's work ended in all of them; fails naming the seeds that broke a promise."""
    ends: list[str] = []
    failures: list[tuple[int, str]] = []
    for seed in range(seeds):
        try:
            ends += run_seed(seed)[1]
        except AssertionError as error:
            failures.append((seed, str(error)))
    assert not failures, failures[:5]
    return ends
