"""Scripts of benchmarks/peers, as a user starts them, on states of a few MiB."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
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


needs_both = pytest.mark.skipif(
    bool(absent()), reason=f"NO ORBAX OR TENSORSTORE: pip install {' '.join(absent())}"
)


@needs_both
def test_all_ways_give_back_what_ckpt_orbax_and_tensorstore_were_given(tmp_path: Path) -> None:
    # As a shell has it that tests JAX on eight devices; a rank is one all the same.
    devices = "--xla_force_host_platform_device_count=8"
    words = (*SMALL, "--json", "--directory", str(tmp_path))
    done = run("orbax_tensorstore.py", *words, XLA_FLAGS=devices)
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout)
    assert tuple(report["durability"]) == WAYS
    for way in WAYS:
        (figures,) = report["seconds"][way]
        assert 0 < figures.get("stall", figures["done"]) <= figures["done"] <= figures["synced"]
        assert figures["load"] > 0
    assert list(tmp_path.iterdir()) == []


@needs_both
def test_a_table_tells_all_ways_and_their_ratios(tmp_path: Path) -> None:
    done = run("orbax_tensorstore.py", *SMALL, "--directory", str(tmp_path))
    assert done.returncode == 0, done.stderr[-4000:]
    first = [line.split()[0] for line in done.stdout.splitlines()]
    assert first[:9] == ["seconds", *WAYS, "ckpt", *WAYS[1:]]


@needs_both
def test_a_rank_that_is_killed_ends_the_run_and_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, str(PEERS / "orbax_tensorstore.py"), "--ranks", "2", "--mib", "2"]
    options = ["--rounds", "1000000", "--directory", str(tmp_path)]
    with subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        while not (line := running.stderr.readline()).startswith("round 1"):
            assert line, "it ended before its first round"
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
        ranks = [int(child) for child in children if b"spawn_main" in command_line(child)]
        assert len(ranks) == 4
        os.kill(ranks[1], signal.SIGKILL)
        _, said = running.communicate(timeout=TIMEOUT_S)
    assert running.returncode == 1
    assert "error: a process ended" in said
    assert [rank for rank in ranks if Path(f"/proc/{rank}").exists()] == []
    assert list(tmp_path.iterdir()) == []


def command_line(pid: str) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


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
