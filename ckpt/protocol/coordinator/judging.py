"""Whether reported damage is proved: every holder must answer, and some stripe must be past repair.

Walking back to an older step is only allowed past proved damage (DESIGN 3.8). What one reader could
not reach proves nothing; what all targets, read whole, cannot mend does. That is examined when a
reader reports it, and when a checkpoint cannot be read although all its holders are here: then they
came back without its columns. An index of which no whole copy is left is judged likewise
(index_inquiry.py).
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
    TargetId,
)
from ckpt.base.limits import PAYLOAD_BYTES_MAX
from ckpt.erasure.code import Code
from ckpt.format.messages import (
    ByteRange,
    ColumnVerified,
    DamageJudged,
    Failed,
    Message,
    ReportDamage,
    VerifyColumn,
)
from ckpt.protocol.coordinator import catalog
from ckpt.protocol.coordinator.catalog import RowState
from ckpt.protocol.coordinator.checkpoints import Checkpoint, Checkpoints
from ckpt.protocol.coordinator.desk import Desk, Reply
from ckpt.protocol.coordinator.index_inquiry import IndexInquiry
from ckpt.protocol.coordinator.membership import Membership, TargetState
from ckpt.protocol.events import Session

Asker = tuple[Session, int]
"""Where a report came from, and its number."""
WHOLE = (ByteRange(0, PAYLOAD_BYTES_MAX),)
"""A column that is not there is damaged everywhere."""


@dataclass(slots=True)
class _Inquiry:
    """A reported damage under examination: every column of the payload is read whole."""

    payload: PayloadId
    code: Code
    askers: list[Asker]
    open_questions: int = 0
    unproved: list[str] = field(default_factory=list)
    #: Why some columns could not be judged: then nothing is proved.
    bad: dict[ColumnNumber, tuple[ByteRange, ...]] = field(default_factory=dict)


class Judge:
    """I decide whether reported damage is proved: all holders must answer,
    and some stripe must be past repair.
    """

    def __init__(self, desk: Desk, members: Membership, checkpoints: Checkpoints) -> None:
        self._desk = desk
        self._members = members
        self._checkpoints = checkpoints
        self._open: dict[PayloadId, _Inquiry] = {}
        self._suspected: dict[PayloadId, tuple[BootId, ...]] = {}
        #: Payloads that were examined unasked, and the boots of the holders that were asked.
        self._indexes: dict[CheckpointId, list[Asker]] = {}
        #: Indexes under examination, and who reported them.

    def report(self, session: Session, request: int, message: ReportDamage) -> None:
        """A reader failed to decode; examine the payload once for all who report it."""
        payload = message.payload
        checkpoint = self._checkpoints.get(payload.checkpoint)
        gone = checkpoint is None or checkpoint.state is RowState.TOMBSTONED
        named = message.index or (checkpoint and payload.rank in checkpoint.placement)
        if checkpoint is None or gone or not named:
            self._desk.send(session, request, DamageJudged(True, f"{payload} is no longer there"))
            return
        if checkpoint.state is RowState.DAMAGED:
            self._desk.send(session, request, DamageJudged(True, checkpoint.reason))
            return
        if message.index:
            self._report_index((session, request), checkpoint)
            return
        inquiry = self._open.get(payload)
        if inquiry is not None:
            inquiry.askers.append((session, request))
            return
        inquiry = self._open[payload] = _Inquiry(payload, checkpoint.code, [(session, request)])
        self._examine(inquiry, checkpoint)

    def _report_index(self, asker: Asker, checkpoint: Checkpoint) -> None:
        if checkpoint.id in self._indexes:
            self._indexes[checkpoint.id].append(asker)
            return
        self._indexes[checkpoint.id] = [asker]

        def done(proved: bool, reason: str) -> None:
            self._conclude(checkpoint.id, self._indexes.pop(checkpoint.id), proved, reason)

        IndexInquiry(self._desk, self._members, checkpoint, done).begin()

    def suspect(self, checkpoint: Checkpoint) -> None:
        """It cannot be read now. If all who should hold a payload are here, have them looked at:
        once, until one of them starts again."""
        for rank, columns in checkpoint.placement.items():
            payload = PayloadId(checkpoint.id, rank)
            enough = len(self._checkpoints.columns_now(checkpoint, rank)) >= checkpoint.code.k
            boots = self._boots(columns)
            if enough or boots is None or payload in self._open:
                continue
            if self._suspected.get(payload) != boots:
                self._suspected[payload] = boots
                inquiry = self._open[payload] = _Inquiry(payload, checkpoint.code, [])
                self._examine(inquiry, checkpoint)

    def _boots(self, columns: Iterable[TargetId | None]) -> tuple[BootId, ...] | None:
        """None while a holder is not here, or has not listed what it holds."""
        named = [self._members.targets.get(id) for id in columns if id is not None]
        here = [t.boot for t in named if t is not None and t.state is TargetState.LIVE]
        return tuple(here) if len(here) == len(named) else None

    def _examine(self, inquiry: _Inquiry, checkpoint: Checkpoint) -> None:
        inquiry.open_questions = 1
        for j, id in enumerate(checkpoint.placement[inquiry.payload.rank]):
            column = ColumnId(inquiry.payload, ColumnNumber(j))
            target = self._members.targets.get(id) if id is not None else None
            if id is None:
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
                "; ".join(inquiry.unproved) or f"at most {worst} columns are damaged at one place"
            )
        self._conclude(inquiry.payload.checkpoint, inquiry.askers, proved, reason)

    def _conclude(self, id: CheckpointId, askers: list[Asker], proved: bool, reason: str) -> None:
        """Tell who asked; a loss is durable before."""
        checkpoint = self._checkpoints.get(id)
        if checkpoint is None or checkpoint.state is RowState.TOMBSTONED:
            # What is missing was dropped; a deleted checkpoint never becomes a damaged one.
            self._tell(askers, DamageJudged(True, f"{id} is no longer there"))
            return
        if not proved:
            self._tell(askers, DamageJudged(False, reason))
            return
        self._desk.report(
            "error", "checkpoint is lost", checkpoint=str(checkpoint.id), reason=reason
        )

        def durable() -> None:
            # Nobody walks back past it before a restart would do the same.
            if checkpoint.state is RowState.COMMITTED:
                checkpoint.state, checkpoint.reason = RowState.DAMAGED, reason
            self._tell(askers, DamageJudged(True, reason))

        self._desk.persist((catalog.CheckpointDamaged(checkpoint.id, reason),), durable)

    def _forget_suspicions(self) -> None:
        """Of checkpoints that are gone."""
        for payload in [p for p in self._suspected if self._checkpoints.get(p.checkpoint) is None]:
            del self._suspected[payload]

    def _tell(self, askers: list[Asker], judged: DamageJudged) -> None:
        for session, request in askers:
            self._desk.send(session, request, judged)


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
