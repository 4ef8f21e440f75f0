"""Do all ranks' tables make up whole tensors, and what does the index say then?

    OWN          each rank's own array under that name          -> one box for each rank, one tensor
                                                                   for each dtype and shape
    REPLICATED   declared by every rank, stored in shares       -> one box, pieces of all ranks
    SHARD        boxes of one global tensor                     -> one box for each declaration;
                                                                   identical ones share their pieces

A checkpoint that has a problem must not commit: a hole, a box that reaches out of its tensor,
pieces that do not cover their box, replicas that differ or that a rank lacks, ranks that disagree
about dtype, shape or meaning. Each problem names path and ranks.

Shards that overlap are allowed when they agree. Identical boxes with fingerprints are compared
here; every other overlap is named for its holders to fingerprint, and the coordinator compares
their answers. All copies stay stored, and the index names all boxes.

A hole is found exactly: with boxes inside the tensor and no two crossing, covering everything is
the same as having its volume; else, coordinates are compressed (ckpt.plan.boxes). Tensors that are
cut alike, nearly all of a model's, share one look at their geometry.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Final

from ckpt.base.errors import Refused
from ckpt.base.ids import Rank
from ckpt.format.dtypes import dtype_of
from ckpt.format.index.pages import IndexBox, IndexTensor, Location
from ckpt.format.table import Meaning, RankTable, TensorEntry
from ckpt.plan.boxes import Extent, volume_of
from ckpt.plan.cuts import Holding, ShardCut, box_bytes_of, box_in_one_piece
from ckpt.plan.disagreement import by_fingerprint, few, group, groups_text, odd_ranks, ranks_text
from ckpt.plan.geometry import OVERLAPS_MAX, Geometry, geometry_of

PROBLEMS_MAX: Final = 64
"""Most problems that are named one by one; the last one says that there are more."""
AXIS_ITEMS_MAX: Final = 1 << 62
ENTRIES_AT_ONCE: Final = 2048
"""Entries that are merged before anything else is done: 10 to 20 ms."""
GATHERING_COST: Final = 0.1
"""Cost of gathering an entry, relative to merging it."""


class Differing(Enum):
    """What becomes of replicas that differ; the values are those of the message's ReplicaPolicy."""

    ABORT = "abort"
    KEEP = "keep"


@dataclass(frozen=True, slots=True)
class Problem:
    """Why the tables make no checkpoint; for people."""

    name: str
    ranks: tuple[Rank, ...]
    message: str


@dataclass(frozen=True, slots=True)
class Overlap:
    """A part of a tensor that several ranks hold and that must be equal in all of them."""

    name: str
    offset: Extent
    """In the global tensor."""
    shape: Extent
    ranks: tuple[Rank, ...]
    """Ascending, at least two."""


class TableMerger:
    """I merge tables a part at a time, so that a coordinator of other jobs has time for these.

    tables, by rank --gathered--> what ranks hold, by name --merged--> tensors, ascending
    """

    def __init__(
        self, tables: Sequence[RankTable], differing: Differing, add: Callable[[IndexTensor], None]
    ) -> None:
        """tables: all members', one for each rank, in any order. add: hears each tensor that has no
        problem, in the index's order.
        """
        ordered = sorted(tables, key=lambda table: table.rank)
        ranks = tuple(table.rank for table in ordered)
        assert len(set(ranks)) == len(ranks), "one table for each rank"
        self._merger = _Merger(ranks, differing, add)
        if len({table.world_size for table in ordered}) > 1:
            self._merger.report("", ranks, "ranks disagree about the world size")
        #: To be gathered, the last first.
        self._tables = ordered[::-1]
        self._holdings: defaultdict[str, list[Holding]] = defaultdict(list)
        #: To be merged, the last first; None while tables are gathered.
        self._names: list[str] | None = None

    def go_on(self, entries: int) -> None:
        """Take so many entries further, and one name or table more."""
        left = float(entries)
        while self._tables and left > 0:
            table = self._tables.pop()
            for entry in table.entries:
                self._holdings[entry.name].append((table.rank, entry))
            left -= len(table.entries) * GATHERING_COST
        if self._tables:
            return
        if self._names is None:
            self._names = sorted(self._holdings, reverse=True)
        while self._names and left > 0:
            name = self._names.pop()
            holdings = self._holdings.pop(name)
            self._merger.merge(name, holdings)
            left -= len(holdings)

    @property
    def done(self) -> bool:
        return self._names is not None and not self._names

    @property
    def overlaps(self) -> tuple[Overlap, ...]:
        return tuple(self._merger.overlaps)

    @property
    def problems(self) -> tuple[Problem, ...]:
        return tuple(self._merger.problems)

    @property
    def warnings(self) -> tuple[Problem, ...]:
        return tuple(self._merger.warnings)


# --------------------------------------------------------------------------- one name at a time


@dataclass(slots=True)
class _Merger:
    """I take the holdings of one name after the other and collect what the index gets,
    or what is wrong.
    """

    ranks: tuple[Rank, ...]
    differing: Differing
    add: Callable[[IndexTensor], None]
    """Hears each tensor that has no problem."""
    overlaps: list[Overlap] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)
    geometries: dict[tuple[Extent, tuple[tuple[Extent, Extent], ...]], Geometry] = field(
        default_factory=dict
    )
    """(global shape, boxes) -> geometry: most tensors of a model are cut alike."""
    cuts: dict[tuple[str, Extent, tuple[tuple[Extent, Extent], ...]], ShardCut] = field(
        default_factory=dict
    )
    """(dtype, global shape, boxes) -> what is known of such shards, which have no fault, hole or
    overlap, and whose ranks and offsets ascend together."""

    def merge(self, name: str, holdings: Sequence[Holding]) -> None:
        """Add one tensor."""
        if len(holdings) > 1 and not self._agree(name, holdings):
            return
        meaning = holdings[0][1].meaning
        if meaning is Meaning.SHARD and self._merge_alike(name, holdings):
            return
        if not self._well_formed(name, holdings):
            return
        if meaning is Meaning.OWN:
            self._merge_own(name, holdings)
        elif meaning is Meaning.REPLICATED:
            self._merge_replicas(name, holdings)
        else:
            self._merge_shards(name, holdings)

    def report(self, name: str, ranks: Sequence[Rank], text: str) -> None:
        """Note a problem, as long as there is room for it."""
        if len(self.problems) < PROBLEMS_MAX - 1:
            self.problems.append(
                Problem(name, tuple(ranks), f"{_path(name)}: {text}" if name else text)
            )
        elif len(self.problems) < PROBLEMS_MAX:
            self.problems.append(Problem("", (), "there are more problems"))

    def _agree(self, name: str, holdings: Sequence[Holding]) -> bool:
        """Meaning is the same everywhere; so are dtype and global shape, unless each rank has its
        own.
        """
        forms = [(entry.meaning, entry.dtype, entry.global_shape) for _, entry in holdings]
        if forms.count(forms[0]) == len(forms):
            return True
        facts = [("meaning", [entry.meaning.value for _, entry in holdings])]
        if holdings[0][1].meaning is not Meaning.OWN:
            facts.append(("dtype", [entry.dtype for _, entry in holdings]))
            facts.append(("global shape", [str(entry.global_shape) for _, entry in holdings]))
        for what, values in facts:
            groups = group(
                [(rank, value) for (rank, _), value in zip(holdings, values, strict=True)]
            )
            if len(groups) > 1:
                said = "; ".join(f"{ranks_text(ranks)}: {value}" for value, ranks in few(groups))
                self.report(name, odd_ranks(groups), f"ranks disagree about the {what}: {said}")
                return False
        return True

    def _well_formed(self, name: str, holdings: Sequence[Holding]) -> bool:
        """Each entry by itself: a known dtype, a box inside the tensor, pieces inside the box."""
        good = True
        for rank, entry in holdings:
            fault = _fault(entry)
            if fault:
                self.report(name, [rank], f"rank {rank} {fault}")
                good = False
        return good

    def _merge_own(self, name: str, holdings: Sequence[Holding]) -> None:
        if len(holdings) == 1:
            ((rank, entry),) = holdings
            is_whole = len(entry.pieces) == 1
            box = box_in_one_piece(rank, entry) if is_whole else _box(rank, entry, holdings)
            return self._add(name, entry, (box,))
        forms: defaultdict[tuple[str, Extent], list[Holding]] = defaultdict(list)
        for rank, entry in holdings:
            forms[entry.dtype, entry.shape].append((rank, entry))
        for _, form in sorted(forms.items()):
            boxes = [_box(rank, entry, [(rank, entry)]) for rank, entry in form]
            self._add(name, form[0][1], tuple(boxes))
        return None

    def _merge_alike(self, name: str, holdings: Sequence[Holding]) -> bool:
        """Shards that are cut like others before, each stored in one piece by its rank: nearly all.
        False, and nothing is done, for any other.
        """
        first = holdings[0][1]
        cut = self.cuts.get((first.dtype, first.global_shape, _boxes_of(holdings)))
        if cut is None:
            return False
        boxes = cut.boxes_of(holdings)
        if boxes is None:
            return False
        self._add(name, first, boxes)
        return True

    def _merge_shards(self, name: str, holdings: Sequence[Holding]) -> None:
        shape = holdings[0][1].global_shape
        boxes = _boxes_of(holdings)
        geometry = self.geometries.get((shape, boxes))
        if geometry is None:
            geometry = self.geometries.setdefault((shape, boxes), geometry_of(shape, boxes))
        if geometry.hole is not None:
            offset, hole_shape = geometry.hole
            holders = [rank for rank, _ in holdings]
            self.report(
                name,
                holders,
                f"no rank holds the box at {offset} of shape {hole_shape} "
                f"of the global shape {shape}; it is declared by {ranks_text(holders)}",
            )
            return
        if not self._compare_shards(name, holdings, geometry):
            return
        writers = [[holding] for holding in holdings]
        for copies in geometry.identical:
            same = [holdings[i] for i in copies]
            for i in copies:
                writers[i] = same
        if not all(self._stored(name, same) for same in writers):
            return
        order = sorted(range(len(holdings)), key=lambda i: (holdings[i][1].offset, holdings[i][0]))
        self._add(name, holdings[0][1], tuple([_box(*holdings[i], writers[i]) for i in order]))
        if geometry.is_plain and order == list(range(len(holdings))):
            self.cuts[holdings[0][1].dtype, shape, boxes] = ShardCut.of(holdings)

    def _stored(self, name: str, same: Sequence[Holding]) -> bool:
        """Every byte of a box is stored by one of the ranks that declare exactly it."""
        gap = _first_gap(same)
        if gap is None:
            return True
        entry, members = same[0][1], [rank for rank, _ in same]
        text = f"bytes {gap[0]} to {gap[1]} of the box at {entry.offset} of shape {entry.shape}"
        self.report(name, members, f"{text} are stored by none of {ranks_text(members)}")
        return False

    def _compare_shards(self, name: str, holdings: Sequence[Holding], geometry: Geometry) -> bool:
        """Compare identical boxes at once where fingerprints stand, and name all other overlaps."""
        for copies in geometry.identical:
            same = [holdings[i] for i in copies]
            entry = same[0][1]
            if all(other.fingerprint for _, other in same):
                groups = by_fingerprint([(rank, other.fingerprint) for rank, other in same])
                if len(groups) > 1:
                    self.report(
                        name,
                        odd_ranks(groups),
                        f"shards of the same box at {entry.offset} of shape {entry.shape} differ: "
                        f"{groups_text(groups)}",
                    )
                    return False
            elif all(_first_gap([holding]) is None for holding in same):
                self.overlaps.append(
                    Overlap(name, entry.offset, entry.shape, tuple(rank for rank, _ in same))
                )
            else:
                silent = [rank for rank, other in same if not other.fingerprint]
                text = f"{ranks_text(silent)} did not fingerprint the box that others store with it"
                self.report(name, silent, text)
                return False
        parts: defaultdict[tuple[Extent, Extent], set[Rank]] = defaultdict(set)
        for a, b, offset, shape in geometry.crossings:
            parts[offset, shape] |= {holdings[a][0], holdings[b][0]}
        self.overlaps += [
            Overlap(name, *part, tuple(sorted(parts[part]))) for part in sorted(parts)
        ]
        if geometry.crossing_more or len(self.overlaps) > OVERLAPS_MAX:
            self.report(
                name, [rank for rank, _ in holdings], f"more than {OVERLAPS_MAX} overlaps of shards"
            )
            return False
        return True

    def _merge_replicas(self, name: str, holdings: Sequence[Holding]) -> None:
        holders = [rank for rank, _ in holdings]
        absent = [rank for rank in self.ranks if rank not in set(holders)]
        if absent:
            text = f"replicated on {ranks_text(holders)} but absent on {ranks_text(absent)}"
            if self.differing is Differing.ABORT:
                return self.report(name, absent, text)
            self.warnings.append(Problem(name, tuple(absent), f"{_path(name)}: {text}"))
        silent = [rank for rank, entry in holdings if not entry.fingerprint]
        if silent and len(holdings) > 1:
            return self.report(
                name, silent, f"{ranks_text(silent)} did not fingerprint its replica"
            )
        groups = by_fingerprint([(rank, entry.fingerprint) for rank, entry in holdings])
        if len(groups) > 1:
            text = f"replicas differ: {groups_text(groups)}"
            if self.differing is Differing.ABORT:
                return self.report(name, odd_ranks(groups), text)
            self.warnings.append(
                Problem(name, odd_ranks(groups), f"{_path(name)}: {text}; kept apart")
            )

        by_rank = dict(holdings)
        boxes: list[IndexBox] = []
        for _, members in groups:
            writers = [(rank, by_rank[rank]) for rank in members]
            gap = _first_gap(writers)
            if gap is not None:
                who = ranks_text(members)
                text = f"bytes {gap[0]} to {gap[1]} of the replica are stored by none of {who}"
                return self.report(name, members, text)
            # Kept apart, a replica is each rank's own; else one box stands for all.
            declared = members if len(groups) > 1 else members[:1]
            boxes += [_box(rank, by_rank[rank], writers) for rank in declared]
        meaning = Meaning.OWN if len(groups) > 1 else Meaning.REPLICATED
        in_order = tuple(sorted(boxes, key=lambda box: box.rank))
        self._add(name, holdings[0][1], in_order, meaning)
        return None

    def _add(
        self,
        name: str,
        entry: TensorEntry,
        boxes: Sequence[IndexBox],
        meaning: Meaning | None = None,
    ) -> None:
        meaning = meaning or entry.meaning
        self.add(IndexTensor(name, meaning, entry.dtype, entry.global_shape, boxes))


# --------------------------------------------------------------------------- helpers


def _boxes_of(holdings: Sequence[Holding]) -> tuple[tuple[Extent, Extent], ...]:
    return tuple([(entry.offset, entry.shape) for _, entry in holdings])


def _fault(entry: TensorEntry) -> str:
    """What is wrong with an entry by itself; empty when nothing is."""
    meaning = entry.meaning
    fault, box_bytes = _form_fault(
        entry.dtype, entry.global_shape, entry.offset, entry.shape, meaning is Meaning.SHARD
    )
    if fault:
        return fault
    reach = 0
    for piece in entry.pieces:
        start, length = piece.start, piece.length
        end = start + length
        if start < reach or length < 1 or end > box_bytes or piece.payload_offset < 0:
            return f"stores bytes {start} to {end} of a box of {box_bytes}, out of order"
        if start > reach and meaning is Meaning.OWN:
            break
        reach = end
    if reach < box_bytes and meaning is Meaning.OWN:
        text = f"stores {reach} bytes from the beginning of a box of {box_bytes}"
        return f"{text}; the next ones are missing"
    return ""


@lru_cache(maxsize=4096)
def _form_fault(
    dtype: str, whole: Extent, offset: Extent, shape: Extent, is_shard: bool
) -> tuple[str, int]:
    """What is wrong with an entry's form, which most tensors of a model share with others; and how
    many bytes its box has.
    """
    try:
        item_bytes = dtype_of(dtype).itemsize
    except Refused as error:
        return f"declares what cannot be stored: {error.message}", 0
    box = f"a box at {offset} of shape {shape}"
    if not len(whole) == len(offset) == len(shape):
        return f"declares {box} in the global shape {whole}: the numbers of axes differ", 0
    if any(
        not (a >= 0 and n >= 0 and a + n <= w < AXIS_ITEMS_MAX)
        for a, n, w in zip(offset, shape, whole, strict=True)
    ):
        return f"declares {box}, which reaches out of the global shape {whole}", 0
    if shape != whole and not is_shard:
        return f"declares a box of shape {shape} of a tensor of shape {whole} that is no shard", 0
    return "", volume_of(shape) * item_bytes


def _box(rank: Rank, entry: TensorEntry, writers: Sequence[Holding]) -> IndexBox:
    """The box that `rank` declared as `entry`, with each byte at one place: its own payload first,
    then the lowest rank's.
    """
    pieces = [(piece, writer) for writer, held in writers for piece in held.pieces]
    if len(pieces) == 1:
        piece, writer = pieces[0]
        place = Location(writer, piece.start, piece.payload_offset, piece.length)
        return IndexBox(rank, entry.offset, entry.shape, (place.at(piece.home),))
    pieces.sort(key=lambda p: (p[0].start, p[1] != rank, -p[0].length, p[1]))
    locations: list[Location] = []
    reach = 0
    for piece, writer in pieces:
        start, end = max(piece.start, reach), piece.start + piece.length
        if start < end:
            at = piece.payload_offset + start - piece.start
            locations.append(Location(writer, start, at, end - start).at(piece.home))
            reach = end
    return IndexBox(rank, entry.offset, entry.shape, tuple(locations))


def _first_gap(writers: Sequence[Holding]) -> tuple[int, int] | None:
    """Bytes [start, end) of a replica, or of a box that all of them declare, that none stores."""
    entry = writers[0][1]
    box_bytes, reach = box_bytes_of(entry), 0
    for start, length in sorted(
        (piece.start, piece.length) for _, held in writers for piece in held.pieces
    ):
        if start > reach:
            return reach, start
        reach = max(reach, start + length)
    return (reach, box_bytes) if reach < box_bytes else None


def _path(name: str) -> str:
    return f"tensor {name!r}"
