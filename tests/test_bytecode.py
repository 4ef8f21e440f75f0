"""pytest takes what `tests.bytecode` has made for it: else that would be made for nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.bytecode import compile_all

TEST = "def test_one() -> None:\n    assert 1 < 2\n"


def test_pytest_and_python_take_what_is_there_and_make_what_no_longer_fits(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    test, helper = tmp_path / "tests" / "test_one.py", tmp_path / "tests" / "helper.py"
    helper.write_text("")
    (tmp_path / "tests" / "__init__.py").write_text("")
    test.write_text(f"from tests import helper\n\n{TEST}")
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    compile_all(tmp_path)
    made = inodes(tmp_path)
    assert [name.partition(".")[0] for name in made] == ["__init__", "helper", "test_one"]
    run(tmp_path)
    assert inodes(tmp_path) == made, "made by one, and taken by the other"
    compile_all(tmp_path)
    assert inodes(tmp_path) == made, "what fits is left"
    test.write_text(f"from tests import helper\n\n\n{TEST}")
    run(tmp_path)
    changed = {name for name, inode in inodes(tmp_path).items() if made[name] != inode}
    assert [name.partition(".")[0] for name in changed] == ["test_one"]


def run(directory: Path) -> None:
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    environ = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PATH": ""}
    done = subprocess.run(
        [sys.executable, *words], cwd=directory, env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def inodes(directory: Path) -> dict[str, int]:
    """By what the files are called."""
    kept = sorted((directory / "tests" / "__pycache__").iterdir())
    return {file.name: file.stat().st_ino for file in kept}
