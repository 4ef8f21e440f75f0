"""Which targets has a local cluster, and where are they?

    DIR/targets/t0 ..     those that DIR was made with: directories
    DIR/targets/tN        added later: N goes on from there; a directory, or a link to one elsewhere
    DIR/targets/tN.removed what was one of these; its number is not given again

The entry itself is what is durable of one that was added: it is there, whole, or it is not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

TARGETS_FOLDER: Final = "targets"
TARGETS_MAX: Final = 64
"""Most targets of one local cluster."""
_NAME: Final = re.compile(r"t(0|[1-9][0-9]{0,5})(\.removed)?", re.ASCII)


def target_ids(directory: Path, made: int) -> tuple[str, ...]:
    """The ids of all targets, ascending. `made`: with how many the cluster was made."""
    entries = list(_entries(directory))
    left = {number for number, is_target in entries if not is_target}
    there = {number for number, is_target in entries if is_target} | set(range(made))
    return tuple(f"t{number}" for number in sorted(there - left))


def next_number(directory: Path, made: int) -> int:
    """The next number: above that of every target there ever was."""
    return max((made, *(number + 1 for number, _ in _entries(directory))))


def number_of(id: str) -> int | None:
    """The number in a target's id; None for a text that is not one."""
    found = _NAME.fullmatch(id)
    return None if found is None or found[2] else int(found[1])


def left_place(directory: Path, id: str) -> Path:
    """Where a removed target's directory is kept."""
    return directory / TARGETS_FOLDER / f"{id}.removed"


def leave_place(directory: Path, id: str) -> None:
    """Move a removed target's directory to the place where it is kept. Raises OSError."""
    left = left_place(directory, id)
    if number_of(id) is None or os.path.lexists(left):
        return
    try:
        left.with_name(id).rename(left)
    except FileNotFoundError:  # It has lost its directory.
        left.mkdir(mode=0o700, parents=True)


def _entries(directory: Path) -> Iterator[tuple[int, bool]]:
    """Each number that was given; whether it is a target's still."""
    folder = directory / TARGETS_FOLDER
    for entry in folder.iterdir() if folder.is_dir() else ():
        found = _NAME.fullmatch(entry.name)
        if found is not None:
            yield int(found[1]), found[2] is None
