"""One stripe of a read: what is wanted of it, what is here, and from which columns the rest can
come.

Systematic first: a wanted part comes from its own data column. When that cannot give it all, its
whole
cell is restored: what the column still gives, and the holes decoded from the same bytes of any k
other
columns. The cell is widened to its borders because only a whole cell can be compared with the
manifest;
nothing decoded is handed out unverified. Holes are filled part by part, so that several columns
with damage at different places of one stripe still make it whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ckpt.erasure.code import Code
from ckpt.format.combs import Span, combs_of, shifted
from ckpt.format.layout import Layout
from ckpt.format.runs import Ranges
from ckpt.protocol.reader.events import DecodePart
from ckpt.protocol.runs.run_sets import RunSet, covers, cut, minus, parted, total, union


@dataclass(slots=True)
class Stripe:
    """Positions are counted from the beginning of a cell; lists are by column."""

    number: int
    cell_bytes: int
    wanted: dict[int, RunSet]
    """By data column. The padding after the payload's last byte comes along with a cell that is
    wanted up
    to it, so that the cell is whole and can be checked."""
    wanted_bytes: int
    """Without padding."""
    have: list[RunSet]
    """Received and good."""
    bad: list[RunSet]
    """Never to be had from this column."""
    needed: list[RunSet] = field(default_factory=list)
    """Of the present plan."""
    asked: list[RunSet] = field(default_factory=list)
    """Under way."""
    parts: tuple[DecodePart, ...] = ()
    rebuilt: tuple[int, ...] = ()
    whole_sources: bool = False
    """A decoded cell was wrong once: sources are read whole, so that each can be checked by
    itself."""
    stuck: Span | None = None
    """A place for which too few columns are in reach."""
    finishing: bool = False
    """FinishStripe was said and is not answered."""
    scratch: set[int] = field(default_factory=set)
    """Columns whose cell counts as scratch."""
    direct: dict[int, bool] = field(default_factory=dict)
    """By column, once it was looked up: its cell has a place in the destination."""

    @classmethod
    def of(cls, layout: Layout, number: int, wanted: dict[int, RunSet]) -> Stripe:
        empty: list[RunSet] = [()] * layout.code.n
        size = layout.cell_bytes_of(number)
        wanted_bytes = sum(total(spans) for spans in wanted.values())
        for j, spans in wanted.items():
            end = min(size, layout.payload_bytes - layout.cell_offset(number, j))
            if spans == ((0, end),):
                wanted[j] = ((0, size),)
        return cls(
            number, size, wanted, wanted_bytes, list(empty), list(empty), list(empty), list(empty)
        )

    @property
    def whole(self) -> RunSet:
        """The cell from border to border."""
        return ((0, self.cell_bytes),)

    @property
    def complete(self) -> bool:
        """Whether all that the plan needs is here, and nothing is under way."""
        if self.stuck is not None or any(self.asked):
            return False
        return not any(minus(n, have) for n, have in zip(self.needed, self.have, strict=True))

    def received_whole(self) -> tuple[int, ...]:
        """Columns whose cell came whole."""
        return tuple(j for j, have in enumerate(self.have) if have == self.whole)

    def rest(self, column: int, parts: RunSet) -> RunSet:
        """What of the parts is needed from the column, and neither here nor asked nor bad."""
        if self.finishing or self.stuck is not None:
            return ()
        needed = minus(parts, minus(parts, self.needed[column]))
        known = union(union(self.have[column], self.asked[column]), self.bad[column])
        return minus(needed, known)

    def forget(self, column: int) -> None:
        """Discard the column's cell, which is not what it should be."""
        self.have[column] = ()
        self.bad[column] = self.whole


def by_stripe(layout: Layout, runs: RunSet) -> Iterator[tuple[int, RunSet]]:
    """(stripe, parts of its cell) of fragment bytes of a column, no span or tooth of two cells."""
    while runs:
        number = runs[0][0] // layout.cell_bytes
        mine, runs = parted(runs, (number + 1) * layout.cell_bytes)
        yield number, shifted(mine, -layout.fragment_offset(number))


def wanted_stripes(layout: Layout, spans: Ranges) -> Iterator[tuple[int, dict[int, RunSet]]]:
    """(stripe, wanted parts of its data cells), ascending."""
    current = -1
    wanted: dict[int, RunSet] = {}
    for stripe, column, parts in _wanted_parts(layout, _joined(spans)):
        if stripe != current:
            if wanted:
                yield current, wanted
            current, wanted = stripe, {}
        wanted[column] = union(wanted.get(column, ()), parts)
    if wanted:
        yield current, wanted


def _joined(ranges: Ranges) -> Ranges:
    """Ascending, disjoint ranges; those that touch are one."""
    apart = np.flatnonzero(ranges[1:, 0] > ranges[:-1, 1]) + 1
    if len(apart) + 1 >= len(ranges):
        return ranges
    firsts, lasts = np.append(0, apart), np.append(apart, len(ranges)) - 1
    return np.stack((ranges[firsts, 0], ranges[lasts, 1]), axis=1)


def _wanted_parts(layout: Layout, spans: Ranges) -> Iterator[tuple[int, int, RunSet]]:
    """(stripe, column, parts of that cell), ascending; a cell comes more than once when a span
    reaches over its border."""
    at, starts, ends = 0, spans[:, 0], spans[:, 1]
    while at < len(spans):
        for cell in layout.cells(int(starts[at]), int(ends[at])):
            yield cell.stripe, cell.column, ((cell.offset, cell.offset + cell.length),)
        at += 1
        low = cell.payload_offset - cell.offset
        high = min(low + layout.cell_bytes_of(cell.stripe), layout.payload_bytes)
        # Most of many short ones lie in the cell that the last one ended in.
        behind = int(np.searchsorted(starts, high))
        if behind > at and ends[behind - 1] > high:
            behind -= 1
        if behind > at:
            yield cell.stripe, cell.column, combs_of(spans[at:behind] - low)
            at = behind


def plan_sparing(
    stripe: Stripe, code: Code, usable: Sequence[bool], spared: frozenset[int], load: Sequence[int]
) -> frozenset[int]:
    """As `plan_stripe`, without the spared columns while the others can give all; which are spared
    from now on."""
    if spared:
        plan_stripe(stripe, code, [able and j not in spared for j, able in enumerate(usable)], load)
        if stripe.stuck is None:
            return spared
    plan_stripe(stripe, code, usable, load)
    return frozenset()


def plan_stripe(stripe: Stripe, code: Code, usable: Sequence[bool], load: Sequence[int]) -> None:
    """Decide what is needed from which column, again; sets needed, parts, rebuilt, stuck."""
    reach = [
        minus(stripe.whole, stripe.bad[j]) if usable[j] else stripe.have[j] for j in range(code.n)
    ]
    needed: list[RunSet] = [()] * code.n
    holes: dict[int, RunSet] = {}
    for j, wanted in stripe.wanted.items():
        if minus(wanted, reach[j]):
            needed[j] = reach[j]
            holes[j] = minus(stripe.whole, reach[j])
        else:
            needed[j] = wanted
    stripe.stuck = None
    stripe.parts = ()
    if holes:
        _fill(stripe, code, reach, holes, needed, load)
    stripe.needed = needed
    stripe.rebuilt = tuple(sorted(holes))


def _fill(
    stripe: Stripe, code: Code, reach: list[RunSet], holes: dict[int, RunSet],
    needed: list[RunSet], load: Sequence[int],
) -> None:  # fmt: skip
    parts: list[DecodePart] = []
    for start, end in cut([*reach, *holes.values()]):
        lost = tuple(j for j in sorted(holes) if covers(holes[j], start, end))
        if not lost:
            continue
        sources = _sources(stripe, code, reach, needed, load, (start, end))
        if sources is None:
            stripe.stuck = (start, end)
            return
        for j in sources:
            wider = reach[j] if stripe.whole_sources else ((start, end),)
            needed[j] = union(needed[j], wider)
        if parts and parts[-1].end == start and parts[-1].sources == sources:
            last = parts[-1]
            if last.wanted == lost:
                parts[-1] = DecodePart(last.start, end, sources, lost)
                continue
        parts.append(DecodePart(start, end, sources, lost))
    stripe.parts = tuple(parts)


def _sources(
    stripe: Stripe, code: Code, reach: list[RunSet], needed: list[RunSet], load: Sequence[int],
    place: Span,
) -> tuple[int, ...] | None:  # fmt: skip
    """k columns that can give the place: first what is here, then what is read anyway, then data,
    then parity."""
    start, end = place
    able = [j for j in range(code.n) if covers(reach[j], start, end)]
    if len(able) < code.k:
        return None

    def cost(j: int) -> tuple[int, int, int]:
        if covers(stripe.have[j], start, end):
            return 0, 0, j
        if covers(needed[j], start, end) or covers(stripe.asked[j], start, end):
            return 1, 0, j
        return (2, 0, j) if j < code.k else (3, load[j], j)

    return tuple(sorted(sorted(able, key=cost)[: code.k]))
