"""A test that fails beside others in CI runs once more, by itself, and is named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Fails as often as its file says, and counts how often it ran.
FAILS = """
import pathlib

def test_{name}():
    counter = pathlib.Path({counter!r})
    ran = int(counter.read_text()) if counter.exists() else 0
    counter.write_text(str(ran + 1))
    assert ran >= {times}
"""


def written(folder: Path, name: str, times: int) -> Path:
    """A test that fails so many times; its counter."""
    counter = folder / f"{name}.ran"
    text = FAILS.format(name=name, counter=str(counter), times=times)
    (folder / f"test_{name}.py").write_text(text)
    return counter


def ran(folder: Path, *, ci: bool, workers: str = "0") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CI": "true" if ci else "", "PYTHONPATH": str(ROOT)}
    plugins = ["-o", "addopts=--disable-plugin-autoload -p xdist"]
    options = ["-n", workers, f"--rootdir={folder}", *plugins, "-m", "not slow"]
    return subprocess.run(
        [sys.executable, "-m", "tests.again", *options, str(folder)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("workers", ["0", "2"])
def test_what_passes_by_itself_is_named_and_passes(tmp_path: Path, workers: str) -> None:
    unsteady, steady = written(tmp_path, "unsteady", 1), written(tmp_path, "steady", 0)
    done = ran(tmp_path, ci=True, workers=workers)
    assert done.returncode == 0
    (line,) = (one for one in done.stdout.splitlines() if one.startswith("UNSTEADY"))
    assert "test_unsteady" in line
    assert "assert 0 >= 1" in done.stdout
    assert (unsteady.read_text(), steady.read_text()) == ("2", "1")


def test_what_fails_by_itself_too_has_failed(tmp_path: Path) -> None:
    counter = written(tmp_path, "broken", 9)
    done = ran(tmp_path, ci=True)
    assert done.returncode == 1
    assert "UNSTEADY" not in done.stdout
    assert counter.read_text() == "2"


def test_many_failures_count_at_once(tmp_path: Path) -> None:
    counters = [written(tmp_path, f"one_{number}", 1) for number in range(4)]
    assert ran(tmp_path, ci=True).returncode == 1
    assert [one.read_text() for one in counters] == ["1"] * 4


def test_no_tests_and_wrong_options_are_said_as_pytest_says_them(tmp_path: Path) -> None:
    assert ran(tmp_path, ci=True).returncode == pytest.ExitCode.NO_TESTS_COLLECTED
    (tmp_path / "test_syntax.py").write_text("def broken(:\n")
    assert ran(tmp_path, ci=True).returncode == pytest.ExitCode.INTERRUPTED


def test_outside_of_ci_a_failure_counts_at_once(tmp_path: Path) -> None:
    counter = written(tmp_path, "unsteady", 1)
    assert ran(tmp_path, ci=False).returncode == 1
    assert counter.read_text() == "1"
