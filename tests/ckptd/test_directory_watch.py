"""What does a target say whose directory, or a part of it, was taken away under its process?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from ckpt.base.errors import CkptError
from ckptd.target.directory_lock import DirectoryLock
from ckptd.target.directory_watch import FOLDERS, DirectoryWatch


async def ended(directory: Path, harm: Callable[[], object]) -> str:
    """Why it ends, once it has."""
    stop, reported = asyncio.Event(), list[str]()
    lock = DirectoryLock(directory)
    watch = DirectoryWatch(
        lock, directory, lambda _, text, _fields: reported.append(text), stop.set
    )
    watch.start()
    try:
        harm()
        await asyncio.wait_for(stop.wait(), 30)
    finally:
        watch.close()
        lock.close()
    with pytest.raises(CkptError) as caught:
        watch.check()
    return f"{reported[0]}: {caught.value}; {caught.value.hint}"


def test_a_directory_that_was_moved_is_gone(tmp_path: Path) -> None:
    directory = tmp_path / "t0"
    directory.mkdir()
    said = asyncio.run(ended(directory, lambda: directory.rename(tmp_path / "elsewhere")))
    assert f"directory is gone: {directory} is gone: it was removed or moved" in said
    assert "ckpt target replace" in said


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("again", [False, True])
def test_a_folder_that_was_removed_is_named_also_when_there_is_another(
    tmp_path: Path, folder: str, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckptd.target.directory_watch.LOOK_S", 0.02)
    directory = tmp_path / "t0"
    directory.mkdir()

    async def harmed() -> str:
        loop = asyncio.get_running_loop()

        def harm() -> None:
            """Once it was seen."""
            (directory / folder).rename(tmp_path / "elsewhere")
            if again:
                (directory / folder).mkdir()

        (directory / folder).mkdir()
        return await ended(directory, lambda: loop.call_later(0.2, harm))

    said = asyncio.run(harmed())
    assert f"folder is gone: {directory / folder} is gone: it was removed or moved" in said
    assert "made again elsewhere" in said


def test_a_lock_file_that_was_removed_is_named_and_the_directory_is_not_called_gone(
    tmp_path: Path,
) -> None:
    (tmp_path / "target.toml").touch()
    said = asyncio.run(ended(tmp_path, (tmp_path / "lock").unlink))
    assert f"lock is gone: {tmp_path / 'lock'} was removed" in said
    assert "start the target again" in said
    assert "replace" not in said


def test_a_device_that_is_dead_ends_its_target(tmp_path: Path) -> None:
    async def found() -> str:
        stop = asyncio.Event()
        lock = DirectoryLock(tmp_path)
        watch = DirectoryWatch(lock, tmp_path, lambda _, _text, _fields: None, stop.set)
        is_dead = False
        watch.ask(lambda: is_dead)
        watch.start()
        try:
            is_dead = True
            await asyncio.wait_for(stop.wait(), 30)
        finally:
            watch.close()
            lock.close()
        with pytest.raises(CkptError) as caught:
            watch.check()
        return f"{caught.value}; {caught.value.hint}"

    said = asyncio.run(found())
    assert f"the device of {tmp_path} neither takes nor gives anything" in said
    assert "start the target again" in said
