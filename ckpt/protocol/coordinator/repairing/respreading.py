"""Copies of index and commit record that are gone are made again, on other targets.

    too few are live on targets that stay, or in fewer domains than the commit has promised to
    survive and one more, and nobody who has one is about to come
        index: read whole from a holder, its digest compared    record: the catalog has it
                                    v
                 stored beside the copies that are left, m + 1 in all

The record names the targets that its index was put on at first. Later copies are found by what
targets list: any that is here and has an index of the right length is a holder, and readers, who
check all that they read, hear who has it now. Where every target that may take a copy is full, room
is made on one, as for a column (clearing.py). A damaged copy for whose mending its target has no
room (mending.py) is as good as gone: it gets one beside it elsewhere, or its room. One document is
on its way at a time. A look goes in slices, so that nobody waits until ten thousand checkpoints
were looked at.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from ckpt.base.ids import CheckpointId, TargetId
from ckpt.base.units import US_PER_S
from ckpt.format.documents.file import document_file_bytes
from ckpt.format.documents.record import decode_record
from ckpt.format.messages.reading import DocumentKind
from ckpt.plan.placement import DomainKey, Level, domain_key
from ckpt.protocol.coordinator.cluster.membership import Membership, Target
from ckpt.protocol.coordinator.desk import Desk
from ckpt.protocol.coordinator.keeping.checkpoints import (
    Checkpoints,
    DocumentCounts,
    KeptCheckpoint,
)
from ckpt.protocol.coordinator.keeping.documents import Copies, store_document
from ckpt.protocol.coordinator.repairing.clearing import Clearing
from ckpt.protocol.coordinator.repairing.mending import Mender
from ckpt.protocol.coordinator.repairing.whole_index import read_index

LOOK_US: Final = 5 * US_PER_S
LOOKED_AT_ONCE: Final = 256
"""Checkpoints that are looked at in one turn, in 5 ms."""
COPIES_LEFT_MIN: Final = 1
"""With so few copies left, no target that is away is waited for."""


class _Room(NamedTuple):
    """Live targets that stay, and their domains."""

    targets: int
    domains: int

    def copies_of(self, checkpoint: KeptCheckpoint) -> int:
        """So many copies are wanted, or as many as there are targets to have them."""
        return min(checkpoint.document_copies, self.targets)

    def domains_of(self, checkpoint: KeptCheckpoint) -> int:
        """In so many domains they lie, or in as many as there are."""
        return min(checkpoint.info.domains_survivable + 1, self.domains)


class Respreader:
    """I look now and then, and go on with what I found until nothing lacks."""

    def __init__(
        self, desk: Desk, members: Membership, checkpoints: Checkpoints, after_us: int | None,
        level: Level, clearing: Clearing, mender: Mender,
    ) -> None:  # fmt: skip
        """`after_us`: who is away for so long is not waited for any more; None: nothing is ever
        made again. `level`: of the domains that copies are spread over."""
        self._desk = desk
        self._members = members
        self._checkpoints = checkpoints
        self._after_us = after_us
        self._level = level
        self._clearing = clearing
        self._mender = mender
        #: When to look next; None before the first tick. Who has just begun has more urgent work.
        self._look_us: int | None = None
        #: The version of the map when the last look began.
        self._looked_at = -1
        #: What lacked copies at the last look, the newest last.
        self._left: list[CheckpointId] = []
        self._is_busy = False
        self.copied = 0
        """Copies that were made again since this coordinator began."""
        self.problems: dict[CheckpointId, str] = {}
        """Why copies of a checkpoint's documents have no place, as of the last look."""

    def tick(self) -> None:
        if self._after_us is None or self._is_busy or self._is_early:
            return
        now_us = self._desk.now_us
        if self._look_us is None:
            self._look_us = now_us + LOOK_US
        if not self._left and now_us >= self._look_us:
            self._look_us = now_us + LOOK_US
            self._looked_at = self._members.version
            kept = sorted(self._checkpoints.all(), key=lambda one: one.info.committed_at_s)
            counts = self._checkpoints.document_counts(staying=True)
            self._is_busy = True
            known = self._checkpoints.get
            self.problems = {id: why for id, why in self.problems.items() if known(id) is not None}
            self._look_on(iter([one.id for one in kept]), counts, self._record_domains())
        else:
            self._next()

    @property
    def is_settled(self) -> bool:
        """Whether no copy is due, as of a look since a target came or went."""
        if self._after_us is None:
            return True
        is_idle = not (self._is_busy or self._left or self.problems)
        return is_idle and self._looked_at == self._members.version

    def _look_on(
        self, ids: Iterator[CheckpointId], counts: DocumentCounts,
        spread: defaultdict[CheckpointId, set[DomainKey]],
    ) -> None:  # fmt: skip
        """The next slice. Who comes or goes meanwhile may hide a lack until the next look; one that
        is found is looked at again before anything is stored."""
        some, room = list(islice(ids, LOOKED_AT_ONCE)), self._room
        for checkpoint in filter(None, map(self._checkpoints.get, some)):
            if self._lacks(checkpoint, counts, spread[checkpoint.id], room):
                self._left.append(checkpoint.id)
            else:
                self.problems.pop(checkpoint.id, None)
        if len(some) == LOOKED_AT_ONCE:
            self._desk.later(partial(self._look_on, ids, counts, spread))
        else:
            self._ended()

    @property
    def _is_early(self) -> bool:
        """Targets that are known are about to come."""
        return self._members.gathering and len(self._members.live()) < len(self._members.all())

    def _record_domains(self) -> defaultdict[CheckpointId, set[DomainKey]]:
        """Where commit records are, on targets that stay; by the level that answers speak of."""
        found: defaultdict[CheckpointId, set[DomainKey]] = defaultdict(set)
        for target in self._members.live():
            if target.stays:
                domain = domain_key(target.id, target.domain, self._level)
                for document in target.documents:
                    if document.kind is DocumentKind.RECORD:
                        found[document.checkpoint].add(domain)
        return found

    def _lacks(
        self, checkpoint: KeptCheckpoint, counts: DocumentCounts, spread: set[DomainKey],
        room: _Room,
    ) -> bool:  # fmt: skip
        """`spread`: the domains in which its record is."""
        if not checkpoint.is_needed:
            return False
        holders = self._sound(checkpoint, DocumentKind.INDEX)
        waiting = len(self._mender.without_room(DocumentKind.RECORD, checkpoint.id))
        fewest = min(len(holders), counts[DocumentKind.RECORD, checkpoint.id] - waiting)
        domains = min(len(spread), len(self._domains_of(holders)))
        if fewest >= room.copies_of(checkpoint) and domains >= room.domains_of(checkpoint):
            return False
        return fewest <= COPIES_LEFT_MIN or not self._is_waited_for(checkpoint)

    def _sound(self, checkpoint: KeptCheckpoint, kind: DocumentKind) -> list[TargetId]:
        """Who has a copy, stays, and has not to wait for room until it is mended."""
        known, waiting = self._checkpoints, self._mender.without_room(kind, checkpoint.id)
        is_index = kind is DocumentKind.INDEX
        copies = known.index_copies(checkpoint) if is_index else known.record_copies(checkpoint)
        return [target.id for target in copies if target.stays and target.id not in waiting]

    def _domains_of(self, holders: Iterable[TargetId]) -> set[DomainKey]:
        targets = self._members.targets
        return {domain_key(id, targets[id].domain, self._level) for id in holders}

    @property
    def _room(self) -> _Room:
        staying = _staying(self._members.live())
        return _Room(len(staying), len(self._domains_of(staying)))

    def _is_waited_for(self, checkpoint: KeptCheckpoint) -> bool:
        """Nothing says who had a record: those that the index was put on had one first."""
        named = (self._members.targets.get(id) for id in checkpoint.index_targets)
        return any(self._may_return(target) for target in named if target is not None)

    def _may_return(self, target: Target) -> bool:
        if target.session is not None:
            return False
        assert self._after_us is not None
        away_us = self._desk.now_us - self._members.away_since_us(target)
        return self._members.is_coming(target) or away_us < self._after_us

    # ----------------------------------------------------------------------- one of them

    def _next(self) -> None:
        while self._left:
            checkpoint = self._checkpoints.get(self._left.pop())
            if checkpoint is not None and checkpoint.is_needed:
                self._is_busy = True
                self._spread_record(checkpoint)
                return

    def _spread_record(self, checkpoint: KeptCheckpoint) -> None:
        holders = self._sound(checkpoint, DocumentKind.RECORD)
        then = partial(self._spread_index, checkpoint.id)
        self._store(checkpoint, DocumentKind.RECORD, checkpoint.record_bytes, holders, then)

    def _spread_index(self, id: CheckpointId) -> None:
        """What nobody gives is the judge's business."""
        checkpoint = self._checkpoints.get(id)
        if checkpoint is None or checkpoint.dropping:
            self._ended()
            return

        def read(document: bytes | None) -> None:
            if document is None:
                self._ended()
                return
            having = self._sound(checkpoint, DocumentKind.INDEX)
            self._store(checkpoint, DocumentKind.INDEX, document, having, self._ended)

        record = decode_record(checkpoint.record_bytes)
        read_index(self._desk, record, self._checkpoints.index_copies(checkpoint), read)

    def _store(
        self,
        checkpoint: KeptCheckpoint,
        kind: DocumentKind,
        document: bytes,
        holders: list[TargetId],
        then: Callable[[], None],
    ) -> None:
        """Beside those that have it."""
        room = self._room
        wanted, domains = room.copies_of(checkpoint), room.domains_of(checkpoint)
        is_whole = len(holders) >= wanted and len(self._domains_of(holders)) >= domains
        if is_whole or checkpoint.dropping:
            then()
            return

        def stored(on: tuple[TargetId, ...]) -> None:
            made = len(set(on) - set(holders))
            self.copied += made
            if made:
                self._desk.report(
                    "info", "copied again", document=kind.value, checkpoint=str(checkpoint.id),
                    copies=made,
                )  # fmt: skip
            then()

        def no_room(full: tuple[TargetId, ...]) -> None:
            size = document_file_bytes(len(document))
            # Who has room by now takes it at the next look.
            if all(self._members.targets[id].bytes_free < size for id in full):
                found = self._clearing.clear(checkpoint.id, size, full)
                self.problems[checkpoint.id] = f"a copy of its {kind.value} waits: {found.reason}"

        store_document(
            self._desk, self._members, checkpoint.id, kind, document,
            Copies(
                wanted, tuple(holders), domains, self._level,
                full=self._mender.without_room(kind, checkpoint.id),
            ), stored, no_room=no_room,
        )  # fmt: skip

    def _ended(self) -> None:
        self._is_busy = False
        self._next()


def _staying(copies: Iterable[Target]) -> list[TargetId]:
    """Those that are not to be emptied."""
    return [target.id for target in copies if target.stays]
