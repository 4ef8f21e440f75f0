"""Where ISA-L or our own library is missing, an error says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt.base.errors import CkptError
from ckpt.native import isal, library


def test_files_that_are_not_isal_are_not_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isal, "_candidates", lambda: iter(["libc.so.6", "libnowhere.so.9"]))
    with pytest.raises(CkptError, match="no ISA-L library was found") as caught:
        isal.find_isal.__wrapped__()
    assert "reinstall pyeclib" in caught.value.hint


def test_an_installation_without_our_library_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(library, "LIBRARY", tmp_path / "libckpt.so.1")
    monkeypatch.setattr(library, "LOG", tmp_path / "build.log")
    with pytest.raises(CkptError, match=r"libckpt\.so\.1: cannot open shared object") as caught:
        library.find_library.__wrapped__()
    assert "pip install ckpt-burst" in caught.value.hint
    (tmp_path / "build.log").write_text("cc: out of memory")
    with pytest.raises(CkptError) as caught:
        library.find_library.__wrapped__()
    assert str(tmp_path / "build.log") in caught.value.hint


def test_a_library_of_somebody_else_is_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(library, "LIBRARY", Path("libc.so.6"))
    with pytest.raises(CkptError, match="ckpt_transform"):
        library.find_library.__wrapped__()


def test_the_build_says_who_made_it() -> None:
    compiler, machine = library.find_library().build.split(", ")
    assert compiler.partition(" ")[0] in ("gcc", "clang")
    assert machine in ("x86_64", "aarch64")
