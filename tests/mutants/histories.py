"""The simulator alone as a judge: all kinds of histories in one process, until one breaks a
promise. `python -m tests.mutants.histories --seeds 60 --known FILE`.

On a tree without a bug it writes down how each history went. Told that, it says of a bug that broke
nothing whether any history went another way: if none did, it changes nothing here.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.sim import (
    scenario,
    test_by_number,
    test_catalogs,
    test_closed_stores,
    test_copied_directories,
    test_drains,
    test_files,
    test_late_ranks,
    test_loads,
    test_references,
)
from tests.sim.drain_world import small_items
from tests.sim.histories import LEAST, check_share
from tests.sim.oracles import Violation

MAIN: Final = "main"
TURN: Final = 6
"""So many of the main campaign's for one of each other kind."""


def _drained(seed: int) -> object:
    with pytest.MonkeyPatch.context() as patch:
        small_items(patch)
        return test_drains.run_seed(seed)


def _saved(seed: int) -> object:
    steps, ends = test_closed_stores.run_seed(seed)
    assert set(ends) == {"SaveCommitted"}, ends
    return steps, ends


def _ends(ended: object) -> list[str]:
    """How each save or load of a history ended, where it says so."""
    match ended:
        case scenario.Report():
            return ended.ends
        case (int(), list(ends)):
            return ends
    return []


KINDS: Final[dict[str, Callable[[int], object]]] = {
    MAIN: scenario.run_seed,
    "references": test_references.run_seed,
    "files": test_files.run_seed,
    "loads": test_loads.run_seed,
    "by number": test_by_number.run_seed,
    "drains": _drained,
    "late ranks": test_late_ranks.run_seed,
    "closed stores": _saved,
    "catalogs": test_catalogs.run_seed,
    "copied directories": test_copied_directories.history,
}


def in_turn(seeds: int) -> Iterator[tuple[str, int]]:
    """So many seeds of the main campaign, the others between them."""
    for seed in range(seeds):
        yield MAIN, seed
        if seed % TURN == TURN - 1:
            yield from ((kind, seed // TURN) for kind in KINDS if kind != MAIN)


def main(arguments: Sequence[str] | None = None) -> int:
    """1 when a history broke a promise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=60, help="of the main campaign")
    parser.add_argument("--known", type=Path, help="how they go without a bug: written, then read")
    chosen = parser.parse_args(arguments)
    known: Path | None = chosen.known
    before = known.read_text().splitlines() if known is not None and known.exists() else None
    lines: list[str] = []
    ends: dict[str, list[str]] = {kind: [] for kind in KINDS}
    cpu_s = dict.fromkeys(KINDS, 0.0)
    for kind, seed in in_turn(chosen.seeds):
        gc.collect()
        begun = time.process_time()
        try:
            ended = KINDS[kind](seed)
        except Exception as error:
            sys.stdout.write(f"broken by {kind} {seed}: {type(error).__name__}: {error}\n")
            return 1
        cpu_s[kind] += time.process_time() - begun
        lines.append(f"{kind} {seed} {ended}")
        ends[kind] += _ends(ended)
    for kind in LEAST:
        try:
            check_share(kind, ends[kind])
        except Violation as error:
            sys.stdout.write(f"broken by all {len(lines)}: {error}\n")
            return 1
    if known is not None and before is None:
        known.write_text("\n".join(lines))
    told = " ".join(f"{kind} {spent:.1f}" for kind, spent in cpu_s.items())
    sys.stdout.write(f"{len(lines)} histories hold; CPU seconds: {told}\n")
    sys.stdout.write(f"{changes(before, lines)}\n")
    return 0


def changes(before: list[str] | None, lines: list[str]) -> str:
    """How many histories went another way than without a bug."""
    if before is None:
        return "nothing to compare with"
    changed = [new for old, new in zip(before, lines, strict=True) if old != new]
    if not changed:
        return f"changes none of {len(lines)} histories"
    kinds = [kind for kind in KINDS if any(line.startswith(f"{kind} ") for line in changed)]
    return f"changes {len(changed)} of {len(lines)} histories: {', '.join(kinds)}"


if __name__ == "__main__":
    raise SystemExit(main())
