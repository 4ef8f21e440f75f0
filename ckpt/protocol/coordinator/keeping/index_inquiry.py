"""Whether a checkpoint's index is lost: every target that should hold a copy must answer, what they
give together must not make one whole index, and no target may be away, where a copy may have been
made since.

    ask a target for its copy, part after part --whole--> nothing is lost
        | missing, unreadable, changed      | no answer: nothing is proved
        v                                   v
    the next target ... --all were asked--> lost, when the copies do not mend each other

A reader that meets no whole index reports it (ReportDamage); what it could not reach proves
nothing. An index may have GiBs, so no copy is held: the first look at it keeps a digest, the second
(`ckpt.format.index.mending`) one directory and a part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ckpt.base.errors import Corrupt, NotFound
from ckpt.base.ids import TargetId
from ckpt.format.checksum import Xxh3
from ckpt.format.documents.record import decode_record
from ckpt.format.index.mending import PART_BYTES, Mending, Wanted, mends
from ckpt.format.messages import Message
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.reading import DocumentData, DocumentKind, ReadDocument
from ckpt.protocol.coordinator.cluster.membership import Membership, TargetState
from ckpt.protocol.coordinator.desk import Desk
from ckpt.protocol.coordinator.keeping.checkpoints import KeptCheckpoint
from ckpt.protocol.events import Buffer


@dataclass(frozen=True, slots=True)
class _Unreadable:
    """Why a target that answered gives no bytes."""

    reason: str
    gone: bool
    """It has no copy at all."""


_Found = Buffer | _Unreadable


class IndexInquiry:
    """I examine one index. I call `done` once: is its loss proved, and why, or why not?"""

    def __init__(
        self,
        desk: Desk,
        members: Membership,
        checkpoint: KeptCheckpoint,
        done: Callable[[bool, str], None],
    ) -> None:
        record = decode_record(checkpoint.record_bytes)
        self._desk = desk
        self._members = members
        self._id = checkpoint.id
        self._digest = record.index_digest
        self._size = record.index_bytes
        others = members.index_holders(checkpoint.index, record.index_targets)
        #: Targets whose copies were not looked at yet: those that it was put on, and who else has
        #: one by now.
        self._left = list(dict.fromkeys((*record.index_targets, *(one.id for one in others))))
        self._done = done

        #: Who has a copy that is not whole, and may mend another's.
        self._damaged: list[TargetId] = []
        #: What is wrong with each copy, damaged or gone: the reason when the index is lost.
        self._bad: list[str] = []
        #: Why some copies could not be judged: then no loss is proved.
        self._unproved: list[str] = []

    def begin(self) -> None:
        """Ask the first target."""
        self._next()

    # ----------------------------------------------------------------------- is a copy whole?

    def _next(self) -> None:
        if self._left:
            self._digest_on(self._left.pop(0), Xxh3(), 0)
        else:
            self._conclude()

    def _digest_on(self, id: TargetId, state: Xxh3, start: int) -> None:
        """The parts of one copy, from `start` on."""
        if start == self._size:
            self._judge(id, is_whole=state.digest() == self._digest)
            return

        def part(found: _Found) -> None:
            if not isinstance(found, _Unreadable):
                state.update(found)
                self._digest_on(id, state, start + len(found))
            elif found.gone:
                self._bad.append(found.reason)
                self._next()
            else:
                self._judge(id, is_whole=False)

        self._ask(id, start, self._size, part, self._next)

    def _judge(self, id: TargetId, *, is_whole: bool) -> None:
        if is_whole:
            self._done(False, f"the index of {self._id} is whole on target {id}")
            return
        self._bad.append(f"the copy on target {id} is damaged")
        self._damaged.append(id)
        self._next()

    def _conclude(self) -> None:
        if self._unproved:
            self._tell_unproved()
        elif self._damaged:
            self._mend(mends(len(self._damaged), self._id, self._size), None)
        else:
            self._tell_lost()

    # ----------------------------------------------------------------------- do they mend?

    def _mend(self, mending: Mending, data: Buffer | None) -> None:
        """Give what was wanted, and fetch what is wanted next."""
        try:
            wanted = next(mending) if data is None else mending.send(data)
        except StopIteration as end:
            if end.value:
                self._done(False, f"the copies of the index of {self._id} mend each other")
            else:
                self._tell_lost()
            return
        self._fetch(mending, wanted, bytearray())

    def _fetch(self, mending: Mending, wanted: Wanted, got: bytearray) -> None:
        start = wanted.start + len(got)
        if start == wanted.end:
            self._mend(mending, got)
            return

        def part(found: _Found) -> None:
            if isinstance(found, _Unreadable):
                self._mend(mending, b"")
            else:
                got.extend(found)
                self._fetch(mending, wanted, got)

        self._ask(self._damaged[wanted.copy], start, wanted.end, part, self._tell_unproved)

    # ----------------------------------------------------------------------- asking, telling

    def _ask(
        self, id: TargetId, start: int, end: int, then: Callable[[_Found], None],
        unproved: Callable[[], None],
    ) -> None:  # fmt: skip
        """For at most PART_BYTES from `start`; `unproved` when nobody can say what is there."""
        target = self._members.targets.get(id)
        if target is not None and target.state is TargetState.REMOVED:
            then(_Unreadable(f"target {id} was removed", gone=True))
            return
        if target is None or target.session is None:
            self._unproved.append(f"target {id} does not answer")
            unproved()
            return

        def answered(message: Message, bulk: Buffer) -> None:
            match message:
                case DocumentData(total, offset) if (total, offset) == (self._size, start) and bulk:
                    then(memoryview(bulk)[: end - start])
                case DocumentData():
                    then(_Unreadable(f"target {id} holds another document", gone=True))
                case Failed(NotFound.code):
                    then(_Unreadable(f"target {id} has no copy", gone=True))
                case Failed(Corrupt.code):
                    then(_Unreadable(f"the copy on target {id} is damaged", gone=False))
                case _:
                    why = message.message if isinstance(message, Failed) else "an unexpected answer"
                    self._unproved.append(f"target {id}: {why}")
                    unproved()

        upto = min(start + PART_BYTES, end)
        self._desk.ask(
            target.session, ReadDocument(DocumentKind.INDEX, self._id, start, upto), answered
        )

    def _tell_unproved(self) -> None:
        self._done(False, "; ".join(self._unproved))

    def _tell_lost(self) -> None:
        """A copy may have been made since on any target: nobody may be away."""
        away = sorted(one.id for one in self._members.all() if one.state is not TargetState.LIVE)
        if away:
            self._unproved.append(f"{', '.join(away)}, which may have a copy, are away")
            self._tell_unproved()
            return
        self._done(True, f"{self._id} has no index any more: {'; '.join(self._bad)}")
