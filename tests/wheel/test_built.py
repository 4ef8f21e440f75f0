"""The sdist and the wheel are whole: a package index takes them, and either gives the other."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.tree import ROOT
from tests.wheel.environments import BUILD, once

TIMEOUT_S = 100.0
WORKERS = 4


def test_what_several_workers_ask_for_is_made_once(tmp_path: Path) -> None:
    def ask(number: int) -> str:
        once(tmp_path / "made", lambda: (tmp_path / "made").write_text(str(number)))
        return (tmp_path / "made").read_text()

    with ThreadPoolExecutor(WORKERS) as pool:
        assert len(set(pool.map(ask, range(WORKERS)))) == 1


def test_what_could_not_be_made_is_made_by_the_next_that_asks(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        once(tmp_path / "made", (tmp_path / "missing").read_text)
    once(tmp_path / "made", (tmp_path / "made").touch)
    assert (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "checker", [("-m", "twine", "check", "--strict"), ("-m", "check_wheel_contents")], ids=" ".join
)
def test_checkers_find_no_fault(checker: tuple[str, ...], built_files: tuple[Path, Path]) -> None:
    files = built_files if "twine" in checker else built_files[1:]
    done = subprocess.run(
        [sys.executable, *checker, *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_wheel_of_the_tree_is_the_wheel_of_the_sdist(
    built_files: tuple[Path, Path], tmp_path: Path
) -> None:
    command = [*BUILD, "--wheel", "--outdir", tmp_path, ROOT]
    subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT_S)
    (of_the_tree,) = tmp_path.glob("*.whl")
    assert contents(of_the_tree) == contents(built_files[1])


def contents(wheel: Path) -> dict[str, int]:
    """Name -> CRC-32 of each file."""
    with zipfile.ZipFile(wheel) as archive:
        return {one.filename: one.CRC for one in archive.infolist()}


def test_the_sdist_has_what_its_make_needs(built_files: tuple[Path, Path]) -> None:
    with tarfile.open(built_files[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for wanted in ("Makefile", "CHANGELOG.md", "tests/test_readme.py", "benchmarks/jobs/tiny.fio"):
        assert wanted in names
