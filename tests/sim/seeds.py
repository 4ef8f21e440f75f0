"""Many seeds on all cores, and what a person reads of them at a terminal."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Protocol, TypeVar

CHUNK = 50

Report = TypeVar("Report")


class Failing(Protocol):
    """What many seeds did."""

    failures: list[tuple[int, str]]
    """Seeds that broke a promise, and which."""


Ran = TypeVar("Ran", bound=Failing)
Chunk = TypeVar("Chunk")


def each_report(
    run_seed: Callable[[int], Report], seeds: Iterable[int], failures: list[tuple[int, str]]
) -> Iterator[Report]:
    """Of each seed, in this process. A failure is noted, and the next seed goes on.

    A world is a knot of cycles: it is collected after each seed, so that the next one finds its
    memory in the cache. What was there before is looked at once, not after each seed.
    """
    with _settled():
        for seed in seeds:
            gc.collect()
            try:
                report = run_seed(seed)
            except Exception as error:
                failures.append((seed, f"{type(error).__name__}: {error}"))
            else:
                yield report


@contextmanager
def _settled() -> Iterator[None]:
    """In a process that goes on to do other things: a test's."""
    if not gc.isenabled():
        yield
        return
    _settle_down()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.enable()


def in_chunks(
    run_chunk: Callable[[int, int], Chunk], first: int, seeds: int, jobs: int
) -> Iterator[Chunk]:
    """Of each chunk, (its first seed, how many), on `jobs` processes; in their order."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # Its threads spin, and nobody here uses it.
    with ProcessPoolExecutor(
        jobs, mp_context=get_context("spawn"), initializer=_settle_down
    ) as pool:
        starts = range(first, first + seeds, CHUNK)
        yield from pool.map(run_chunk, starts, [min(CHUNK, first + seeds - at) for at in starts])


def _settle_down() -> None:
    """In a process that runs seeds: what is imported stays, and is never looked at again."""
    gc.collect()
    gc.freeze()
    gc.disable()


def campaign(
    about: str | None, run: Callable[[int, int, int], Ran], table: Callable[[Ran], Iterable[str]],
    argv: Sequence[str] | None = None,
) -> int:  # fmt: skip
    """Of a command: 0 when no seed failed. `run` takes the first seed, how many, and processes."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(argv)
    found = run(options.first, options.seeds, options.jobs)
    for line in table(found):
        sys.stdout.write(line + "\n")
    for seed, text in found.failures[:20]:
        sys.stdout.write(f"seed {seed}: {text}\n")
    return 1 if found.failures else 0
