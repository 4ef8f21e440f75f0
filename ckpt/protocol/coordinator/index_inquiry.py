"""Whether a checkpoint's index is lost: every target that should hold a copy must answer, and what
they give together must not make one whole index.

    ask a target for its copy, part after part --whole--> nothing is lost
        | missing, unreadable, changed      | no answer: nothing is proved
        v                                   v
    the next target ... --all were asked--> lost, when the copies do not mend each other

A reader that meets no whole index reports it (ReportDamage); what it could not reach proves
nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from ckpt.base.errors import Corrupt, NotFound
from ckpt.base.ids import TargetId
from ckpt.base.units import MiB, format_bytes
from ckpt.format.checksum import xxh3_128
from ckpt.format.index import decode_index
from ckpt.format.messages import DocumentData, DocumentKind, Failed, Message, ReadDocument
from ckpt.format.record import decode_record
from ckpt.protocol.coordinator.checkpoints import Checkpoint
from ckpt.protocol.coordinator.desk import Desk
from ckpt.protocol.coordinator.membership import Membership
from ckpt.protocol.events import Buffer

PART_BYTES = 1 * MiB
"""Of one question; a target may give less."""
HELD_BYTES_MAX = 256 * MiB
"""Of damaged copies at once; what is larger is not examined, so that its loss is never proved."""


class IndexInquiry:
    """I examine one index. `done` is told once: whether its loss is proved, and why or why not."""

    def __init__(
        self,
        desk: Desk,
        members: Membership,
        checkpoint: Checkpoint,
        done: Callable[[bool, str], None],
    ) -> None:
        record = decode_record(checkpoint.record_bytes)
        self._desk = desk
        self._members = members
        self._id = checkpoint.id
        self._digest = record.index_digest
        self._size = record.index_bytes
        self._left = list(record.index_targets)
        self._done = done
        self._damaged: list[bytearray] = []
        #: Copies that could be read in part; what could not is zeros.
        self._bad: list[str] = []
        self._unproved: list[str] = []

    def begin(self) -> None:
        """Ask the first target."""
        self._next()

    def _next(self) -> None:
        if not self._left:
            self._conclude()
            return
        target = self._left.pop(0)
        self._ask(target, bytearray(self._size if self._may_hold else 0), 0, 0)

    @property
    def _may_hold(self) -> bool:
        return (len(self._damaged) + 1) * self._size <= HELD_BYTES_MAX

    def _ask(self, id: TargetId, copy: bytearray, start: int, read_bytes: int) -> None:
        target = self._members.targets.get(id)
        if target is None or target.session is None:
            self._unproved.append(f"target {id} does not answer")
            self._next()
            return
        question = ReadDocument(
            DocumentKind.INDEX, self._id, start, min(start + PART_BYTES, self._size)
        )
        self._desk.ask(
            target.session,
            question,
            lambda message, bulk: self._answered(id, copy, start, read_bytes, message, bulk),
        )

    def _answered(
        self, id: TargetId, copy: bytearray, start: int, read_bytes: int, message: Message,
        bulk: Buffer,
    ) -> None:  # fmt: skip
        match message:
            case DocumentData(total, offset) if (total, offset) == (self._size, start) and bulk:
                if not copy:
                    held = format_bytes(HELD_BYTES_MAX)
                    self._unproved.append(f"copies of more than {held} are not compared")
                    self._next()
                    return
                end = min(start + len(bulk), self._size)
                copy[start:end] = memoryview(bulk)[: end - start]
                read_bytes += end - start
            case DocumentData():
                self._bad.append(f"target {id} holds another document")
                self._next()
                return
            case Failed(NotFound.code):
                self._bad.append(f"target {id} has no copy")
                self._next()
                return
            case Failed(Corrupt.code):
                end = min(start + PART_BYTES, self._size)
            case _:
                why = message.message if isinstance(message, Failed) else "an unexpected answer"
                self._unproved.append(f"target {id}: {why}")
                self._next()
                return
        if end < self._size:
            self._ask(id, copy, end, read_bytes)
        else:
            self._read(id, copy, read_bytes)

    def _read(self, id: TargetId, copy: bytearray, read_bytes: int) -> None:
        """All of a copy was asked for."""
        if read_bytes == self._size and xxh3_128(copy) == self._digest:
            self._done(False, f"the index of {self._id} is whole on target {id}")
            return
        self._bad.append(f"the copy on target {id} is damaged")
        if read_bytes:
            self._damaged.append(copy)
        self._next()

    def _conclude(self) -> None:
        if self._unproved:
            self._done(False, "; ".join(self._unproved))
        elif self._mends():
            self._done(False, f"the copies of the index of {self._id} mend each other")
        else:
            self._done(True, f"{self._id} has no index any more: {'; '.join(self._bad)}")

    def _mends(self) -> bool:
        try:
            return bool(self._damaged) and decode_index(*self._damaged).checkpoint == self._id
        except Corrupt:
            return False
