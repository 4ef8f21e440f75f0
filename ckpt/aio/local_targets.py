"""Which targets has a local cluster, and where are they?

    DIR/targets/t0 ..     those that DIR was made with: directories
    DIR/targets/tN        added later: N goes on from there; a directory, or a link to one elsewhere
    DIR/targets/tN.removed what was one of these; its number is not given again

The entry itself is what is durable of one that was added: it is there, whole, or it is not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

TARGETS_FOLDER: Final = "targets"
TARGETS_MAX: Final = 64
"""Of one local cluster."""
_NAME: Final = re.compile(r"t(0|[1-9][0-9]{0,5})(\.removed)?", re.ASCII)


def target_ids(directory: Path, made: int) -> tuple[str, ...]:
    """All of them, ascending. `made`: so many the cluster was made with."""
    added = sorted(number for number, is_target in _entries(directory) if is_target)
    later = (number for number in added if number >= made)
    return tuple(f"t{number}" for number in (*range(made), *later))


def next_number(directory: Path, made: int) -> int:
    """Above all that there ever were."""
    return max((made, *(number + 1 for number, _ in _entries(directory))))


def number_of(id: str) -> int | None:
    """Of a target's id; None for what can be none."""
    found = _NAME.fullmatch(id)
    return None if found is None or found[2] else int(found[1])


def leave_place(directory: Path, id: str, made: int) -> bool:
    """One that was added is none any more; what it has stays where it is. False for one of the
    first: these are what DIR was made as. Raises OSError.
    """
    number = number_of(id)
    if number is None or number < made:
        return False
    place = directory / TARGETS_FOLDER / id
    place.rename(place.with_name(f"{id}.removed"))
    return True


def _entries(directory: Path) -> Iterator[tuple[int, bool]]:
    """Each number that was given; whether it is a target's still."""
    folder = directory / TARGETS_FOLDER
    for entry in folder.iterdir() if folder.is_dir() else ():
        found = _NAME.fullmatch(entry.name)
        if found is not None:
            yield int(found[1]), found[2] is None
