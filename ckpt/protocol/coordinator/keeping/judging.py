"""Whether reported damage is proved: every holder must answer, and some stripe must be past repair.

Walking back to an older step is only allowed past proved damage (DESIGN 3.8). What one reader could
not reach proves nothing; what all targets, read whole, cannot mend does. That is examined when a
reader reports it, and when a checkpoint cannot be read although all its holders are here: then they
came back without its columns. An index of which no whole copy is left is judged likewise
(index_inquiry.py).

A checkpoint whose reader met a loss in one of its homes is lost as well. Others that refer to that
home may not need the lost part: they are judged when their readers meet it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ckpt.base.ids import (
    BootId,
    CheckpointId,
    ColumnId,
    ColumnNumber,
    PayloadId,
    Rank,
    TargetId,
)
from ckpt.base.limits import PAYLOAD_BYTES_MAX
from ckpt.base.units import counted
from ckpt.erasure.code import Code
from ckpt.format.messages import Message
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.loading import DamageJudged, ReportDamage
from ckpt.format.messages.reading import ByteRange, ColumnVerified, VerifyColumn
from ckpt.protocol.coordinator import catalog
from ckpt.protocol.coordinator.catalog import RowState
from ckpt.protocol.coordinator.cluster.membership import Membership, TargetState
from ckpt.protocol.coordinator.desk import Desk, Reply
from ckpt.protocol.coordinator.facts import CheckpointDoubted
from ckpt.protocol.coordinator.keeping.checkpoints import Checkpoints, KeptCheckpoint
from ckpt.protocol.coordinator.keeping.index_inquiry import IndexInquiry
from ckpt.protocol.events import Session

Asker = tuple[Session, int, CheckpointId]
"""Where a report came from, its number, and what was read there."""
WHOLE = (ByteRange(0, PAYLOAD_BYTES_MAX),)
"""A column that is not there is damaged everywhere."""


@dataclass(slots=True)
class _Inquiry:
    """A reported damage under examination: every column of the payload is read whole."""

    payload: PayloadId
    code: Code
    askers: list[Asker]
    suspects: set[CheckpointId] = field(default_factory=set)
    """Checkpoints that cannot be read without it, of which nobody has asked yet."""
    open_questions: int = 0
    unproved: list[str] = field(default_factory=list)
    """Why some columns could not be judged: then nothing is proved."""
    bad: dict[ColumnNumber, tuple[ByteRange, ...]] = field(default_factory=dict)
    """The damaged bytes of each column that was judged; all of a missing one."""


class Judge:
    """I decide whether reported damage is proved: all holders must answer,
    and some stripe must be past repair.
    """

    def __init__(
        self, desk: Desk, members: Membership, checkpoints: Checkpoints, rebuilt_term: int
    ) -> None:
        """`rebuilt_term`: up to which the catalog was made again from the targets; 0: none was."""
        self._desk = desk
        self._members = members
        self._checkpoints = checkpoints
        self._rebuilt_term = rebuilt_term
        #: Payloads under examination: one inquiry for all who ask.
        self._open: dict[PayloadId, _Inquiry] = {}
        #: Payloads that were examined unasked, each with the checkpoint that could not be read for
        #: it, and the boots of the holders that were asked: the same boots are not asked twice.
        self._suspected: dict[tuple[CheckpointId, PayloadId], tuple[BootId, ...]] = {}
        #: Likewise of indexes that no holder gave, by their checkpoint.
        self._suspected_indexes: dict[CheckpointId, tuple[BootId, ...]] = {}
        #: Indexes under examination: what cannot be read without each, and who reported it.
        self._indexes: dict[CheckpointId, tuple[set[CheckpointId], list[Asker]]] = {}

    def report(self, session: Session, request: int, message: ReportDamage) -> None:
        """A reader failed to decode; examine the payload once for all who report it."""
        payload = message.payload
        asker = session, request, message.reading or payload.checkpoint
        answer = self._known(message)
        if answer is not None:
            self._desk.send(session, request, answer)
            return
        checkpoint = self._checkpoints.get(payload.checkpoint)
        assert checkpoint is not None, "it would be answered"
        if message.index:
            self._examine_index(checkpoint, {checkpoint.id}, asker)
            return
        if checkpoint.placement is None:
            why = f"the index of {checkpoint.id} cannot be read now"
            self._desk.send(session, request, DamageJudged(False, why))
            return
        inquiry = self._open.get(payload)
        if inquiry is not None:
            inquiry.askers.append(asker)
            return
        inquiry = self._open[payload] = _Inquiry(payload, checkpoint.code, [asker])
        self._examine(inquiry, checkpoint)

    def _known(self, message: ReportDamage) -> DamageJudged | None:
        """What needs no examination."""
        payload = message.payload
        checkpoint = self._checkpoints.get(payload.checkpoint)
        read = self._checkpoints.get(message.reading or payload.checkpoint)
        if read is None or read.state is RowState.TOMBSTONED:
            return DamageJudged(True, f"{message.reading or payload} is no longer there")
        if read.state is RowState.DAMAGED:
            return DamageJudged(True, read.reason)
        if payload.checkpoint not in (read.id, *read.homes):
            return DamageJudged(False, f"{read.id} holds nothing in {payload.checkpoint}")
        if checkpoint is None or not (message.index or checkpoint.may_have(payload.rank)):
            return DamageJudged(True, f"{payload} is no longer there")
        return None

    def _examine_index(
        self, checkpoint: KeptCheckpoint, without: set[CheckpointId], *askers: Asker
    ) -> None:
        """`without`: what cannot be read without it."""
        if checkpoint.id in self._indexes:
            self._indexes[checkpoint.id][0].update(without)
            self._indexes[checkpoint.id][1].extend(askers)
            return
        self._indexes[checkpoint.id] = without, list(askers)

        def done(proved: bool, reason: str) -> None:
            lost, heard = self._indexes.pop(checkpoint.id)
            self._conclude(lost, heard, proved, reason)

        IndexInquiry(self._desk, self._members, checkpoint, done).begin()

    def doubted(self, fact: CheckpointDoubted) -> None:
        """It cannot be read now. If all who should hold a payload are here, have them looked at:
        once, until one of them starts again.
        """
        checkpoint = self._checkpoints.get(fact.checkpoint)
        assert checkpoint is not None
        for holder in (checkpoint, *self._checkpoints.homes_of(checkpoint)):
            if holder.placement is None:
                self._suspect_index(checkpoint, holder)
            for rank in holder.placement or {}:
                self._suspect_payload(checkpoint, holder, rank)

    def _suspect_index(self, checkpoint: KeptCheckpoint, holder: KeptCheckpoint) -> None:
        """All who may have it are here, and none gives it."""
        boots = self._boots(self._members.targets)
        gives = self._checkpoints.index_copies(holder) and not holder.unread
        if gives or boots is None or self._suspected_indexes.get(holder.id) == boots:
            return
        self._suspected_indexes[holder.id] = boots
        self._examine_index(holder, {holder.id, checkpoint.id})

    def _suspect_payload(
        self, checkpoint: KeptCheckpoint, holder: KeptCheckpoint, rank: Rank
    ) -> None:
        payload = PayloadId(holder.id, rank)
        enough = len(self._checkpoints.columns_now(holder, rank)) >= holder.code.k
        assert holder.placement is not None
        boots = self._boots(self._suspects(holder, rank))
        if enough or boots is None:
            return
        if payload in self._open:
            self._open[payload].suspects.add(checkpoint.id)
        elif self._suspected.get((checkpoint.id, payload)) != boots:
            self._suspected[checkpoint.id, payload] = boots
            inquiry = self._open[payload] = _Inquiry(payload, holder.code, [], {checkpoint.id})
            self._examine(inquiry, holder)

    def _suspects(self, holder: KeptCheckpoint, rank: Rank) -> Iterable[TargetId | None]:
        """Who may have a column of the payload."""
        assert holder.placement is not None
        by_index = holder.placement[rank].columns
        return self._members.targets if self._may_be_anywhere(holder) else by_index

    def _may_be_anywhere(self, holder: KeptCheckpoint) -> bool:
        """Once a column has moved, everybody may have one. Where a catalog was made again from the
        targets, that it has moved is known only when its target lists.
        """
        return bool(holder.moved) or holder.id.generation.term <= self._rebuilt_term

    def _boots(self, columns: Iterable[TargetId | None]) -> tuple[BootId, ...] | None:
        """None while a holder is not here, or has not listed what it holds."""
        known = [self._members.targets.get(id) for id in columns if id is not None]
        named = [t for t in known if t is None or t.state is not TargetState.REMOVED]
        here = [t.boot for t in named if t is not None and t.state is TargetState.LIVE]
        return tuple(here) if len(here) == len(named) else None

    def _examine(self, inquiry: _Inquiry, checkpoint: KeptCheckpoint) -> None:
        assert checkpoint.placement is not None
        inquiry.open_questions = 1
        if self._may_be_anywhere(checkpoint) and self._boots(self._members.targets) is None:
            inquiry.unproved.append("a target that may have a column of it is away")
        if any(column.payload == inquiry.payload for column in checkpoint.surplus):
            inquiry.unproved.append("a copy of a column is about to be named in its place")
        for j, id in enumerate(checkpoint.placement[inquiry.payload.rank].columns):
            column = ColumnId(inquiry.payload, ColumnNumber(j))
            target = self._members.targets.get(id) if id is not None else None
            if id is None or (target is not None and target.state is TargetState.REMOVED):
                inquiry.bad[column.column] = WHOLE
            elif target is None or target.session is None:
                inquiry.unproved.append(f"target {id} does not answer")
            else:
                inquiry.open_questions += 1
                self._desk.ask(
                    target.session, VerifyColumn(column), self._verifier(inquiry, column)
                )
        self._one_answered(inquiry)

    def _verifier(self, inquiry: _Inquiry, column: ColumnId) -> Reply:
        return lambda message, _bulk: self._verified(inquiry, column, message)

    def _verified(self, inquiry: _Inquiry, column: ColumnId, message: Message) -> None:
        match message:
            case ColumnVerified(missing=True):
                inquiry.bad[column.column] = WHOLE
            case ColumnVerified():
                inquiry.bad[column.column] = message.damaged
            case Failed():
                inquiry.unproved.append(f"{column}: {message.message}")
            case _:
                inquiry.unproved.append(f"{column}: unexpected answer")
        self._one_answered(inquiry)

    def _one_answered(self, inquiry: _Inquiry) -> None:
        inquiry.open_questions -= 1
        if inquiry.open_questions:
            return
        del self._open[inquiry.payload]
        self._forget_suspicions()
        worst = most_bad(inquiry.bad.values())
        proved = worst > inquiry.code.m and not inquiry.unproved
        if proved:
            reason = (
                f"{inquiry.payload} has {worst} damaged columns at one place, {inquiry.code} mends "
                f"{inquiry.code.m}"
            )
        else:
            reason = (
                "; ".join(inquiry.unproved)
                or f"at most {counted(worst, 'column', 'is', 'are')} damaged at one place"
            )
        without = {inquiry.payload.checkpoint} | inquiry.suspects
        self._conclude(without, inquiry.askers, proved, reason)

    def _conclude(
        self, without: set[CheckpointId], askers: list[Asker], proved: bool, reason: str
    ) -> None:
        """Tell who asked; a loss is durable before. `without`: what cannot be read without it."""
        if not proved:
            self._tell(askers, DamageJudged(False, reason))
            return
        # What is missing of a deleted one was dropped; it never becomes a damaged one.
        known = [
            self._checkpoints.get(id) for id in sorted(without | {read for *_, read in askers})
        ]
        lost = [one for one in known if one is not None and one.state is RowState.COMMITTED]
        for checkpoint in lost:
            self._desk.report(
                "error", "checkpoint is lost", checkpoint=str(checkpoint.id), reason=reason
            )

        def durable() -> None:
            for checkpoint in lost:
                # Nobody walks back past it before a restart would do the same.
                if checkpoint.state is RowState.COMMITTED:
                    checkpoint.state, checkpoint.reason = RowState.DAMAGED, reason
            self._tell(askers, DamageJudged(True, reason))

        if lost:
            entries = tuple(catalog.CheckpointDamaged(one.id, reason) for one in lost)
            self._desk.persist(entries, durable)
        else:
            self._tell(askers, DamageJudged(True, reason))

    def _forget_suspicions(self) -> None:
        """Of checkpoints that are gone."""
        for key in [key for key in self._suspected if self._checkpoints.get(key[0]) is None]:
            del self._suspected[key]
        for id in [id for id in self._suspected_indexes if self._checkpoints.get(id) is None]:
            del self._suspected_indexes[id]

    def _tell(self, askers: list[Asker], judged: DamageJudged) -> None:
        """Of what was deleted meanwhile, that it is not there any more."""
        for session, request, id in askers:
            read = self._checkpoints.get(id)
            gone = read is None or read.state is RowState.TOMBSTONED
            answer = DamageJudged(True, f"{id} is no longer there") if gone else judged
            self._desk.send(session, request, answer)


def most_bad(columns: Iterable[tuple[ByteRange, ...]]) -> int:
    """The largest number of columns that are damaged at one and the same fragment
    byte (a sweep).
    """
    edges = sorted(
        edge
        for ranges in columns
        for r in ranges
        if r.start < r.end
        for edge in ((r.start, 1), (r.end, -1))
    )
    worst = depth = 0
    for _, change in edges:
        depth += change
        worst = max(worst, depth)
    return worst
