"""Is all that is kept whole (P7)? Judged by durable bytes and by what has moved; and is anything
there that nobody needs (P10)?
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Set
from typing import TYPE_CHECKING, Final

from ckpt.base.ids import CheckpointId, ColumnId, ColumnNumber, PayloadId, TargetId
from ckpt.base.limits import PAGE_BYTES, RESERVE_FRACTION
from ckpt.base.units import align_up
from ckpt.format.column import FRAGMENTS_OFFSET, file_bytes, manifest_bytes_bound
from ckpt.format.documents.file import document_name
from ckpt.format.documents.record import decode_record
from ckpt.format.layout import Layout
from ckpt.plan.placement import domain_key
from ckpt.protocol.coordinator.catalog import RowState
from ckpt.protocol.coordinator.cluster.rot import rotten_columns
from ckpt.protocol.target.core import STAGING, column_name
from ckpt.testing.disk import FakeDisk
from tests.sim.oracles import Columns, Violation
from tests.sim.payloads import encode_cells

if TYPE_CHECKING:
    from tests.sim.world import World

CELL_BYTES: Final = 4096
FILE_BYTES_MAX: Final = 1 << 16
"""Of a column here."""


class Disks:
    """What lies durably on all disks that are not lost for good, as of now."""

    def __init__(self, world: World, leaving: Collection[TargetId] = ()) -> None:
        """`leaving`: who is to be emptied, and takes nothing."""
        self._world = world
        self._leaving = frozenset(leaving)
        self._code = world.coordinator.machine_policy.code
        self._names = {
            id: frozenset(target.disk.durable_names("columns"))
            for id, target in world.targets.items()
            if not target.lost
        }
        self._rotted = frozenset(world.rotted)
        #: Bytes that one takes, of those alone that may be too full for a column.
        self._tight = {
            id: room
            for id in self._names
            if (room := _room(world.targets[id].disk)) < FILE_BYTES_MAX
        }
        self.needed = _needed(world)

    # ----------------------------------------------------------------------- what could be there

    def lacking(self) -> str:
        """What of it could be whole and is not; empty when nothing is."""
        world, machine = self._world, self._world.coordinator.machine
        if not world.coordinator.up or not machine.vouching.serves:
            return "the coordinator does not serve"
        if world.live_targets < len(self._names):
            return "a target is away"
        counts = machine.checkpoints.document_counts()
        for id in self.needed:
            checkpoint = machine.checkpoints.get(id)
            if checkpoint is None:
                return f"{id} is not known"
            is_read = checkpoint.state is RowState.COMMITTED
            if is_read and not self._is_lost(id):
                missing = machine.checkpoints.documents_missing(checkpoint, counts)
                if missing:
                    return f"{id} lacks {missing} copies of documents"
            for payload, columns in self._payloads(id):
                there, wanted = len(self._right(payload, columns)), self._possible(payload, columns)
                if self._code.k <= there < wanted:
                    return f"{payload} has {there} right columns on disks, {wanted} could be"
                if there >= self._code.k and (left := self._left_behind(payload, columns)):
                    return left
        return self._documents_lacking()

    def _left_behind(self, payload: PayloadId, columns: Columns) -> str:
        """What is named on targets that are to be emptied, though it has a place elsewhere. Copies
        of which nobody knows yet, sealed late, are left to the end.
        """
        staying = [t for t in self._right(payload, columns).values() if t not in self._leaving]
        named = [t for t in columns if t in self._leaving and t in self._names]
        if named and len(staying) < self._possible(payload, columns):
            return f"{payload} is still on {named}: {columns}"
        return ""

    def _documents_lacking(self) -> str:
        """m + 1 copies of index and record are on targets that stay, or one on each of these."""
        if not self._leaving:
            return ""
        staying = self._names.keys() - self._leaving
        wanted = min(self._code.m + 1, len(staying))
        for id in self.needed:
            for kind in ("index", "record"):
                name = document_name(kind, id)
                disks = (self._world.targets[target].disk for target in staying)
                there = sum(name in disk.durable_names("documents") for disk in disks)
                if there < wanted and not self._is_lost(id):
                    return f"{id} has {there} copies of its {kind} where they stay, not {wanted}"
        return ""

    def survivable(self) -> int:
        """So many more targets all that is needed survives; negative when something is lost."""
        found = (len(self._right(*one)) for id in self.needed for one in self._payloads(id))
        return min(found, default=self._code.n) - self._code.k

    def is_whole(self) -> bool:
        """No column lacks, but for those that have rotted."""
        return all(
            len(self._right(*one)) + len(self._rotted_of(*one)) == self._code.n
            for id in self.needed
            for one in self._payloads(id)
        )

    def has_places(self) -> bool:
        """Whether a payload of which nothing has rotted can have all its columns."""
        return self.places() >= self._code.n

    def _payloads(self, id: CheckpointId) -> list[tuple[PayloadId, Columns]]:
        placement = self._world.oracles.placement_of(id)
        return [(PayloadId(id, rank), columns) for rank, columns in placement.items()]

    def _is_lost(self, id: CheckpointId) -> bool:
        """Too little of some payload is left; whether that may be is for others to judge."""
        found = (len(self._right(*one)) for one in self._payloads(id))
        return min(found, default=self._code.n) < self._code.k

    def _right(self, payload: PayloadId, columns: Columns) -> dict[ColumnNumber, TargetId]:
        """Columns that lie durably where they are named, and in which nothing has rotted."""
        return {
            ColumnNumber(j): target
            for j, target in enumerate(columns)
            if target in self._names
            and _name(payload, j) in self._names[target]
            and f"{target}/columns/{_name(payload, j)}" not in self._rotted
        }

    def _possible(self, payload: PayloadId, columns: Columns) -> int:
        """For so many right columns the rule of domains has places with room, one that is known to
        be damaged its own. Damage that nobody has found keeps its place.
        """
        rotted = self._rotted_of(payload, columns)
        known = self._known_rotten(payload) & rotted if rotted else set()
        holding = (rotted - known).union(self._right(payload, columns).values())
        places = self.places(self._full_for(payload) - holding)
        return min(self._code.n, places) - len(rotted - known - self._leaving)

    def _full_for(self, payload: PayloadId) -> set[TargetId]:
        """One column of it is more than they take."""
        if not self._tight:
            return set()
        layout = self._layout(payload)
        wanted = file_bytes(layout, manifest_bytes_bound(layout))
        return {id for id, room in self._tight.items() if room < wanted}

    def _layout(self, payload: PayloadId) -> Layout:
        return Layout.plan(self._code, len(self._world.content_of(payload)), CELL_BYTES)

    def places(self, but: Set[TargetId] = frozenset()) -> int:
        """So many columns of a payload find one, without these targets."""
        spread = self._world.oracles.spread
        domains = Counter(
            domain_key(id, self._world.targets[id].domain, spread.level)
            for id in self._names
            if id not in but and id not in self._leaving
        )
        return sum(min(count, spread.max_per_domain) for count in domains.values())

    def _rotted_of(self, payload: PayloadId, columns: Columns) -> set[TargetId]:
        """Who is named for a column of it that has rotted, and has it still."""
        return {
            target
            for j, target in enumerate(columns)
            if target in self._names
            and f"{target}/columns/{_name(payload, j)}" in self._rotted
            and _name(payload, j) in self._names[target]
        }

    def _known_rotten(self, payload: PayloadId) -> set[TargetId]:
        return {
            target.id
            for target in self._world.known_targets
            if any(column.payload == payload for column in rotten_columns(target))
        }

    # ----------------------------------------------------------------------- the end

    def check(self) -> None:
        """Every column that is named holds exactly what was saved, where the rule allows it, and
        nowhere else; of what is deleted or was given up nothing is left.
        """
        held = Counter(
            name
            for target, names in self._names.items()
            for name in names
            if f"{target}/columns/{name}" not in self._rotted
        )
        for id in self.needed:
            for payload, columns in self._payloads(id):
                self._check_payload(payload, columns)
                # While one is missing no copy of another goes.
                is_whole = len(self._right(payload, columns)) == self._code.n
                for j in range(len(columns)):
                    if is_whole and held[_name(payload, j)] > 1:
                        raise Violation(f"P7: column {j} of {payload} is there twice")
        self._check_gone(held)

    def _check_payload(self, payload: PayloadId, columns: Columns) -> None:
        data, spread = self._world.content_of(payload), self._world.oracles.spread
        layout = self._layout(payload)
        cells = encode_cells(layout, data.ljust(layout.padded_bytes, b"\0"))
        right = self._right(payload, columns)
        for j, target in right.items():
            wanted = b"".join(row[j] for row in cells)
            stored = self._world.targets[target].disk.durable(f"columns/{_name(payload, j)}") or b""
            if stored[FRAGMENTS_OFFSET : FRAGMENTS_OFFSET + len(wanted)] != wanted:
                raise Violation(f"P3: column {j} of {payload} on {target} holds other bytes")
        domain_of = {t: node.domain for t, node in self._world.targets.items()}
        crowd = Counter(domain_key(t, domain_of[t], spread.level) for t in right.values())
        if max(crowd.values(), default=0) > spread.max_per_domain:
            raise Violation(f"P13: {payload} breaks the rule of {spread}: {columns}")

    def _check_gone(self, held: Counter[str]) -> None:
        oracles = self._world.oracles
        gone = (oracles.deleted | oracles.aborted).difference(self.needed)
        left = [
            name
            for id in sorted(gone)
            for rank in range(oracles.opened[id].world_size)
            for j in range(self._code.n)
            if held[name := _name(PayloadId(id, rank), j)]
        ]
        if left:
            raise Violation(f"P10: nobody needs them, and they are still there: {left[:5]}")


def _needed(world: World) -> list[CheckpointId]:
    """What was announced and not deleted, what is committed and nobody has heard of yet, and the
    homes of all that.
    """
    oracles, known = world.oracles, world.coordinator.machine.checkpoints.all()
    committed = {one.id for one in known if one.state is RowState.COMMITTED}
    kept = (oracles.announced.keys() | committed) - oracles.deleted
    records = (decode_record(oracles.decided[id].record) for id in kept)
    return sorted(kept.union(h.id(r.info.checkpoint.run) for r in records for h in r.info.homes))


def _room(disk: FakeDisk) -> int:
    """What is reserved there and not used can go back; the reserve of a device nothing takes."""
    space = disk.space()
    aside = (file for file in disk.files() if file.startswith(f"{STAGING}/"))
    held = sum(align_up(disk.file_bytes(file), PAGE_BYTES) for file in aside)
    return space.bytes_free + held - int(space.bytes_total * RESERVE_FRACTION)


def _name(payload: PayloadId, number: int) -> str:
    return column_name(ColumnId(payload, ColumnNumber(number)))
