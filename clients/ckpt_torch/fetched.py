"""A checkpoint's folder that `fetch` makes: whole or not there, and it says what it was made of.

    output_dir/.checkpoint-100-BOOT-xxxx   written aside, locked by who writes it
    output_dir/checkpoint-100              renamed; MARK_NAME in it names the generation

A folder of that name may be of another generation of the step, or of another run: it is replaced
when it was made here, and refused when somebody else made it. What a killed process has left aside
goes with the next fetch on the same host: nobody holds its lock any more.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from ckpt.aio.durable import is_there, make_directories, sync_names, sync_tree
from ckpt.base.errors import Refused
from ckpt.format.messages.saving import CommitInfo

MARK_NAME: Final = "ckpt.json"
_BOOT_FILE: Final = Path("/proc/sys/kernel/random/boot_id")
Mark = dict[str, object]


def put_folder(folder: Path, info: CommitInfo, write: Callable[[Path], None]) -> None:
    """Make the folder of this checkpoint by `write`, unless it is there. Several processes may.

    Raises Refused when something else has the name.
    """
    mark: Mark = {"checkpoint": str(info.checkpoint), "committed_at_s": info.committed_at_s}
    make_directories(folder.parent)
    boot = _boot()
    with ExitStack() as held:
        with _locked(folder.parent) as alone:
            if boot and alone:
                _remove_left(folder.parent, boot)
            aside = _made_aside(folder, boot)
            held.callback(shutil.rmtree, aside, ignore_errors=True)
            held.enter_context(_locked(aside))
        write(aside)
        (aside / MARK_NAME).write_text(json.dumps(mark))
        # The next fetch goes by the mark alone: with it all else has to be durable.
        sync_tree(aside)
        with _locked(folder.parent):
            _rename(aside, folder, mark, boot)
        sync_names(folder.parent)


def _rename(aside: Path, folder: Path, mark: Mark, boot: str) -> None:
    if is_there(folder) and _mark_of(folder) == mark:
        return  # Another rank of this host, or an earlier start, has written it.
    if is_there(folder) and (not folder.is_dir() or _mark_of(folder) is None):
        raise Refused(
            f"{folder} is there, and was not made of {mark['checkpoint']}",
            hint="move it away, or fetch to another folder",
        )
    old = None
    if is_there(folder):
        old = _made_aside(folder, boot)
        folder.rename(old)
    try:
        aside.rename(folder)
    except OSError:  # From another host, between two of our steps.
        if _mark_of(folder) != mark:
            raise
    finally:
        if old is not None:
            shutil.rmtree(old, ignore_errors=True)


def _mark_of(folder: Path) -> Mark | None:
    """None when it was not made here."""
    try:
        mark = json.loads((folder / MARK_NAME).read_bytes())
    except (OSError, ValueError):
        return None
    return mark if isinstance(mark, dict) else None


def _boot() -> str:
    """Of this machine since it started: whose locks can be seen here. Empty where none is known."""
    try:
        return _BOOT_FILE.read_text().strip().replace("-", "")[:16]
    except OSError:
        return ""


def _made_aside(folder: Path, boot: str) -> Path:
    return Path(tempfile.mkdtemp(prefix=f".{folder.name}-{boot}-", dir=folder.parent))


def _remove_left(parent: Path, boot: str) -> None:
    """Call it while the parent is locked: what is made there is locked before that is let go."""
    for left in parent.glob(f".checkpoint-*-{boot}-*"):
        with _locked(left, wait=False) as is_nobodys:
            if is_nobodys:
                shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _locked(folder: Path, *, wait: bool = True) -> Iterator[bool]:
    """Whether it is locked now; a file system may have no locks."""
    locked = False
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield False
        return
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            locked = True
        yield locked
    finally:
        os.close(descriptor)
