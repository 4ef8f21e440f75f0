"""Names and pins of committed checkpoints: changed one after the other in a run.

    asked --its labels on m+1 targets--> those that lose a name to it, likewise--> catalog, in one
          ticket--> answered

Targets have it before the catalog, so that a catalog which is rebuilt from them knows all that was
answered. What lies on targets and did not come into the catalog was answered to nobody; the next
change of that checkpoint replaces it.

Invariants: a name is of one checkpoint of its run; labels go to no checkpoint that is deleted, and
its columns stay until those that are on their way have arrived (nobody would look for them).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from msgspec.structs import replace

from ckpt.base.errors import CkptError, NotFound, Unavailable
from ckpt.base.ids import Generation, RunName, TargetId
from ckpt.format.documents.labels import Labels, check_names, encode_labels
from ckpt.format.messages.asking import LabelStep, StepLabeled
from ckpt.format.messages.reading import DocumentKind
from ckpt.protocol.coordinator.catalog import CheckpointLabeled, RowState
from ckpt.protocol.coordinator.cluster.membership import Membership
from ckpt.protocol.coordinator.desk import Desk
from ckpt.protocol.coordinator.facts import CheckpointReleased
from ckpt.protocol.coordinator.keeping.checkpoints import Checkpoint, Checkpoints
from ckpt.protocol.coordinator.keeping.documents import Copies, store_document
from ckpt.protocol.events import Session


@dataclass(slots=True)
class _Change:
    """One that is under way."""

    session: Session
    request: int
    message: LabelStep
    checkpoint: Checkpoint
    wanted: list[tuple[Checkpoint, Labels]]
    """What shall be said of each, the one that was asked for first."""


class Labeling:
    """I change what is said of checkpoints."""

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
        self._waiting: dict[RunName, deque[tuple[Session, int, LabelStep]]] = {}

    def label_step(self, session: Session, request: int, message: LabelStep) -> None:
        """Answered when it is durable. Raises Refused for a name that cannot be, or NotFound."""
        check_names((*message.add, *message.remove))
        waiting = self._waiting.get(message.run)
        if waiting is not None:
            waiting.append((session, request, message))
            return
        self._begin(session, request, message)

    def _begin(self, session: Session, request: int, message: LabelStep) -> None:
        checkpoint = self._find(message)
        wanted = self._wanted(checkpoint, message)
        if not wanted:
            self._desk.send(session, request, _told(checkpoint))
            return
        self._waiting.setdefault(message.run, deque())
        for one, _ in wanted:
            one.relabeling = True
        change = _Change(session, request, message, checkpoint, wanted)
        self._spread(change, 0)

    def _find(self, message: LabelStep) -> Checkpoint:
        held = self._checkpoints.of_step(
            message.run, message.step, RowState.COMMITTED, RowState.DAMAGED
        )
        for checkpoint in reversed(held):
            if message.generation in (None, checkpoint.id.generation):
                return checkpoint
        which = "" if message.generation is None else f"#{message.generation}"
        raise NotFound(
            f"{message.run}@{message.step}{which} has no committed checkpoint", hint="see ckpt ls"
        )

    def _wanted(
        self, checkpoint: Checkpoint, message: LabelStep
    ) -> list[tuple[Checkpoint, Labels]]:
        """The labels that differ from what stands."""
        added = set(message.add)
        before = _names(checkpoint)
        was_pinned = checkpoint.labels is not None and checkpoint.labels.pinned
        names = check_names(tuple((before - set(message.remove)) | added))
        pinned = was_pinned if message.pinned is None else message.pinned
        wanted = []
        if (before, was_pinned) != (set(names), pinned):
            labels = Labels(self._cluster, checkpoint.id, self._next_version(), names, pinned)
            wanted.append((checkpoint, labels))
        for other in self._checkpoints.of_run(message.run, RowState.COMMITTED, RowState.DAMAGED):
            if other is not checkpoint and other.labels is not None and _names(other) & added:
                kept = tuple(name for name in other.labels.names if name not in added)
                version = self._next_version()
                wanted.append((other, replace(other.labels, version=version, names=kept)))
        return wanted

    def _next_version(self) -> Generation:
        self._counter += 1
        return Generation(self._members.term, self._counter)

    # ----------------------------------------------------------------------- on its way

    def _spread(self, change: _Change, number: int) -> None:
        """The rest of its documents, one after the other; then the catalog."""
        if number == len(change.wanted):
            self._persist(change)
            return
        checkpoint, labels = change.wanted[number]
        code = checkpoint.code
        copies = Copies(code.m + 1, checkpoint.index_targets, least=min(code.m + 1, code.floor))

        def stored(on: tuple[TargetId, ...]) -> None:
            if on:
                self._spread(change, number + 1)
                return
            text = f"too few targets are live for the labels of {checkpoint.id}"
            hint = "start them (ckpt status), then say it again"
            self._end(change, Unavailable(text, hint=hint))

        store_document(
            self._desk,
            self._members,
            checkpoint.id,
            DocumentKind.LABELS,
            encode_labels(labels),
            copies,
            stored,
        )

    def _persist(self, change: _Change) -> None:
        gone = [one.id for one, _ in change.wanted if not _is_there(one)]
        if change.checkpoint.id in gone:
            text = f"{change.checkpoint.id} was deleted meanwhile"
            self._end(change, NotFound(text, hint="see ckpt ls"))
            return
        still = [(one, labels) for one, labels in change.wanted if _is_there(one)]

        def durable() -> None:
            for one, labels in still:
                one.labels = labels
            self._end(change, None)

        entries = tuple(
            CheckpointLabeled(one.id, encode_labels(labels) if labels.keeps else b"")
            for one, labels in still
        )
        self._desk.persist(entries, durable)

    def _end(self, change: _Change, failure: CkptError | None) -> None:
        for one, _ in change.wanted:
            one.relabeling = False
            # What was not dropped because of it, or is not kept any more, may go.
            self._desk.tell(CheckpointReleased(one.id))
        if failure is None:
            self._desk.send(change.session, change.request, _told(change.checkpoint))
        else:
            self._desk.fail(change.session, change.request, failure)
        waiting = self._waiting.pop(change.message.run)
        while waiting and change.message.run not in self._waiting:
            session, request, message = waiting.popleft()
            try:
                self._begin(session, request, message)
            except CkptError as error:
                self._desk.fail(session, request, error)
        if waiting:
            self._waiting[change.message.run] = waiting


def _is_there(checkpoint: Checkpoint) -> bool:
    return checkpoint.state in (RowState.COMMITTED, RowState.DAMAGED)


def _names(checkpoint: Checkpoint) -> set[str]:
    return set() if checkpoint.labels is None else set(checkpoint.labels.names)


def _told(checkpoint: Checkpoint) -> StepLabeled:
    labels = checkpoint.labels
    names, pinned = ((), False) if labels is None else (labels.names, labels.pinned)
    return StepLabeled(checkpoint.id, names, pinned)
