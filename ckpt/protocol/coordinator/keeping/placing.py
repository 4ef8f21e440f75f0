"""Where are the columns of a checkpoint that the catalog names? Its index says so, which m + 1
targets have; the catalog keeps none of it, so that a generation costs it the same at any size.

    the catalog's rows --a holder of the index is here--> read --whole--> placed
                                                            |  ^
                                        no copy gives it    v  | one more is here, or RETRY_US
                                                          unread, and why

Of an index only its header, its directory and the pages of payloads are read, each part from the
next copy where one is damaged. What somebody waits for comes at once, all else a few at a time,
each run's newest first, and not before requests are served: ten thousand would hold up the targets
that are still to be listed. Until it is placed a checkpoint cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from ckpt.base.errors import CkptError, Corrupt, Unavailable
from ckpt.base.ids import CheckpointId, TargetId
from ckpt.base.units import US_PER_S, KiB
from ckpt.erasure.code import Code
from ckpt.format.documents.record import CommitRecord, decode_record
from ckpt.format.index.reader import IndexReader
from ckpt.format.layout import Layout
from ckpt.format.messages import Message
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.reading import DocumentData, DocumentKind, ReadDocument
from ckpt.protocol.coordinator.cluster.holdings import index_summaries
from ckpt.protocol.coordinator.cluster.membership import Membership
from ckpt.protocol.coordinator.desk import Desk
from ckpt.protocol.coordinator.facts import CheckpointDoubted, CheckpointPlaced, TargetVouched
from ckpt.protocol.coordinator.keeping.checkpoints import Checkpoints, KeptCheckpoint
from ckpt.protocol.coordinator.keeping.placements import PlacedPayload, Placement
from ckpt.protocol.events import Buffer

READS_AT_ONCE: Final = 2
"""One of 16,384 ranks takes 0.3 s of this process, in turns of 0.15 s at most."""
PART_BYTES: Final = 256 * KiB
"""Bytes that are asked for first, and then as many as have come: most indexes end before."""
PATIENCE_US: Final = US_PER_S // 2
"""Who has not given a part by then is passed over for the next copy."""
RETRY_US: Final = 5 * US_PER_S

Found = Callable[[Placement | None], None]
"""Called once with the placement; None: no target that is here can give it now."""


class _NotHere(Exception):
    """Bytes of a copy that were not fetched yet."""

    def __init__(self, copy: _Copy, start: int) -> None:
        self.copy = copy
        self.start = start


@dataclass(slots=True)
class _Copy:
    """What was fetched of one target's copy."""

    target: TargetId
    windows: dict[int, bytearray] = field(default_factory=dict)
    """By where each begins."""
    problem: str = ""
    """Why it gives no more."""

    @property
    def size(self) -> int:
        """Bytes that are here."""
        return sum(map(len, self.windows.values()))

    def fetch(self, start: int, end: int) -> bytes:
        """Raises _NotHere for the first byte that lacks, Unavailable."""
        for begin, window in self.windows.items():
            have = begin + len(window)
            if begin <= start <= have:
                if end <= have:
                    return bytes(window[start - begin : end - begin])
                start = have
                break
        if self.problem:
            raise Unavailable(self.problem)
        raise _NotHere(self, start)

    def add(self, start: int, part: Buffer) -> None:
        for begin, window in self.windows.items():
            if begin + len(window) == start:
                window += part
                return
        self.windows[start] = bytearray(part)


@dataclass(slots=True)
class _Reading:
    """An index that is being read."""

    record: CommitRecord
    copies: list[_Copy]
    hearers: list[Found]

    @property
    def id(self) -> CheckpointId:
        return self.record.info.checkpoint


class PlacementReader:
    """I find out where the columns of recovered checkpoints are, and tell CheckpointPlaced."""

    def __init__(self, desk: Desk, members: Membership, checkpoints: Checkpoints) -> None:
        self._desk = desk
        self._members = members
        self._checkpoints = checkpoints
        self._open: dict[CheckpointId, _Reading] = {}
        #: To be looked at, the next one last; some may be placed by now.
        self._left: list[CheckpointId] = []
        self._retry_us = 0
        #: Nothing is read in its turn before; what somebody waits for is.
        self._is_begun = False
        #: All is placed, as was found last.
        self._is_done = False

    def begin(self) -> None:
        """Begin to read: the targets vouch for the catalog, and waiting requests were handled."""
        self._is_begun = True
        self._begin_all()

    def target_vouched(self, fact: TargetVouched) -> None:
        """Try again with this target what no other gave."""
        if self._is_done or not self._is_begun:
            return
        having = {
            d.checkpoint
            for d in self._members.targets[fact.target].documents
            if d.kind is DocumentKind.INDEX
        }
        self._left += [one.id for one in self._unplaced() if one.id in having]
        self._read_some()

    def doubted(self, fact: CheckpointDoubted) -> None:
        """Read this one first: somebody waits for it."""
        checkpoint = self._checkpoints.get(fact.checkpoint)
        assert checkpoint is not None
        for one in self._with_homes(checkpoint):
            # What was tried in vain is tried again in its turn.
            if not one.unread:
                self._read(one)

    def look(self, record: CommitRecord, found: Found) -> None:
        """Where the columns of the record's checkpoint are; at once where that is known."""
        id = record.info.checkpoint
        kept = self._checkpoints.get(id)
        if kept is not None and kept.placement is not None:
            found(kept.placement)
        elif id in self._open:
            self._open[id].hearers.append(found)
        else:
            copies = [_Copy(target) for target in self._holders(record)]
            reading = self._open[id] = _Reading(record, copies, [found])
            self._go_on(reading)

    def settle(self, ids: Collection[CheckpointId], then: Callable[[], None]) -> None:
        """`then` runs when each of them and its homes are placed, or cannot be for now; often at
        once. What is unknown is not waited for.
        """
        kept = [one for one in map(self._checkpoints.get, sorted(ids)) if one is not None]
        with_homes = {one.id: one for each in kept for one in self._with_homes(each)}
        left = [one for one in with_homes.values() if one.placement is None]
        open_looks = len(left)

        def found(_placement: Placement | None) -> None:
            nonlocal open_looks
            open_looks -= 1
            if not open_looks:
                then()

        for one in left:
            self.look(decode_record(one.record_bytes), found)
        if not left:
            then()

    def tick(self) -> None:
        """Try again, after a rest, what nobody gave."""
        if self._is_begun and self._desk.now_us >= self._retry_us:
            self._begin_all()

    def _with_homes(self, checkpoint: KeptCheckpoint) -> tuple[KeptCheckpoint, ...]:
        return (checkpoint, *self._checkpoints.homes_of(checkpoint))

    # ----------------------------------------------------------------------- in their turn

    def _begin_all(self) -> None:
        self._retry_us = self._desk.now_us + RETRY_US
        self._left = [one.id for one in self._unplaced()]
        self._is_done = not self._left
        self._read_some()

    def _unplaced(self) -> list[KeptCheckpoint]:
        """Each run's newest last, before them what was committed latest."""
        left = [one for one in self._checkpoints.all() if one.placement is None]
        newest = {one.id.run: one.id for one in left}
        return sorted(left, key=lambda one: (newest[one.id.run] == one.id, one.info.committed_at_s))

    def _read_some(self) -> None:
        while self._left and len(self._open) < READS_AT_ONCE:
            checkpoint = self._checkpoints.get(self._left.pop())
            if checkpoint is not None:
                self._read(checkpoint)

    def _read(self, checkpoint: KeptCheckpoint) -> None:
        if checkpoint.placement is not None or checkpoint.id in self._open:
            return
        if self._checkpoints.index_copies(checkpoint):
            self.look(decode_record(checkpoint.record_bytes), lambda _found: self._read_some())

    # ----------------------------------------------------------------------- one of them

    def _holders(self, record: CommitRecord) -> list[TargetId]:
        found = self._members.index_holders(index_summaries(record), record.index_targets)
        return [target.id for target in found]

    def _go_on(self, reading: _Reading) -> None:
        try:
            self._end(reading, self._placement(reading))
        except _NotHere as lack:
            self._ask(reading, lack.copy, lack.start)
        except CkptError as error:
            self._end(reading, None, error.message)

    def _placement(self, reading: _Reading) -> Placement:
        if not reading.copies:
            raise Unavailable("no target that is here has its index")
        reader = IndexReader(*(copy.fetch for copy in reading.copies))
        if reader.checkpoint != reading.id:
            raise Corrupt(f"its index is of {reader.checkpoint}")
        shapes: dict[tuple[Code, int, int], Layout] = {}
        placement = {}
        for one in reader.payloads():
            shape = one.code, one.payload_bytes, one.cell_bytes
            layout = shapes.setdefault(shape, Layout(*shape))
            placement[one.rank] = PlacedPayload(one.columns, one.manifest_digest, layout)
        return placement

    def _ask(self, reading: _Reading, copy: _Copy, start: int) -> None:
        size = reading.record.index_bytes
        session = self._members.targets[copy.target].session
        if session is None or start >= size:
            copy.problem = f"target {copy.target} does not answer"
            self._go_on(reading)
            return

        def answered(message: Message, part: Buffer) -> None:
            match message:
                case DocumentData(total, offset) if (total, offset) == (size, start) and part:
                    copy.add(start, part)
                case Failed():
                    copy.problem = f"target {copy.target}: {message.message}"
                case _:
                    copy.problem = f"target {copy.target} holds another document"
            self._go_on(reading)

        end = min(size, start + max(PART_BYTES, copy.size))
        question = ReadDocument(DocumentKind.INDEX, reading.id, start, end)
        self._desk.ask(session, question, answered, patience_us=PATIENCE_US)

    def _end(self, reading: _Reading, placement: Placement | None, why: str = "") -> None:
        del self._open[reading.id]
        # It may be committed after all that were known at the start had been placed.
        self._is_done = self._is_done and placement is not None
        checkpoint = self._checkpoints.get(reading.id)
        if checkpoint is not None and checkpoint.placement is None:
            if placement is not None:
                self._checkpoints.place(checkpoint, placement)
                self._desk.tell(CheckpointPlaced(reading.id))
            elif reading.copies:
                self._cannot(checkpoint, why)
        for found in reading.hearers:
            found(placement)

    def _cannot(self, checkpoint: KeptCheckpoint, why: str) -> None:
        """People hear of it once."""
        if checkpoint.unread != why:
            id = str(checkpoint.id)
            self._desk.report("warning", "its index cannot be read", checkpoint=id, reason=why)
        checkpoint.unread = why
