"""The columns of one read: what each is asked, what it owes, and when it is too slow to be waited
for.

REACHABLE --silent, slow, lost, refused for now--> AWAY --retry, when too few are left--> REACHABLE
    +-------- not there, or not this payload's --> ABSENT
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from ckpt.base.ids import ColumnNumber
from ckpt.base.units import US_PER_S, MiB
from ckpt.protocol.reader.events import ReadLimits, Standing
from ckpt.protocol.runs.run_sets import Owed, RunSet

RETRY_US: Final = (100_000, 2_000_000)
"""First and longest rest before a column that is away is tried again."""
STRIKES_MAX: Final = 4
"""How often bytes of a column may be damaged on their way."""
WRONG_CELLS_MAX: Final = 3
"""A column with so many cells that differ from the manifest belongs to another payload."""
RATE_BYTES_MIN: Final = 2 * MiB
"""A peer that gave less than this says nothing about rates."""
EFFORT_MAX: Final = 16
"""A column that is slower by this and ReadLimits.slow_fraction is ill, however little is wanted."""
SILENT_FACTOR: Final = 2
"""A column may be silent for so many times the longest that another one took to bring something."""
SILENT_LAST: Final = 5
"""After so many times hedge_us of silence a column is given up, even if no peer does better."""


@dataclass(slots=True)
class OpenQuestion:
    """One question that is not answered yet."""

    column: SourceColumn
    owed: Owed | None
    """None: the manifest."""


@dataclass(slots=True, eq=False)
class SourceColumn:
    """One column's whole state. Only PayloadReader changes it."""

    number: ColumnNumber
    standing: Standing
    has_address: bool
    reason: str = ""
    """Why it is not reachable."""
    queue: list[tuple[int, RunSet]] = field(default_factory=list)
    """Heap of (stripe, parts of its cell) to ask for; entries that are no longer needed are dropped
    when met."""
    asks: dict[int, OpenQuestion] = field(default_factory=dict)
    outstanding_bytes: int = 0
    received_bytes: int = 0
    served_bytes: int = 0
    """By its target to this process, of whatever payload, while it owed something."""
    damaged_bytes: int = 0
    waiting_since_us: int = 0
    """When it last brought something, or began to owe."""
    owing_us: int = 0
    """How long it has owed something, in all, up to `owing_until_us`."""
    owing_until_us: int = 0
    progress_us: int = -1
    """When it last brought something."""
    longest_us: int = 0
    """The longest that it owed something before it brought some of it."""
    retry_at_us: int = 0
    retry_count: int = 0
    strike_count: int = 0
    wrong_count: int = 0

    @property
    def usable(self) -> bool:
        return self.standing is Standing.REACHABLE

    def push(self, stripe: int, parts: RunSet) -> None:
        """Queue parts of a cell to be asked for."""
        heapq.heappush(self.queue, (stripe, parts))

    def pop(self) -> tuple[int, RunSet]:
        return heapq.heappop(self.queue)

    def begin_ask(self, request: int, ask: OpenQuestion, size: int, now_us: int) -> None:
        if not self.asks:
            self.waiting_since_us = self.owing_until_us = now_us
        self.asks[request] = ask
        self.outstanding_bytes += size

    def note_progress(self, now_us: int) -> None:
        """Note that it brought something."""
        self.charge(now_us)
        if self.asks:
            self.longest_us = max(self.longest_us, now_us - self.waiting_since_us)
        self.waiting_since_us = self.progress_us = now_us

    def charge(self, now_us: int) -> None:
        """Count the time that it has owed something."""
        if self.asks:
            self.owing_us += max(0, now_us - self.owing_until_us)
        self.owing_until_us = now_us

    def excuse(self, own_us: int, now_us: int) -> None:
        """Subtract time of the last charge in which the reader itself was busy."""
        if self.asks:
            self.owing_us = max(0, self.owing_us - own_us)
            self.waiting_since_us = min(now_us, self.waiting_since_us + own_us)

    def note_turn(self, now_us: int, size: int) -> None:
        """Note that its target brought bytes of something else that this process asked for."""
        self.charge(now_us)
        if self.asks:
            self.served_bytes += size
            self.waiting_since_us = now_us

    def leave(self, standing: Standing, reason: str, now_us: int) -> None:
        """Note that it can no longer be reached; what it owed is void."""
        self.standing, self.reason = standing, reason
        self.asks.clear()
        self.queue.clear()
        self.outstanding_bytes = 0
        self.owing_us = 0
        rest = min(RETRY_US[1], RETRY_US[0] << min(self.retry_count, 8))
        self.retry_count += 1
        self.retry_at_us = now_us + rest

    @property
    def rate(self) -> float:
        """Bytes from its target per microsecond in which it owed something."""
        return self.served_bytes / max(1, self.owing_us)


@dataclass(slots=True)
class Effort:
    """I know how many bytes parity takes to replace one that is wanted."""

    wanted_bytes: int = 0
    cells_bytes: int = 0
    """Of the cells in which they lie."""

    def add(self, wanted_bytes: int, cells_bytes: int) -> None:
        """Note that a stripe begins."""
        self.wanted_bytes += wanted_bytes
        self.cells_bytes += cells_bytes

    @property
    def factor(self) -> int:
        """1 where whole cells are wanted."""
        return min(EFFORT_MAX, max(1, self.cells_bytes // max(1, self.wanted_bytes)))


def new_column(number: ColumnNumber, standing: Standing) -> SourceColumn:
    """A column as the read finds it."""
    match standing:
        case Standing.REACHABLE:
            return SourceColumn(number, standing, has_address=True)
        case Standing.SUSPECT:
            return SourceColumn(number, Standing.AWAY, True, "it was given up a moment ago")
        case Standing.AWAY:
            return SourceColumn(number, standing, False, "its target is not live")
        case Standing.ABSENT:
            return SourceColumn(number, standing, False, "missing since the commit")


def find_ask(columns: Sequence[SourceColumn], request: int) -> OpenQuestion | None:
    """The open question of that number; None when it was answered or is void."""
    return next((c.asks[request] for c in columns if request in c.asks), None)


def laggard(
    columns: Sequence[SourceColumn], limits: ReadLimits, now_us: int, k: int, effort: int
) -> tuple[SourceColumn, str] | None:
    """A column that should not be waited for any longer, and why; the slowest judgement first.

    effort: as `Effort.factor`. Where little of each cell is wanted, a slow column is done long
    before whole cells of others are here.
    """
    replaceable = sum(c.usable for c in columns) > k
    owing = [c for c in columns if c.usable and c.asks]
    for column in owing:
        silent_us = now_us - column.waiting_since_us
        # With nobody else to compare with, its own silence has to do.
        alone = len(owing) == 1
        others_moved = alone or any(c.progress_us > column.waiting_since_us for c in columns)
        # Where all disks take long to answer, one is silent for as long as others were.
        longest_us = max((c.longest_us for c in columns if c is not column), default=0)
        patience_us = max(limits.hedge_us, SILENT_FACTOR * longest_us)
        if silent_us >= patience_us and others_moved and replaceable:
            return column, f"silent for {silent_us / US_PER_S:.1f} s while others deliver"
        if silent_us >= max(SILENT_LAST * limits.hedge_us, patience_us):
            return column, f"silent for {silent_us / US_PER_S:.1f} s"
    if not replaceable:
        return None
    for column in owing:
        peers = [c.rate for c in columns if c is not column and c.served_bytes >= RATE_BYTES_MIN]
        if column.owing_us < limits.slow_after_us * effort or not peers:
            continue
        if column.rate * limits.slow_fraction * effort < median(peers):
            return column, f"slower than its peers by a factor over {limits.slow_fraction * effort}"
    return None
