"""Local files that somebody writes or cuts while `put` reads them: refused, and nothing is there.

A file was half old and half new, a folder a mix of two steps; `put` of a file that was cut never
ended.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest

from ckpt_client.exchange.seen_file import ChangedMeanwhile
from ckpt_client.fs.step_files import CkptFileSystemBase

SIZE = (4 << 20) + 4096
"""Of one file: two blocks."""


class After(fsspec.Callback):  # type: ignore[misc]  # fsspec ships no types.
    """Lets something happen after the n-th report."""

    def __init__(self, count: int, happen: Callable[[], object]) -> None:
        super().__init__()
        self._count = count
        self._happen = happen

    def branched(self, *_paths: str, **_options: object) -> After:
        return self

    def relative_update(self, inc: int = 1) -> None:
        self._count -= 1
        if self._count == 0:
            self._happen()


def fill(folder: Path, value: int) -> None:
    for name in ("a", "b"):
        path = folder / name
        with path.open("r+b" if path.exists() else "wb") as file:
            file.write(bytes([value]) * SIZE)


def harms(folder: Path) -> dict[str, Callable[[], object]]:
    return {
        "written": lambda: fill(folder, 2),
        "cut": lambda: os.truncate(folder / "a", 5),
        "removed": lambda: (folder / "a").unlink(),
    }


@pytest.mark.parametrize("harm", ["written", "cut", "removed"])
def test_a_file_that_changes_is_not_there(
    fs: CkptFileSystemBase, run: str, tmp_path: Path, harm: str
) -> None:
    fill(tmp_path, 1)
    after = After(2, harms(tmp_path)[harm])
    with pytest.raises(ChangedMeanwhile, match=f"{tmp_path}/a was changed"):
        fs.put(f"{tmp_path}/a", f"{run}/1/a", callback=after)
    assert fs.find(run) == []


@pytest.mark.parametrize(("harm", "reports"), [("written", 2), ("cut", 2), ("written", 4)])
def test_of_a_folder_in_which_a_file_changes_nothing_is_there(
    fs: CkptFileSystemBase, run: str, tmp_path: Path, harm: str, reports: int
) -> None:
    """Also once the file itself is read: the other would be of another step."""
    fill(tmp_path, 1)
    after = After(reports, harms(tmp_path)[harm])
    with pytest.raises(ChangedMeanwhile):
        fs.put(f"{tmp_path}/", f"{run}/1/", recursive=True, callback=after)
    assert fs.find(run) == []
    fs.put(f"{tmp_path}/", f"{run}/1/", recursive=True)
    value = 2 if harm == "written" else 1
    assert set(fs.cat(f"{run}/1/b")) == {value}


def test_two_lists_are_taken_as_they_are(fs: CkptFileSystemBase, run: str, tmp_path: Path) -> None:
    names = ["a[1]", "empty"]
    (tmp_path / names[0]).write_bytes(b"x" * SIZE)
    (tmp_path / names[1]).touch()
    fs.put([f"{tmp_path}/{name}" for name in names], [f"{run}/1/{name}" for name in names])
    assert fs.info(f"{run}/1/a[1]")["size"] == SIZE
    assert fs.info(f"{run}/1/empty")["size"] == 0


def test_files_of_a_pattern_are_one_commit(
    fs: CkptFileSystemBase, run: str, tmp_path: Path
) -> None:
    """The first was committed alone, and the second refused: half a step was left."""
    fill(tmp_path, 1)
    fs.put(f"{tmp_path}/*", f"{run}/1/")
    assert fs.find(run) == [f"{run}/1/a", f"{run}/1/b"]
    fs.copy(f"{run}/1/*", f"{run}/2/")
    assert fs.find(f"{run}/2") == [f"{run}/2/a", f"{run}/2/b"]
    after = After(2, harms(tmp_path)["written"])
    with pytest.raises(ChangedMeanwhile):
        fs.put(f"{tmp_path}/[ab]", f"{run}/3/", callback=after)
    assert fs.find(f"{run}/3") == []


def test_what_is_not_there_or_is_there_already_is_said_as_files_say_it(
    fs: CkptFileSystemBase, run: str, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(b"1")
    with pytest.raises(FileNotFoundError):
        fs.put_file(f"{tmp_path}/none", f"{run}/1/none")
    fs.put_file(f"{tmp_path}/a", f"{run}/1/a")
    with pytest.raises(FileExistsError):
        fs.put_file(f"{tmp_path}/a", f"{run}/1/a", mode="create")
    fs.put_file(str(tmp_path), f"{run}/2")
    assert fs.find(run) == [f"{run}/1/a"]
