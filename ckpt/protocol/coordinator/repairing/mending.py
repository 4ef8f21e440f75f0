"""A document of which a target has found a part damaged is written there once more, whole.

    record, labels: the catalog has them     index: read from another target, its digest compared
                        v
          aside, synced, renamed over the damaged file; the target then knows of no damage
                        `--no room there--> a copy elsewhere, or room on one of them
                                            (respreading.py); tried again once there is room

A tombstone says enough by being there. What is being deleted, or stands on a target that is to be
emptied, is left as it is. One document is on its way at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from ckpt.base.errors import NoSpace
from ckpt.base.ids import CheckpointId, TargetId
from ckpt.base.units import US_PER_S
from ckpt.format.checksum import xxh3_128
from ckpt.format.documents.file import document_file_bytes
from ckpt.format.documents.labels import encode_labels
from ckpt.format.documents.record import decode_record
from ckpt.format.messages import Message
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.reading import DocumentKind
from ckpt.format.messages.targets import DocumentStored, PutDocument
from ckpt.protocol.coordinator.cluster.membership import Membership, Target
from ckpt.protocol.coordinator.desk import Desk
from ckpt.protocol.coordinator.keeping.checkpoints import Checkpoints, KeptCheckpoint
from ckpt.protocol.coordinator.keeping.documents import send_document
from ckpt.protocol.coordinator.repairing.whole_index import read_index
from ckpt.protocol.events import Buffer

PATIENCE_US: Final = 30 * US_PER_S
REST_US: Final = 60 * US_PER_S
"""Pause before the same document on the same target is tried again."""
NO_ROOM_REST_US: Final = 10 * US_PER_S
"""The same where it had no room."""
_KINDS: Final = {kind.value: kind for kind in DocumentKind if kind is not DocumentKind.TOMBSTONE}


@dataclass(frozen=True, slots=True)
class Damaged:
    """A document on a target."""

    target: TargetId
    checkpoint: CheckpointId
    kind: DocumentKind


class Mender:
    """I look at what targets have found, on every tick."""

    def __init__(
        self, desk: Desk, members: Membership, checkpoints: Checkpoints, *, mends: bool
    ) -> None:
        self._desk = desk
        self._members = members
        self._checkpoints = checkpoints
        self._mends = mends
        self._is_busy = False
        #: When each that was tried may be tried again.
        self._rests_us: dict[Damaged, int] = {}
        #: What its target had no room for, and the bytes that it takes.
        self._without_room: dict[Damaged, int] = {}
        self.mended = 0
        """Documents, since this coordinator began."""

    def tick(self) -> None:
        if not self._mends or self._is_busy:
            return
        now_us = self._desk.now_us
        self._rests_us = {one: us for one, us in self._rests_us.items() if us > now_us}
        found = dict.fromkeys(self._found())
        self._without_room = {one: size for one, size in self._without_room.items() if one in found}
        for damaged in found:
            checkpoint = self._checkpoints.get(damaged.checkpoint)
            if checkpoint is None or not checkpoint.is_needed or not self._may_try(damaged):
                continue
            self._rests_us[damaged] = now_us + REST_US
            self._is_busy = True
            self._mend(damaged, checkpoint)
            return

    def without_room(self, kind: DocumentKind, checkpoint: CheckpointId) -> tuple[TargetId, ...]:
        """Whose damaged copy waits until its target has room for a whole one beside it."""
        waits = (one for one in self._without_room if one.kind is kind)
        return tuple(sorted(one.target for one in waits if one.checkpoint == checkpoint))

    def _may_try(self, damaged: Damaged) -> bool:
        free = self._members.targets[damaged.target].bytes_free
        return damaged not in self._rests_us and free >= self._without_room.get(damaged, free)

    def _found(self) -> Iterator[Damaged]:
        for target in self._members.live():
            if not target.stays or target.scrub is None:
                continue
            for rot in target.scrub.rot:
                kind = _KINDS.get(rot.damage.kind)
                if rot.rank is None and kind is not None:
                    yield Damaged(target.id, rot.checkpoint, kind)

    def _mend(self, damaged: Damaged, checkpoint: KeptCheckpoint) -> None:
        def put(document: bytes | None) -> None:
            target = self._members.targets[damaged.target]
            gone = self._checkpoints.get(damaged.checkpoint) is not checkpoint
            if document is None or gone or checkpoint.dropping or target.session is None:
                self._is_busy = False
                return
            self._put(target, damaged, document)

        self._read(damaged, checkpoint, put)

    def _read(
        self,
        damaged: Damaged,
        checkpoint: KeptCheckpoint,
        then: Callable[[bytes | None], None],
    ) -> None:
        """As it should be; None where that is not known now."""
        labels = checkpoint.labels
        match damaged.kind:
            case DocumentKind.RECORD:
                then(checkpoint.record_bytes)
            case DocumentKind.LABELS if labels is not None and not checkpoint.unsettled:
                then(encode_labels(labels))
            case DocumentKind.INDEX:
                copies = self._checkpoints.index_copies(checkpoint)
                others = [one for one in copies if one.id != damaged.target]
                own = [one for one in copies if one.id == damaged.target]
                read_index(
                    self._desk, decode_record(checkpoint.record_bytes), [*others, *own], then
                )
            case _:
                then(None)

    def _put(self, target: Target, damaged: Damaged, document: bytes) -> None:
        assert target.session is not None

        def answered(message: Message, _bulk: Buffer) -> None:
            self._is_busy = False
            match message:
                case DocumentStored():
                    self.mended += 1
                    self._without_room.pop(damaged, None)
                    self._desk.report(
                        "info", "mended", document=damaged.kind.value,
                        checkpoint=str(damaged.checkpoint), target=damaged.target,
                    )  # fmt: skip
                case Failed(NoSpace.code):
                    self._without_room[damaged] = document_file_bytes(len(document))
                    self._rests_us[damaged] = self._desk.now_us + NO_ROOM_REST_US

        message = PutDocument(
            self._members.term, damaged.kind, damaged.checkpoint, len(document), 0,
            xxh3_128(document), again=True,
        )  # fmt: skip
        send_document(
            self._desk, target.session, message, document, answered, patience_us=PATIENCE_US
        )
