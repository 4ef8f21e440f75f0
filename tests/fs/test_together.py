"""Copies, moves and uploads of many files: a step is there whole or not, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import ckpt
from ckpt_client.fs.step_files import CkptFileSystemBase as FS

FILES = {"a.json": b"a", "sub/w.bin": b"weights"}


def write(fs: FS, folder: str, files: dict[str, bytes]) -> None:
    with fs.transaction:
        for name, content in files.items():
            fs.pipe(f"{folder}/{name}", content)


def held(fs: FS, run: str) -> dict[str, bytes]:
    """All files of a run, by their names in it."""
    found = fs.find(run)
    return {path.removeprefix(f"{run}/"): fs.cat_file(path) for path in found}


def below(step: str) -> dict[str, bytes]:
    return {f"{step}/{name}": content for name, content in FILES.items()}


def test_a_step_of_several_files_is_moved_whole(fs: FS, run: str) -> None:
    write(fs, f"{run}/8", FILES)
    fs.mv(f"{run}/8", f"{run}/9", recursive=True)
    assert held(fs, run) == below("9")


def test_a_run_is_moved_with_all_its_steps_and_loose_files(fs: FS, run: str) -> None:
    write(fs, f"{run}/from/8", FILES)
    write(fs, f"{run}/from/9", FILES)
    fs.pipe(f"{run}/from/loss.csv", b"loss")
    fs.mv(f"{run}/from", f"{run}/to", recursive=True)
    assert held(fs, run) == {**below("to/8"), **below("to/9"), "to/loss.csv": b"loss"}


def test_a_step_of_several_files_is_copied_as_one_commit(fs: FS, run: str) -> None:
    write(fs, f"{run}/8", FILES)
    fs.copy(f"{run}/8", f"{run}/9", recursive=True)
    assert held(fs, run) == {**below("8"), **below("9")}
    assert len({fs.info(f"{run}/9/{name}")["generation"] for name in FILES}) == 1


def test_a_folder_is_put_as_one_commit(fs: FS, run: str, tmp_path: Path) -> None:
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    fs.put(f"{tmp_path}/", f"{run}/3/", recursive=True)
    assert held(fs, run) == below("3")


def test_several_files_are_piped_as_one_commit(fs: FS, run: str) -> None:
    fs.pipe({f"{run}/{name}": content for name, content in below("4").items()})
    assert held(fs, run) == below("4")


def test_a_step_that_has_other_files_is_not_replaced_by_a_copy(fs: FS, run: str) -> None:
    write(fs, f"{run}/8", FILES)
    write(fs, f"{run}/12", {"old.bin": b"old"})
    for call in (fs.copy, fs.mv):
        with pytest.raises(ckpt.Refused, match=r"12 has other files \(12/old.bin\)"):
            call(f"{run}/8", f"{run}/12", recursive=True)
        assert held(fs, run) == {**below("8"), "12/old.bin": b"old"}


@pytest.mark.parametrize(
    ("source", "target"), [("", "/old"), ("/8", ""), ("/8", "/8/8")], ids="abc"
)
def test_what_is_moved_into_itself_stays(fs: FS, run: str, source: str, target: str) -> None:
    write(fs, f"{run}/8", FILES)
    with pytest.raises(ckpt.Refused, match="would lie in"):
        fs.mv(f"{run}{source}", f"{run}{target}", recursive=True)
    assert held(fs, run) == below("8")


def test_what_is_moved_to_its_own_url_stays(fs: FS, url: str, run: str) -> None:
    write(fs, f"{run}/8", FILES)
    fs.mv(f"{url}/{run}/8", f"{run}/8", recursive=True)
    assert held(fs, run) == below("8")


def test_a_move_that_would_leave_files_behind_is_refused(fs: FS, run: str) -> None:
    write(fs, f"{run}/8", FILES)
    with pytest.raises(ckpt.Refused, match="takes no maxdepth"):
        fs.mv(run, f"{run}-2", recursive=True, maxdepth=2)
    with pytest.raises(ckpt.Refused, match="part of a committed checkpoint"):
        fs.mv(f"{run}/8/a.json", f"{run}/9/a.json")
    with pytest.raises(ckpt.Refused, match="is a directory"):
        fs.mv(f"{run}/8", f"{run}/9")
    assert held(fs, run) == below("8")


def test_a_move_in_a_transaction_is_refused(fs: FS, run: str) -> None:
    write(fs, f"{run}/8", FILES)
    with pytest.raises(ckpt.Refused, match="before its copy is there"), fs.transaction:
        fs.mv(f"{run}/8", f"{run}/9", recursive=True)
    assert held(fs, run) == below("8")


def test_a_file_that_could_not_be_stored_ends_its_transaction(
    fs: FS, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever wrote it may have swallowed the error, as pyarrow's copy_files does."""
    fs.start_transaction()
    fs.pipe(f"{run}/7/a", b"1")
    file = fs.open(f"{run}/7/b", "wb")
    _fail_to_store(fs, monkeypatch, file.close)
    with pytest.raises(OSError, match="no memory"):
        fs.end_transaction()
    assert not fs.exists(run)


def test_a_file_that_was_written_again_after_a_failure_counts(
    fs: FS, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fs.transaction:
        _fail_to_store(fs, monkeypatch, lambda: fs.pipe(f"{run}/7/a", b"1"))
        fs.pipe(f"{run}/7/a", b"2")
    assert fs.cat(f"{run}/7/a") == b"2"


def _fail_to_store(fs: FS, monkeypatch: pytest.MonkeyPatch, write: Callable[[], None]) -> None:
    def fail(*_: object) -> None:
        raise OSError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(fs.live.publisher, "stage", fail)
        with pytest.raises(OSError, match="no memory"):
            write()
