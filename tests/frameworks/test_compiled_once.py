"""Of several workers one compiles what all of them import."""

from __future__ import annotations

import fcntl
import importlib
from pathlib import Path

import pytest

from tests.bytecode import compiled_by_one


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that nobody has imported yet, named by this test; its file."""
    file = tmp_path / f"of_{tmp_path.name}.py"
    file.write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    return file


def test_the_first_imports_alone_and_those_that_come_later_side_by_side(package: Path) -> None:
    with compiled_by_one(package.stem):
        assert not may_import(package)
        importlib.import_module(package.stem)
    assert may_import(package)
    with compiled_by_one(package.stem):
        assert may_import(package)


def test_one_that_fails_holds_nobody_up(package: Path) -> None:
    with pytest.raises(ImportError), compiled_by_one(package.stem):
        raise ImportError
    assert may_import(package)


def test_a_package_that_is_not_here_holds_nobody_up() -> None:
    with compiled_by_one("a_package_that_is_not_here"):
        importlib.import_module("json")


def may_import(file: Path) -> bool:
    """Whether another one that asks now need not wait."""
    with file.open() as other:
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
