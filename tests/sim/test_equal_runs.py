"""What failed under a seed fails under it again: in another process, which orders its sets by other
hashes, a history is the same.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.landing import in_turn, turn_of
from tests.pages import ROOT

HERE = Path(__file__).parent
SEEDS = 3
SEEDS_OF = 2_000
HASHES = ("1", "2")
MARK = "\ndef run_seed(seed: int"
KINDS = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (*HERE.glob("*.py"), *HERE.glob("leading/*.py"))
    if MARK in path.read_text()
)
"""Every module that runs the history of a seed."""
RUNS = """
import importlib, sys
import pytest
from tests.sim.drain_world import small_items

kind, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with pytest.MonkeyPatch.context() as patch:
    small_items(patch)
    for seed in range(first, first + count):
        sys.stdout.write(f"{importlib.import_module(kind).run_seed(seed)}\\n")
"""


@pytest.mark.parametrize("kind", in_turn(KINDS, every=len(KINDS)))
def test_a_seed_runs_equally_in_every_process(kind: str) -> None:
    arguments = [kind, str(turn_of(SEEDS, SEEDS_OF, every=len(KINDS))), str(SEEDS)]
    ran = [
        subprocess.run(
            [sys.executable, "-c", RUNS, *arguments],
            cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": order}, capture_output=True, text=True,
            check=True,
        ).stdout.splitlines()
        for order in HASHES
    ]  # fmt: skip
    assert len(ran[0]) == SEEDS
    assert ran[0] == ran[1]
