"""Names and pins of committed checkpoints: changed one after the other in a run.

    asked --"sent" in the catalog--> its labels on m+1 targets --> those of who loses a name to it,
          likewise --all of them, in one ticket, in the catalog--> answered

Targets have it before the catalog, so that a catalog which is rebuilt from them knows all that was
answered. From "sent" on targets may have what was no answer: after a failure or a restart they are
given what the catalog says, under a higher version, and until then what is said already is not
taken for said.

Invariants: a name is of one checkpoint of its run; while labels of a checkpoint are on their way or
unsettled, neither retention nor eviction takes it, and a deletion waits for its turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from ckpt.base.errors import CkptError, NotFound, Unavailable
from ckpt.base.ids import CheckpointId, Generation, RunName, TargetId
from ckpt.format.documents.labels import (
    Labels,
    check_given,
    check_name,
    check_names,
    encode_labels,
)
from ckpt.format.documents.record import decode_record
from ckpt.format.messages.asking import LabelStep, StepLabeled
from ckpt.format.messages.reading import DocumentKind
from ckpt.protocol.coordinator.catalog import CheckpointLabeled, LabelsSent, RowState
from ckpt.protocol.coordinator.cluster.membership import Membership
from ckpt.protocol.coordinator.desk import Desk, Then
from ckpt.protocol.coordinator.facts import RetentionDue
from ckpt.protocol.coordinator.keeping.checkpoints import Checkpoints, KeptCheckpoint
from ckpt.protocol.coordinator.keeping.documents import copies_of_record, store_document
from ckpt.protocol.coordinator.keeping.instead import instead
from ckpt.protocol.events import Session


@dataclass(frozen=True, slots=True)
class _Change:
    """One that is under way."""

    run: RunName
    wanted: list[tuple[KeptCheckpoint, Labels]]
    """What shall be said of each."""
    answer: Callable[[CkptError | None], None]


@dataclass(frozen=True, slots=True)
class _Turn:
    """Somebody who waits for the end of a change."""

    session: Session
    request: int
    begin: Then


class Labeling:
    """I change the labels of checkpoints."""

    def __init__(
        self, desk: Desk, members: Membership, checkpoints: Checkpoints, cluster: str
    ) -> None:
        self._desk = desk
        self._members = members
        self._checkpoints = checkpoints
        self._cluster = cluster
        #: Of the versions that this process has given in its term.
        self._counter = 0
        #: Of each run whose labels are being changed, who waits for the end of that.
        self._waiting: dict[RunName, deque[_Turn]] = {}
        #: Runs that may have unsettled checkpoints without a change that is under way.
        self._unsettled: set[RunName] = set()

    def recover(self, checkpoint: KeptCheckpoint) -> None:
        """Note that an earlier coordinator was changing its labels."""
        checkpoint.unsettled = True
        self._unsettled.add(checkpoint.id.run)

    def tick(self) -> None:
        """Settle changes that were cut short."""
        for run in sorted(self._unsettled - self._waiting.keys()):
            self._unsettled.remove(run)
            wanted = self._others(run, (), set())
            if wanted:
                self._begin(_Change(run, wanted, lambda _failure: None))

    def label_step(self, session: Session, request: int, message: LabelStep) -> None:
        """Answered when it is durable. Raises Refused for a name that cannot be, or NotFound."""
        for name in message.add:
            check_given(name)
        for name in message.remove:
            check_name(name)
        change = partial(self._label, session, request, message)
        self.in_turn(session, request, message.run, change)

    def in_turn(self, session: Session, request: int, run: RunName, begin: Then) -> None:
        """At once, or when the changes that were asked for before it have ended. What it raises
        then is the answer.
        """
        if run in self._waiting:
            self._waiting[run].append(_Turn(session, request, begin))
        else:
            begin()

    def call(
        self,
        run: RunName,
        names: Sequence[tuple[KeptCheckpoint, tuple[str, ...]]],
        answer: Callable[[CkptError | None], None],
    ) -> None:
        """Let these be called so, in this order on their targets, all of them or none. Only when it
        is the run's turn (`in_turn`). Until the answer nothing takes one of them away.
        """
        wanted = [(one, self._labels(one, called, one.is_pinned)) for one, called in names]
        wanted += self._others(run, {one.id for one, _ in names}, set())
        self._begin(_Change(run, wanted, answer))

    def _label(self, session: Session, request: int, message: LabelStep) -> None:
        checkpoint = self._find(message)
        wanted = self._wanted(checkpoint, message)

        def answer(failure: CkptError | None) -> None:
            if failure is None:
                self._desk.send(session, request, _told(checkpoint))
            else:
                self._desk.fail(session, request, failure)

        if wanted:
            self._begin(_Change(message.run, wanted, answer))
        else:
            answer(None)

    def _find(self, message: LabelStep) -> KeptCheckpoint:
        held = self._checkpoints.of_step(
            message.run, message.step, RowState.COMMITTED, RowState.DAMAGED
        )
        for checkpoint in reversed(held):
            if message.generation in (None, checkpoint.id.generation):
                return checkpoint
        which = "" if message.generation is None else f"#{message.generation}"
        text = f"{message.run}@{message.step}{which} has no committed checkpoint"
        raise NotFound(text, hint=instead(self._checkpoints, message.run))

    # ----------------------------------------------------------------------- what is wanted

    def _wanted(
        self, checkpoint: KeptCheckpoint, message: LabelStep
    ) -> list[tuple[KeptCheckpoint, Labels]]:
        """The labels that differ from what stands, the one that was asked for first."""
        added = set(message.add)
        before, was_pinned = set(checkpoint.names), checkpoint.is_pinned
        names = check_names(tuple((before - set(message.remove)) | added))
        pinned = was_pinned if message.pinned is None else message.pinned
        others = self._others(message.run, {checkpoint.id}, added)
        if not checkpoint.unsettled and (before, was_pinned) == (set(names), pinned):
            return others
        return [(checkpoint, self._labels(checkpoint, names, pinned)), *others]

    def _others(
        self, run: RunName, asked: Collection[CheckpointId], added: set[str]
    ) -> list[tuple[KeptCheckpoint, Labels]]:
        """Who loses one of these names; and what is unsettled, as the catalog has it."""
        return [
            (one, self._labels(one, tuple(sorted(set(one.names) - added)), one.is_pinned))
            for one in self._checkpoints.of_run(run, RowState.COMMITTED, RowState.DAMAGED)
            if one.id not in asked and (one.unsettled or added.intersection(one.names))
        ]

    def _labels(self, checkpoint: KeptCheckpoint, names: tuple[str, ...], pinned: bool) -> Labels:
        self._counter += 1
        version = Generation(self._members.term, self._counter)
        return Labels(self._cluster, checkpoint.id, version, names, pinned)

    # ----------------------------------------------------------------------- on its way

    def _begin(self, change: _Change) -> None:
        self._waiting.setdefault(change.run, deque())
        fresh = [one for one, _ in change.wanted if not one.unsettled]
        for one in fresh:
            one.unsettled = True
        if fresh:
            entries = tuple(LabelsSent(one.id) for one in fresh)
            self._desk.persist(entries, lambda: self._spread(change, 0))
        else:
            self._spread(change, 0)

    def _spread(self, change: _Change, number: int) -> None:
        """The rest of its documents, one after the other; then the catalog."""
        if number == len(change.wanted):
            self._persist(change)
            return
        checkpoint, labels = change.wanted[number]

        def stored(on: tuple[TargetId, ...]) -> None:
            if on:
                self._spread(change, number + 1)
                return
            text = f"too few targets are live for the labels of {checkpoint.id}"
            hint = "start them (ckpt status), then run the command again"
            self._end(change, Unavailable(text, hint=hint))

        store_document(
            self._desk,
            self._members,
            checkpoint.id,
            DocumentKind.LABELS,
            encode_labels(labels),
            copies_of_record(decode_record(checkpoint.record_bytes)),
            stored,
        )

    def _persist(self, change: _Change) -> None:
        def durable() -> None:
            for one, labels in change.wanted:
                one.labels, one.unsettled = labels, False
            self._end(change, None)

        entries = tuple(
            CheckpointLabeled(one.id, encode_labels(labels) if labels.keeps else b"")
            for one, labels in change.wanted
        )
        self._desk.persist(entries, durable)

    def _end(self, change: _Change, failure: CkptError | None) -> None:
        if failure is not None:
            self._unsettled.add(change.run)
        change.answer(failure)
        # What is not kept any more may go: judged once, however many they are.
        self._desk.tell(RetentionDue(change.run))
        waiting = self._waiting.pop(change.run)
        while waiting and change.run not in self._waiting:
            turn = waiting.popleft()
            try:
                turn.begin()
            except CkptError as error:
                self._desk.fail(turn.session, turn.request, error)
        if waiting:
            self._waiting[change.run] = waiting


def _told(checkpoint: KeptCheckpoint) -> StepLabeled:
    return StepLabeled(checkpoint.id, checkpoint.names, checkpoint.is_pinned)
