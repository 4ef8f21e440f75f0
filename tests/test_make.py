"""What `make` does on a fresh machine, and that no test is forgotten: read off make's own plan."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def plan(directory: Path, target: str) -> list[str]:
    """The commands that `make TARGET` would run there, in order, whatever this test was run by."""
    # What a make above us was given, such as TESTS, a make below it takes for its own.
    above = ("MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "MAKELEVEL", "TESTS", "WORKERS")
    done = subprocess.run(
        ["make", "--dry-run", "--always-make", f"PYTHON={sys.executable}", target],
        cwd=directory,
        env={name: value for name, value in os.environ.items() if name not in above},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.replace("\\\n", " ").splitlines()


@pytest.mark.parametrize(
    ("target", "last"),
    [("demo", "ckpt demo"), ("test", "python -m tests.again"), ("docs", "mkdocs")],
)
def test_a_command_makes_its_own_environment_first(tmp_path: Path, target: str, last: str) -> None:
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    commands = plan(tmp_path, target)
    places = [
        next(number for number, line in enumerate(commands) if wanted in line)
        for wanted in ("-m venv --clear .venv", "--group dev --editable", f".venv/bin/{last}")
    ]
    assert places == sorted(places)
    assert not any(re.search(r"\b(sudo|apt-get|git)\b", line) for line in commands)


def test_a_link_that_leads_nowhere_ends_make_docs() -> None:
    """With --quiet mkdocs drops its warnings before --strict counts them, and ends with 0."""
    (build,) = (line for line in plan(ROOT, "docs") if "mkdocs" in line)
    words = build.split()
    assert "--strict" in words
    assert not {"-q", "--quiet"} & set(words)


def test_a_make_around_the_tests_changes_no_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`make test TESTS=tests/test_make.py`."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    before = plan(tmp_path, "test")
    around = tmp_path / "around.mk"
    around.write_text('all:\n\t@echo "$$MAKEFLAGS"\n')
    said = subprocess.run(
        ["make", "-f", around, "TESTS=tests/test_make.py"], capture_output=True, text=True
    )
    assert "TESTS=" in said.stdout
    monkeypatch.setenv("MAKEFLAGS", said.stdout.strip())
    monkeypatch.setenv("TESTS", "tests/test_make.py")
    assert plan(tmp_path, "test") == before


def test_all_that_make_test_leaves_out_has_a_target_of_its_own() -> None:
    (core,) = (line for line in plan(ROOT, "test") if "tests.again" in line)
    left_out = re.findall(r"--ignore=(\S+)", core)
    targets = re.findall(r"^(test-[a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    run = " ".join(line for target in targets for line in plan(ROOT, target))
    assert left_out
    assert [one for one in left_out if not re.search(rf"{one}(\s|$)", run)] == []


def test_what_does_not_have_its_turn_no_target_runs_but_soak() -> None:
    """A target that names one test runs that whatever its marks."""
    targets = re.findall(r"^(test(?:-[a-z]+)?):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    runs = [line for name in targets for line in plan(ROOT, name) if "tests.again" in line]
    assert len(runs) >= len(targets)
    assert [line for line in runs if '-m "not slow"' not in line and "::" not in line] == []
