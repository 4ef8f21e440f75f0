"""Each lower bound in pyproject.toml is a version that works: environments that have all of them at
once pass the tests of what uses these packages. In `make soak`: it takes minutes, and what it tries
changes as pyproject.toml does."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.test_requirements import BASE, EXTRAS
from tests.tree import ROOT
from tests.wheel.environments import Environment, interpreter

INSTALL_TIMEOUT_S: Final = 1200.0
TESTS_TIMEOUT_S: Final = 1800.0
PYTHONS: Final = ("3.11", "3.12")
"""For which the oldest of these packages have wheels."""
BOUND: Final = re.compile(r"([\w.-]+)(?:\[[\w,-]+\])?>=([\w.]+)")
TRIED: Final = {
    "server,s3": (
        "tests/format", "tests/objects", "tests/fs", "tests/transfer", "tests/plan",
        "tests/client/test_environment.py", "tests/client/test_changed_imports.py",
        "tests/client/test_cli_cluster.py",
    ),
    "server,jax,lightning,huggingface": (
        "tests/frameworks/test_transformers_best.py", "tests/frameworks/test_accelerate.py",
        "tests/frameworks/test_lightning_metrics.py", "tests/frameworks/test_lightning_names.py",
        "tests/frameworks/test_fsspec_suite.py", "tests/frameworks/test_jax_known.py",
        "tests/frameworks/test_torch_save.py",
    ),
}  # fmt: skip
"""Extras -> the tests of what they are for."""


def bounds() -> Iterator[str]:
    """`NAME==VERSION` of each lower bound: what pip takes for constraints."""
    for line in [*BASE, *(line for lines in EXTRAS.values() for line in lines)]:
        if found := BOUND.match(line):
            yield f"{found[1]}=={found[2]}"


def test_every_requirement_has_a_lower_bound() -> None:
    lines = [*BASE, *(line for lines in EXTRAS.values() for line in lines)]
    named = [line for line in lines if not line.startswith("ckpt-burst[")]
    assert len(list(bounds())) == len(named)


@pytest.mark.slow
@pytest.mark.timeout(INSTALL_TIMEOUT_S + TESTS_TIMEOUT_S)
@pytest.mark.parametrize("extras", TRIED)
def test_the_lowest_versions_work(extras: str, tmp_path: Path) -> None:
    python = next(filter(None, map(interpreter, PYTHONS)), None)
    if python is None:
        pytest.skip(f"no Python of {', '.join(PYTHONS)} is here")
    constraints = tmp_path / "constraints"
    constraints.write_text("\n".join(bounds()))
    folder = tmp_path / "lowest"
    subprocess.run([python, "-m", "venv", folder], check=True, timeout=INSTALL_TIMEOUT_S)
    inside = Environment(folder).python
    # Editable: the tests come with the tree. `--group` is new to pip; a venv's own may be older.
    pip = [sys.executable, "-m", "pip", "--python", inside, "--disable-pip-version-check"]
    words = ["--constraint", constraints, "--editable", f".[{extras}]", "--group", "test"]
    line = [*pip, "install", "--quiet", *words]
    subprocess.run(line, check=True, cwd=ROOT, timeout=INSTALL_TIMEOUT_S)
    ended = subprocess.run(
        [inside, "-m", "pytest", "-q", "-n", "1", "--dist", "loadfile", "-m", "not slow", *TRIED[extras]],
        cwd=ROOT, capture_output=True, text=True, timeout=TESTS_TIMEOUT_S, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout[-6000:]
