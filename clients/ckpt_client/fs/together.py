"""Calls that write many files: those of one step are one commit, and a move deletes nothing that it
has not copied.

fsspec's own write file after file. Here the first of a step would be committed alone, and the
second refused: half a step would be left, and everybody would take it for a whole one.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from fsspec.core import has_magic

from ckpt.base.errors import Refused
from ckpt.base.ids import RunName, Step
from ckpt_client.fs.base import LiveFileSystem
from ckpt_client.fs.files import WriteFile
from ckpt_client.fs.paths import Spot, spot_of, step_of

NAMES_SHOWN_MAX = 4


@contextmanager
def one_commit(fs: LiveFileSystem, many: bool, source: str | None = None) -> Iterator[None]:
    """What is written in the block, when it is many files, is committed at its end, each step at
    once; in a transaction it waits for that one's end.

    source: nothing may be written there or below, since it is deleted then.

    Raises Refused before anything is visible, also for a step that has files which the block did
    not write: they would be gone.
    """
    if fs._intrans or not many:
        yield
        return
    with fs.transaction as transaction:
        yield
        written = [file.path for file in transaction.files]
        for path in written:
            if source is not None and f"{path}/".startswith(f"{source}/"):
                raise Refused(
                    f"{path} would lie in {source}, which goes when it is moved",
                    hint="move it to a path outside",
                )
        _check_whole(fs, written)


def are_many(paths: str | list[str], recursive: bool) -> bool:
    """Whether a call's source may be many files: a list, a folder, a pattern."""
    return recursive or isinstance(paths, list) or has_magic(os.fspath(paths))


def move(fs: LiveFileSystem, path1: str, path2: str, recursive: bool) -> None:
    """Copy, then delete. Raises Refused before anything is changed."""
    source = fs._strip_protocol(path1)
    if source == fs._strip_protocol(path2):
        return
    _check_movable(fs, source, recursive)
    with one_commit(fs, True, source):
        fs.copy(path1, path2, recursive=recursive, on_error="raise")
    fs.rm(source, recursive=recursive)


def check_alone(fs: LiveFileSystem, path: str, spot: Spot) -> None:
    """Raises Refused when a file that is written alone has others beside it in its step."""
    others = _others_in(fs, spot, [spot.name]) or _others_open(fs, spot)
    if others:
        raise Refused(
            f"{path}: {spot.folder} has other files ({', '.join(others[:NAMES_SHOWN_MAX])}), "
            "which this one alone would replace",
            hint="write all files of a step in one `with fs.transaction:`",
        )


def check_opened(fs: LiveFileSystem, file: WriteFile, spot: Spot) -> None:
    """As `check_alone`, of a file that is open already, so that of several threads that open files
    of one step at once each sees the others; discards it when it is refused.
    """
    try:
        check_alone(fs, file.path, spot)
    except BaseException:
        file.discard()
        raise


def _others_in(fs: LiveFileSystem, spot: Spot, names: Iterable[str]) -> list[str]:
    """Files that the step of a spot has, or that wait for its commit, besides those names."""
    view = fs.live.steps.newest(spot.run, spot.step)
    found = set(fs.live.steps.files(view)) if view else set()
    _, waiting = fs.live.publisher.open_list(spot.run, spot.step)
    found.update(member.name for member in waiting)
    return sorted(found - set(names))


def _others_open(fs: LiveFileSystem, spot: Spot) -> list[str]:
    """Files of the spot's step, other than its own, that this process is writing."""
    is_open = (path for path, file in list(fs.live.writing.items()) if not file.closed)
    spots = (spot_of(path) for path in is_open)
    return sorted(
        one.name
        for one in spots
        if (one.run, one.step, one.loose) == (spot.run, spot.step, False) and one.name != spot.name
    )


def _check_whole(fs: LiveFileSystem, written: Iterable[str]) -> None:
    steps: defaultdict[tuple[RunName, Step], list[Spot]] = defaultdict(list)
    for path in written:
        spot = spot_of(path)
        if not spot.loose:
            steps[spot.run, spot.step].append(spot)
    for spots in steps.values():
        others = _others_in(fs, spots[0], (spot.name for spot in spots))
        if others:
            raise Refused(
                f"{spots[0].folder} has other files ({', '.join(others[:NAMES_SHOWN_MAX])}), "
                "which these would replace",
                hint="name a step that is not there, or delete that one first",
            )


def _check_movable(fs: LiveFileSystem, source: str, recursive: bool) -> None:
    if fs._intrans:
        raise Refused(
            f"{source} cannot be moved in a transaction: it would go before its copy is there",
            hint="copy it in the transaction, and delete it afterwards",
        )
    found = step_of(source)
    if found is not None and found[0] < source.count("/"):
        folder = "/".join(source.split("/")[: found[0] + 1])
        raise Refused(
            f"{source} is part of a committed checkpoint, which goes as a whole",
            hint=f"mv({folder!r}, …, recursive=True), or copy it",
        )
    if not recursive and fs.isdir(source):
        raise Refused(f"{source} is a directory", hint="mv(…, recursive=True)")
