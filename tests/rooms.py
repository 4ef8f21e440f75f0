"""`make coverage`: how much of each room the tests reach, and the files that they reach least.

    python -m tests.rooms build/coverage/report.json

Code that only processes ran which SIGKILL ended counts as not reached.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Final, NamedTuple

FILES_SHOWN: Final = 12
FILE_LINES_MIN: Final = 20
"""Statements; smaller files are not shown by name."""


class Reached(NamedTuple):
    """Statements and branches, and how many of them tests reach."""

    all: int
    reached: int

    @property
    def percent(self) -> float:
        """100 where there is nothing to reach."""
        return 100 * self.reached / self.all if self.all else 100.0


def by_file(
    report: Mapping[str, Mapping[str, Mapping[str, Mapping[str, int]]]],
) -> dict[str, Reached]:
    """Of a report of `coverage json`, by path."""
    return {path: _reached(file["summary"]) for path, file in report["files"].items()}


def by_room(files: Mapping[str, Reached]) -> dict[str, Reached]:
    """The rooms are the first two folders of a path, as docs/ARCHITECTURE.md lists them."""
    rooms: dict[str, Reached] = {}
    for path, (total, reached) in sorted(files.items()):
        room = "/".join(PurePath(path).parts[:2])
        before = rooms.get(room, Reached(0, 0))
        rooms[room] = Reached(before.all + total, before.reached + reached)
    return rooms


def _reached(summary: Mapping[str, int]) -> Reached:
    return Reached(
        summary["num_statements"] + summary.get("num_branches", 0),
        summary["covered_lines"] + summary.get("covered_branches", 0),
    )


def lines(files: Mapping[str, Reached]) -> Iterator[str]:
    """The table, and the files below it."""
    for room, found in by_room(files).items():
        missed = found.all - found.reached
        yield f"{room:24} {found.percent:5.1f} %  {missed:6} of {found.all} missed"
    yield "\nleast reached:"
    large = [path for path, found in files.items() if found.all >= FILE_LINES_MIN]
    for path in sorted(large, key=lambda path: files[path].percent)[:FILES_SHOWN]:
        yield f"  {files[path].percent:5.1f} %  {path}"


def main(path: str) -> None:
    """Write the table."""
    files = by_file(json.loads(Path(path).read_text()))
    sys.stdout.writelines(f"{line}\n" for line in lines(files))


if __name__ == "__main__":
    main(*sys.argv[1:])
