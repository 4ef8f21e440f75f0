"""What a store and its processes hold, and what of it has grown.

Every figure has an allowance for what a figure of that kind may grow by without being a leak:
allocators keep what they were once given, a save is just ending, SQLite folds its journal late.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.soak.judge import descriptor_count, resident_bytes

KIB: Final = 1024
FOLDERS: Final = ("columns", "staging", "documents")


@dataclass(frozen=True, slots=True, order=True)
class Figure:
    """What is counted, of what."""

    kind: str
    of: str


ALLOWED: Final[Mapping[str, int]] = {
    "resident KiB": 1024,
    "descriptors": 2,
    "threads": 0,
    "files of targets": 28,
    "other files": 2,
    "catalog KiB": 1024,
    "journal KiB": 5120,
    "catalog rows": 4,
}
"""By kind: growth over 800 saves that is no leak. Of files: n columns of 2 ranks, and m + 1
documents of each, of a save that is just ending. Of the journal: a thousand pages, and what one
transaction adds.
"""
MORE: Final[Mapping[tuple[str, str], int]] = {
    # 10,000 rows of deleted steps with their records, 1,024 ended attempts: about 4.5 KiB a save.
    ("resident KiB", "coordinator"): 6144,
    ("catalog rows", "checkpoint"): 1000,
    # Names, statements and layouts of the newest 1,024 to 4,096 columns: about 1.5 KiB a save.
    **{("resident KiB", f"t{number}"): 2048 for number in range(7)},
}
"""What is kept of each save up to a bound that 800 saves do not reach, as far as it goes."""

Footprint = Mapping[Figure, int]


def measure(directory: Path, processes: Mapping[str, int]) -> Footprint:
    """Of a local cluster's directory and of processes by name."""
    return dict([*_of_processes(processes), *_of_files(directory), *_of_catalog(directory)])


def allowed(one: Figure) -> int:
    """Growth that is no leak."""
    return MORE.get((one.kind, one.of), ALLOWED[one.kind])


def leaks(early: Footprint, late: Footprint) -> list[str]:
    """What grew beyond its allowance, or is new, in words."""
    return [
        f"{one.kind} of {one.of} grew from {early.get(one, 0)} to {value}"
        for one, value in sorted(late.items())
        if value - early.get(one, 0) > allowed(one)
    ]


def table(columns: Mapping[str, Footprint]) -> Iterator[str]:
    """Lines: every figure at every look, and its growth from the first to the last."""
    looks = list(columns.values())
    widths = [max(len(name), 8) for name in columns]
    head = "  ".join(name.rjust(width) for name, width in zip(columns, widths, strict=True))
    yield f"{'':38}{head}    growth  allowed"
    for one in sorted(set().union(*looks)):
        values = [look.get(one, 0) for look in looks]
        cells = "  ".join(str(v).rjust(width) for v, width in zip(values, widths, strict=True))
        growth = values[-1] - values[0]
        yield f"{one.kind + ' of ' + one.of:38}{cells}  {growth:8}  {allowed(one):7}"


# --------------------------------------------------------------------------- inside

Counted = Iterator[tuple[Figure, int]]


def _of_processes(processes: Mapping[str, int]) -> Counted:
    for name, pid in processes.items():
        yield Figure("resident KiB", name), resident_bytes(pid) // KIB
        yield Figure("descriptors", name), descriptor_count(pid)
        yield Figure("threads", name), len(list(Path(f"/proc/{pid}/task").iterdir()))


def _of_files(directory: Path) -> Counted:
    for folder in FOLDERS:
        files = [one for one in directory.glob(f"targets/*/{folder}/*") if one.is_file()]
        yield Figure("files of targets", folder), len(files)
    held = [one for one in directory.rglob("*") if one.is_file()]
    others = [one for one in held if one.parent.name not in FOLDERS]
    yield Figure("other files", "the store"), len(others)


def _of_catalog(directory: Path) -> Counted:
    names = ("catalog.sqlite", "catalog.sqlite-wal")
    # The coordinator has its catalog for itself: what is counted is a copy of it.
    with tempfile.TemporaryDirectory() as folder:
        for kind, name in zip(("catalog KiB", "journal KiB"), names, strict=True):
            copy = Path(shutil.copy(directory / name, folder))
            yield Figure(kind, "the store"), copy.stat().st_size // KIB
        with closing(sqlite3.connect(Path(folder, names[0]))) as connection:
            tables = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
            for (name,) in connection.execute(tables).fetchall():
                ((count,),) = connection.execute(f'SELECT count(*) FROM "{name}"').fetchall()
                yield Figure("catalog rows", name), count
