"""Takes from a dead process's directory what it had not synced.

What a file or directory got before a successful sync of it began is durable. Of the rest a machine
that lost its power has everything, nothing, or a part: of each file the first so many changes and
some sectors of the next; of the names the first so many, for they go through one ordered journal.
A name that is durable makes what happened to the same name before it durable, too.

The journal that is read here is that of `recorder.c`.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from tests.machines.recorder import Recorder

SECTOR_BYTES: Final = 512
RECORD: Final = struct.Struct("=9Q")
CONTENT: Final = frozenset("WT")


@dataclass(frozen=True, slots=True)
class Change:
    """One record. See `struct record`."""

    position: int
    kind: str
    inode: int
    inode2: int
    offset: int
    length: int
    old_size: int
    replaced: bytes
    path: str
    path2: str

    @property
    def names(self) -> set[str]:
        return {name for name in (self.path, self.path2) if name}


def lose_unsynced(
    recorder: Recorder, choice: random.Random | None = None, *, ordered: bool = True
) -> Counter[str]:
    """The process is dead, its directory loses what was not synced: all of it, or what `choice`
    picks. Counts what went, by kind. Afterwards the journals are empty.

    ordered: names go through one journal, so that a durable name makes that of its directory
    durable. POSIX does not say so: without it each name needs a sync of its own directory.
    """
    lost: Counter[str] = Counter()
    for journal in sorted(recorder.journals.glob("*[0-9]")):
        kept = journal.with_name(f"{journal.name}.kept")
        changes = list(_read(journal))
        open_changes = _not_durable(changes, ordered)
        lost += _Undoing(recorder.root, kept, choice, ordered).undo(open_changes)
        shutil.rmtree(kept)
        journal.unlink()
    return lost


def _read(journal: Path) -> Iterator[Change]:
    """Whole records; the last one may have been cut off by the process's end, before its change."""
    data, position = journal.read_bytes(), 0
    while position + RECORD.size <= len(data):
        kind, inode, inode2, offset, length, old_size, *counts = RECORD.unpack_from(data, position)
        ends = [position + RECORD.size]
        for count in counts:
            ends.append(ends[-1] + count)
        if ends[-1] > len(data):
            return
        replaced, path, path2 = (data[begin:end] for begin, end in pairwise(ends))
        yield Change(
            position, chr(kind), inode, inode2, offset, length, old_size, replaced,
            os.fsdecode(path), os.fsdecode(path2),
        )  # fmt: skip
        position = ends[-1]


def _not_durable(changes: list[Change], ordered: bool) -> list[Change]:
    """In their order."""
    synced: dict[int, int] = {}
    for change in changes:
        if change.kind == "S":
            synced[change.inode] = max(synced.get(change.inode, 0), change.offset)
    left: list[Change] = []
    durable_names: set[str] = set()
    for change in reversed(changes):
        covered = any(
            synced.get(inode, 0) > change.position for inode in (change.inode, change.inode2)
        )
        if change.kind in CONTENT and not covered:
            left.append(change)
        elif change.kind not in CONTENT and change.kind != "S":
            if covered or change.names & durable_names:
                durable_names |= change.names
                if ordered:
                    durable_names |= {os.path.dirname(name) for name in change.names}
            else:
                left.append(change)
    return left[::-1]


class _Undoing:
    def __init__(self, root: Path, kept: Path, choice: random.Random | None, ordered: bool) -> None:
        self._ordered = ordered
        self._root = root
        self._kept = kept
        self._choice = choice

    def undo(self, changes: list[Change]) -> Counter[str]:
        lost: Counter[str] = Counter()
        of_file: defaultdict[int, list[Change]] = defaultdict(list)
        for change in changes:
            if change.kind in CONTENT:
                of_file[change.inode].append(change)
        files = self._files()
        for inode, ofs in of_file.items():
            if inode in files:
                lost += self._undo_content(files[inode], ofs)
        names = [change for change in changes if change.kind not in CONTENT]
        first = self._cut(len(names))
        for change in reversed(names[first:]):
            lost[change.kind] += self._undo_name(change)
        return lost

    # ----------------------------------------------------------------------- inside

    def _cut(self, count: int) -> int:
        """So many of the first stay."""
        return 0 if self._choice is None else self._choice.randint(0, count)

    def _files(self) -> dict[int, Path]:
        """Also those that have no name any more."""
        paths = [*self._kept.iterdir(), *self._root.rglob("*")]
        return {path.lstat().st_ino: path for path in paths if path.is_file()}

    def _undo_content(self, file: Path, changes: list[Change]) -> Counter[str]:
        first = self._cut(len(changes))
        with file.open("r+b") as opened:
            for index in reversed(range(first, len(changes))):
                change = changes[index]
                # Of the first that goes some sectors may have got through.
                torn = change.kind == "W" and index == first and self._choice is not None
                stays = self._sectors(change) if torn else 0
                opened.seek(change.offset + stays)
                opened.write(change.replaced[stays:])
                opened.truncate(max(change.old_size, stays and change.offset + stays))
        return Counter(change.kind for change in changes[first:])

    def _sectors(self, change: Change) -> int:
        assert self._choice is not None
        return SECTOR_BYTES * self._choice.randint(0, change.length // SECTOR_BYTES)

    def _undo_name(self, change: Change) -> bool:
        """Whether it had happened: the process may have died before it."""
        kept = self._kept / str(change.position)
        path = Path(change.path)
        with suppress(FileNotFoundError):
            match change.kind:
                case "C":
                    path.unlink()
                case "M":
                    # Nothing is left in it where names are ordered.
                    path.rmdir() if self._ordered else shutil.rmtree(path)
                case "U":
                    kept.rename(path)
                case "R":
                    Path(change.path2).rename(path)
                    if kept.exists():
                        kept.rename(change.path2)
            return True
        return False
