"""Which file is read next, and since when has each been waiting?

    stored --first/4--> due --3/4 first--> overdue          first: a seventh of the period
    read --period - 2 first--> due --2 first--> overdue

A pass is over when all files were read that were here when it began: one that somebody asked for
reads them at once, else each when it is due. Whoever is overdue first is first.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ckpt.protocol.target.at_rest.file_check import file_bytes_of
from ckpt.protocol.target.core import Entry

FIRST_FRACTION: Final = 7
"""A file is read for the first time within this part of the period after its seal."""
NEVER_US: Final = 1 << 62


@dataclass(slots=True, eq=False)
class KnownFile:
    """One file, and when it is to be read."""

    entry: Entry
    digest: bytes
    """Of its name, as notes have it."""
    read_us: int | None
    """None: never."""
    turn: int = 0
    """Its number in a queue; an entry of another number is an old one."""
    due_us: int = NEVER_US
    deadline_us: int = NEVER_US
    of_pass: bool = False
    """The pass under way has still to read it."""
    gone: bool = False

    @property
    def bytes(self) -> int:
        return file_bytes_of(self.entry)


@dataclass(slots=True)
class Pass:
    """One that is under way."""

    began_us: int
    is_asked: bool
    files: int = 0
    bytes: int = 0
    files_left: int = 0
    bytes_left: int = 0


_Queue = list[tuple[int, int, KnownFile]]


class Timetable:
    """I know all files. `period_us` None: only passes that somebody asked for."""

    def __init__(self, period_us: int | None) -> None:
        self._period_us = period_us
        self._first_us = (period_us or 0) // FIRST_FRACTION
        self._files: dict[str, KnownFile] = {}
        #: Those never read, and the others: (deadline, turn, file), who is overdue first ahead.
        #: What is not its file's turn any more is passed over.
        self._unread: _Queue = []
        self._read: _Queue = []
        self._turns = 0
        #: In which a reader met damage, by name, in that order.
        self._suspects: dict[str, KnownFile] = {}
        #: Of a pass that somebody asked for, the longest unread first.
        self._wanted: deque[KnownFile] = deque()
        self.now: Pass | None = None
        """The pass under way."""
        self.ended_us: int | None = None
        """When the last one was over."""
        self.began_us: int | None = None
        """And when that one had begun, or the one under way."""
        self.whole_since_us: int | None = None
        """The begin of the last one that is over: all that is here was read since, or written."""

    # ----------------------------------------------------------------------- files

    def add(
        self, entry: Entry, digest: bytes, since_us: int, read_us: int | None,
        *, is_known: bool = True,
    ) -> None:  # fmt: skip
        """A file is here, since then. Of one of which nothing is known, as all are of an earlier
        version's directory, it would be too much to have it read as soon as a new one.
        """
        file = self._files[entry.file] = KnownFile(entry, digest, read_us)
        self._plan(file, since_us, self._first_us if is_known else self._period_us or 0)

    @property
    def rest_us(self) -> int:
        """How long a new file is left alone: most files that are deleted soon are never read."""
        return self._first_us // 4

    def remove(self, entry: Entry) -> None:
        """Note that the file was dropped or replaced."""
        file = self._files.get(entry.file)
        if file is not None and file.entry is entry:
            del self._files[entry.file]
            file.gone = True
            self._leave_pass(file)

    def get(self, name: str) -> KnownFile | None:
        return self._files.get(name)

    def readings(self) -> Iterator[tuple[bytes, int]]:
        """Digest and time of those that were read."""
        for file in self._files.values():
            if file.read_us is not None:
                yield file.digest, file.read_us

    def next(self, now_us: int) -> KnownFile | None:
        """What to read now; whoever takes it says `read` or `later`."""
        while self._suspects:
            file = self._suspects.pop(next(iter(self._suspects)))
            if not file.gone:
                return file
        while self._wanted:
            file = self._wanted.popleft()
            if file.of_pass:
                return file
        heads = [head for queue in (self._unread, self._read) if (head := _head(queue))]
        due = [head for head in heads if head[2].due_us <= now_us]
        return min(due)[2] if due else None

    def suspect(self, name: str) -> bool:
        """Note that a reader met damage in the file: it comes first. True when that is news."""
        file = self._files.get(name)
        if file is None or self._suspects.get(name) is file:
            return False
        self._suspects[name] = file
        return True

    def read(self, file: KnownFile, now_us: int) -> None:
        """Note that all of the file was read."""
        file.read_us = now_us
        if not file.gone:
            self._plan(file, now_us)
        self._leave_pass(file)

    def later(self, file: KnownFile, due_us: int) -> None:
        """Note that the file could not be read now."""
        if file.gone:
            return
        file.due_us, wanted = due_us, file.of_pass and self.now is not None and self.now.is_asked
        if wanted:
            self._wanted.append(file)
        self._push(file, file.deadline_us)

    def oldest_us(self) -> int | None:
        """The oldest last reading of those that were read."""
        head = _head(self._read)
        return None if head is None else head[2].read_us

    def late_us(self, now_us: int) -> int:
        """How late the first file is; 0 if none is."""
        heads = [head for queue in (self._unread, self._read) if (head := _head(queue))]
        return max(0, now_us - min(heads)[0]) if heads else 0

    # ----------------------------------------------------------------------- passes

    def begin_pass(self, now_us: int, *, is_asked: bool) -> None:
        """All that is here now."""
        self.now, self.began_us = Pass(now_us, is_asked), now_us
        for file in self._files.values():
            self._join_pass(file)
        self._settle(now_us)

    def go_on(self, began_us: int, now_us: int, *, is_asked: bool) -> None:
        """One that an earlier process began: with what was not read since."""
        self.now, self.began_us = Pass(began_us, is_asked), began_us
        for file in self._files.values():
            if file.read_us is None or file.read_us < began_us:
                self._join_pass(file)
        self._settle(now_us)

    def _join_pass(self, file: KnownFile) -> None:
        assert self.now is not None
        file.of_pass = True
        self.now.files += 1
        self.now.files_left += 1
        self.now.bytes += file.bytes
        self.now.bytes_left += file.bytes

    def _settle(self, now_us: int) -> None:
        assert self.now is not None
        self._wanted.clear()
        if self.now.is_asked:
            members = [file for file in self._files.values() if file.of_pass]
            self._wanted.extend(sorted(members, key=lambda file: file.read_us or -NEVER_US))
        self.ended(now_us)

    def _leave_pass(self, file: KnownFile) -> None:
        if file.of_pass and self.now is not None:
            self.now.files_left -= 1
            self.now.bytes_left -= file.bytes
        file.of_pass = False

    def ended(self, now_us: int) -> bool:
        """End the pass if no file of it is left. True when it ended just now."""
        if self.now is None or self.now.files_left:
            return False
        self.whole_since_us = self.now.began_us
        self.now, self.ended_us = None, now_us
        self._wanted.clear()
        return True

    # ----------------------------------------------------------------------- inside

    def _plan(self, file: KnownFile, since_us: int, within_us: int = 0) -> None:
        """Set when a file is next due. `within_us`: the deadline for a file that was never read."""
        if self._period_us is None:
            self._push(file, NEVER_US)
        elif file.read_us is None:
            file.due_us = since_us + self.rest_us
            self._push(file, since_us + within_us)
        else:
            file.due_us = file.read_us + self._period_us - 2 * self._first_us
            self._push(file, file.read_us + self._period_us)

    def _push(self, file: KnownFile, deadline_us: int) -> None:
        self._turns += 1
        file.turn, file.deadline_us = self._turns, deadline_us
        queue = self._unread if file.read_us is None else self._read
        heapq.heappush(queue, (deadline_us, file.turn, file))

    def check(self) -> None:
        """Assert what is counted."""
        if self.now is not None:
            members = [file for file in self._files.values() if file.of_pass]
            assert self.now.files_left == len(members)
            assert self.now.bytes_left == sum(file.bytes for file in members)


def _head(queue: _Queue) -> tuple[int, int, KnownFile] | None:
    """The first that still says the truth."""
    while queue:
        _, turn, file = queue[0]
        if not file.gone and turn == file.turn:
            return queue[0]
        heapq.heappop(queue)
    return None
