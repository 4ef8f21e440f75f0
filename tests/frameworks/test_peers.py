"""Scripts of benchmarks/peers, as a user starts them, on states of a few MiB."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PEERS = Path(__file__).resolve().parents[2] / "benchmarks" / "peers"
TIMEOUT_S = 300.0
SMALL = ("--ranks", "2", "--mib", "2", "--rounds", "1")
WAYS = ("ckpt", "tensorstore", "orbax", "orbax-plain")
EXIT_MISSING = 69


def run(script: str, *more: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PEERS / script), *more],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, **environ},
    )


def absent() -> list[str]:
    return [
        package
        for package, module in (("orbax-checkpoint", "orbax"), ("tensorstore", "tensorstore"))
        if importlib.util.find_spec(module) is None
    ]


@pytest.mark.skipif(bool(absent()), reason=f"NO ORBAX OR TENSORSTORE: pip install {absent()}")
def test_all_ways_give_back_what_ckpt_orbax_and_tensorstore_were_given(tmp_path: Path) -> None:
    done = run("orbax_tensorstore.py", *SMALL, "--json", "--directory", str(tmp_path))
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout)
    assert tuple(report["durability"]) == WAYS
    for way in WAYS:
        (figures,) = report["seconds"][way]
        assert 0 < figures.get("stall", figures["done"]) <= figures["done"] <= figures["synced"]
        assert figures["load"] > 0
    assert list(tmp_path.iterdir()) == []


def test_dcp_and_ckpt_are_told_side_by_side(tmp_path: Path) -> None:
    done = run("torch_dcp.py", *SMALL, "--beside-s", "0.1", "--directory", str(tmp_path))
    assert done.returncode == 0, done.stderr[-4000:]
    assert "stall / dcp.async_save tuned" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_package_that_cannot_be_loaded_is_named_with_its_remedy(tmp_path: Path) -> None:
    (tmp_path / "tensorstore.py").write_text("raise ImportError('libmissing.so: not found')")
    done = run("orbax_tensorstore.py", *SMALL, PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (EXIT_MISSING, "")
    assert "error: package tensorstore cannot be used: libmissing.so: not found" in done.stderr
    hint = done.stderr.splitlines()[-1]
    assert hint.startswith(f"hint: {sys.executable} -m pip install ")
    assert "tensorstore" in hint


def test_a_wrong_option_is_refused_before_anything_starts(tmp_path: Path) -> None:
    done = run("orbax_tensorstore.py", "--ranks", "0")
    assert done.returncode == 2
    assert "argument --ranks: it must be at least 1" in done.stderr
    done = run("orbax_tensorstore.py", "--directory", str(tmp_path / "none"))
    assert done.returncode == 2
    assert "there is no directory" in done.stderr
