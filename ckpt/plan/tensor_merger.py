"""Do all ranks' entries of one name make up a whole tensor, and what does the index say then?

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
from typing import Final

from ckpt.base.ids import Rank
from ckpt.format.index.pages import IndexBox, IndexTensor
from ckpt.format.table import Meaning, TensorEntry
from ckpt.plan.boxes import Extent
from ckpt.plan.cuts import TensorCut
from ckpt.plan.disagreement import by_fingerprint, few, group, groups_text, odd_ranks, ranks_text
from ckpt.plan.form_tables import FormTables
from ckpt.plan.geometry import OVERLAPS_MAX, Geometry, geometry_of
from ckpt.plan.holdings import (
    Holding,
    box_in_one_piece,
    box_of,
    fault_of,
    first_gap_of,
)

PROBLEMS_MAX: Final = 64
"""Most problems that are named one by one; the last one says that there are more."""
FORM_COST: Final = 16
"""Cost of a tensor that is looked at in arrays, in entries that are merged one by one; and of each
rank that has it:"""
FORM_RANK_COST: Final = 0.01
FIRST_COST: Final = 3
"""Cost of each rank of one that others may be like."""


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


@dataclass(slots=True)
class TensorMerger:
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

    def merge_of_form(self, name: str, tables: FormTables, number: int) -> float:
        """Add one tensor that tables of one form have, and nobody else; what it cost, in entries.

        One that is cut and stored like others before, which nearly all are, is looked at in arrays;
        any other rank by rank.
        """
        entry = tables.form.entries[number]
        if entry.meaning is Meaning.REPLICATED:
            done = self._add_equal_replica(name, tables, number)
        else:
            boxes = tables.boxes(number, copies=len(self.overlaps) <= OVERLAPS_MAX)
            done = boxes is not None
            if boxes is not None:
                self._add(name, entry, boxes)
        if done:
            return FORM_COST + len(tables.ranks) * FORM_RANK_COST
        holdings, problems = tables.holdings(number), len(self.problems)
        if holdings:
            self.merge(name, holdings)
        if (
            len(holdings) == len(tables.ranks)
            and entry.meaning is not Meaning.REPLICATED
            and len(self.problems) == problems < PROBLEMS_MAX
            and not tables.has_cut(number)
        ):
            copies = self._copies_of(holdings)
            if copies is not None:
                tables.note_cut(number, TensorCut(holdings, copies))
            return len(tables.ranks) * FIRST_COST
        return len(holdings) + 1

    def _copies_of(self, holdings: Sequence[Holding]) -> Sequence[Sequence[int]] | None:
        """Which boxes of a tensor without fault are declared more than once; None where it is no
        cut.
        """
        entry = holdings[0][1]
        if entry.meaning is Meaning.OWN:
            return ()
        geometry = self.geometries[entry.global_shape, _boxes_of(holdings)]
        return None if geometry.crossings else geometry.identical

    def _add_equal_replica(self, name: str, tables: FormTables, number: int) -> bool:
        """A replica that all ranks have, and fingerprinted alike. False, and nothing is done, for
        any other.
        """
        if len(tables.ranks) < len(self.ranks):
            return False
        found = tables.equal_replica(number)
        if found is None or any(fault_of(entry) for _, entry in found):
            return False
        if first_gap_of(found) is not None:
            return False
        self._add(name, found[0][1], (box_of(*found[0], found),))
        return True

    def merge(self, name: str, holdings: Sequence[Holding]) -> None:
        """Add one tensor."""
        if len(holdings) > 1 and not self._agree(name, holdings):
            return
        meaning = holdings[0][1].meaning
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
            fault = fault_of(entry)
            if fault:
                self.report(name, [rank], f"rank {rank} {fault}")
                good = False
        return good

    def _merge_own(self, name: str, holdings: Sequence[Holding]) -> None:
        if len(holdings) == 1:
            ((rank, entry),) = holdings
            is_whole = len(entry.pieces) == 1
            box = box_in_one_piece(rank, entry) if is_whole else box_of(rank, entry, holdings)
            return self._add(name, entry, (box,))
        forms: defaultdict[tuple[str, Extent], list[Holding]] = defaultdict(list)
        for rank, entry in holdings:
            forms[entry.dtype, entry.shape].append((rank, entry))
        for _, form in sorted(forms.items()):
            boxes = [box_of(rank, entry, [(rank, entry)]) for rank, entry in form]
            self._add(name, form[0][1], tuple(boxes))
        return None

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
        self._add(name, holdings[0][1], tuple([box_of(*holdings[i], writers[i]) for i in order]))

    def _stored(self, name: str, same: Sequence[Holding]) -> bool:
        """Every byte of a box is stored by one of the ranks that declare exactly it."""
        gap = first_gap_of(same)
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
            elif all(first_gap_of([holding]) is None for holding in same):
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
        held = set(holders)
        absent = [rank for rank in self.ranks if rank not in held]
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
            gap = first_gap_of(writers)
            if gap is not None:
                who = ranks_text(members)
                text = f"bytes {gap[0]} to {gap[1]} of the replica are stored by none of {who}"
                return self.report(name, members, text)
            # Kept apart, a replica is each rank's own; else one box stands for all.
            declared = members if len(groups) > 1 else members[:1]
            boxes += [box_of(rank, by_rank[rank], writers) for rank in declared]
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


def _boxes_of(holdings: Sequence[Holding]) -> tuple[tuple[Extent, Extent], ...]:
    return tuple([(entry.offset, entry.shape) for _, entry in holdings])


def _path(name: str) -> str:
    return f"tensor {name!r}"
