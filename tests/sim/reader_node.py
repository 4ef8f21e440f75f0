"""A process that loads: resolves, fetches the index, reads every payload with the real machine,
compares bytes. Then it reads parts of each, as a job does that loads with other shardings.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from ckpt.base.errors import Corrupt
from ckpt.base.ids import ColumnId, ColumnNumber, Generation, PayloadId, RunName, Step, TargetId
from ckpt.format.checksum import crc32, xxh3_128
from ckpt.format.documents.moves import Moves, decode_moves
from ckpt.format.documents.record import CommitRecord, decode_record
from ckpt.format.index.pages import IndexPayload
from ckpt.format.index.reader import decode_index
from ckpt.format.layout import Layout
from ckpt.format.messages import Message
from ckpt.format.messages.hello import Failed, Role
from ckpt.format.messages.loading import (
    AskMoves,
    MovesFound,
    Resolve,
    Resolved,
    Whereabouts,
)
from ckpt.format.messages.reading import (
    DocumentData,
    DocumentKind,
    ManifestData,
    RangeDamaged,
    RangeData,
    RangesDone,
    ReadDocument,
    ReadManifest,
    ReadRanges,
)
from ckpt.format.messages.saving import CommitInfo
from ckpt.protocol.events import Send, Session, Ticked
from ckpt.protocol.reader import events as re
from ckpt.protocol.reader.payload_reader import PayloadReader
from ckpt.protocol.runs.run_sets import Owed, RunSet, is_plain
from ckpt.protocol.runs.wire_runs import from_wire, to_wire
from ckpt.transfer.assembly import Assembly
from ckpt.transfer.landings import Landings
from tests.sim.clockwork import Clockwork
from tests.sim.memory import AskedBytes, ScratchCells
from tests.sim.network import Network, Node
from tests.sim.oracles import Oracles, Violation

TICK_US = 500_000
CRASHED = "crashed"
LIMITS = re.ReadLimits(window_bytes=4096, ask_bytes=4096, scratch_bytes=4096)
"""One cell of each column at a time, and one that has no place in the destination."""


@dataclass(slots=True)
class _Reading:
    """One payload under way."""

    machine: PayloadReader
    assembly: Assembly
    memory: bytearray
    columns: tuple[TargetId | None, ...]
    asked: AskedBytes
    spans: list[tuple[int, int]]
    """What is wanted of it."""
    documents: dict[int, bytearray] = field(default_factory=dict)
    """Manifest parts by request."""
    finished: set[int] = field(default_factory=set)
    """Stripes whose memory is decoded, or the caller's again."""

    def store(self, column: int, runs: RunSet, bulk: bytes, crc: int) -> bool:
        """Bytes land where they belong, and nowhere in a stripe that is finished."""
        stripe = runs[0][0] // self.machine.wish.layout.cell_bytes
        if stripe in self.finished:
            raise Violation(f"P3: bytes of {self.machine.wish.payload} land in finished {stripe=}")
        return _store(self.assembly, column, runs, bulk, crc)

    def finish(self, action: re.FinishStripe) -> tuple[int, ...]:
        """Columns that are wrong there; they are asked again."""
        wrong = self.assembly.finish(action)
        if not wrong:
            self.finished.add(action.stripe)
        return wrong


class _Question(NamedTuple):
    """What was asked of a column and is not answered."""

    payload: PayloadId
    column: ColumnNumber
    owed: Owed | None
    """None: its manifest."""


def parts_of(size: int, rng: random.Random) -> list[tuple[int, int]]:
    """One span of a payload, runs at one distance, or runs here and there."""
    way, at, length = rng.randrange(3), rng.randrange(size + 1), rng.randint(1, 300)
    if way == 0 or at + length > size:
        return [(at, rng.randint(at, size))]
    if way == 1:
        step = length + rng.randint(2, 900)
        return [(start, start + length) for start in range(at, size - length + 1, step)]
    ends = sorted(rng.sample(range(size + 1), min(size + 1, 2 * rng.randint(1, 12))))
    return list(zip(ends[::2], ends[1::2], strict=False))


class ReaderNode:
    """I read one checkpoint and say how it went in `outcome`: `read`, or the code of an error."""

    def __init__(
        self, clock: Clockwork, network: Network, oracles: Oracles, coordinator: Node,
        target_of: Callable[[TargetId], Node], run: RunName, number: int,
    ) -> None:  # fmt: skip
        self.name = f"reader{number}"
        self.up = True
        self.stopped = False
        self.outcome: str | None = None
        self.step: Step | None = None
        """Which one I read; None for the newest."""
        self.checkpoint: CommitInfo | None = None
        self.rebuilt_bytes = 0
        #: What the index names: read whole, and then again in parts.
        self._payloads: tuple[IndexPayload, ...] = ()
        #: The whole was read, and the parts are wanted now.
        self._wants_parts = False
        self.reads_parts = True
        """False: I am done when I have read the whole."""
        self.role = Role.READER
        """To targets."""
        self._clock, self._network, self._oracles = clock, network, oracles
        self._coordinator, self._target_of, self._run = coordinator, target_of, run
        self._requests = itertools.count(1)
        self._coordinator_session: Session | None = None
        self._record: CommitRecord | None = None
        #: What has moved of the generation that is read, and of its homes.
        self._whereabouts: dict[Generation, Whereabouts] = {}
        #: Live targets, as the coordinator said.
        self._live: set[TargetId] = set()
        self._moves: Moves = {}
        #: Moves were asked for, and have not come.
        self._awaits_moves = False
        self._index_from: list[TargetId] = []
        self._index = bytearray()
        self._links: dict[TargetId, Session] = {}
        self._dialing: dict[TargetId, list[tuple[int, Message]]] = {}
        self._readings: dict[PayloadId, _Reading] = {}
        #: By request; one that is cancelled or answered leaves, and what still comes lands nowhere.
        self._asked: dict[int, _Question] = {}

    @property
    def reading(self) -> bool:
        """A checkpoint is resolved and not read to its end."""
        return self.outcome is None and self._record is not None

    def start(self) -> None:
        self._tick()
        self._dial_coordinator()

    def crash(self) -> None:
        """The process dies."""
        self._end(CRASHED)

    def _dial_coordinator(self) -> None:
        self._network.dial(
            self, self._coordinator, Role.READER, Role.COORDINATOR,
            failed=lambda: self._clock.after(200_000, self._dial_coordinator),
            opened=self._ask_coordinator,
        )  # fmt: skip

    def _ask_coordinator(self, session: Session) -> None:
        self._coordinator_session = session
        if self._record is None:
            resolve = Resolve(self._run, self.step, timeout_us=4_000_000)
            self._network.send(Send(session, next(self._requests), resolve))
        elif self._awaits_moves:
            self._ask_moves()

    def _ask_moves(self) -> None:
        """Again on the next session, if this one ends first."""
        self._awaits_moves = True
        if self._coordinator_session is None:
            self._dial_coordinator()
        else:
            assert self._record is not None
            ask = AskMoves(self._record.info.checkpoint, 0)
            self._network.send(Send(self._coordinator_session, next(self._requests), ask))

    def _end(self, outcome: str) -> None:
        if self.outcome is None:
            self.outcome = outcome
            self.up, self._clock.changed = False, True
            self._network.died(self)

    def _tick(self) -> None:
        if not self.up:
            return
        for id in list(self._readings) if not self.stopped else ():
            self._feed(id, Ticked(self._clock.now_us))
        self._clock.after(TICK_US, self._tick)

    # ----------------------------------------------------------------------- network

    def session_opened(self, session: Session, role: Role, name: str) -> None:
        """Dials carry their own continuations."""

    def session_closed(self, session: Session) -> None:
        if session == self._coordinator_session:
            self._coordinator_session = None
            if self._record is None or self._awaits_moves:
                self._dial_coordinator()
            return
        for target, link in list(self._links.items()):
            if link == session:
                del self._links[target]
                self._target_lost(target)

    def received(self, session: Session, request: int, message: Message, bulk: bytes) -> None:
        match message:
            case Resolved(info, _, targets) if self._record is None:
                self._whereabouts = {one.generation: one for one in message.moved}
                self._live = {address.target for address in targets}
                self._resolved(info, bulk)
            case MovesFound():
                self._awaits_moves = False
                self._moves = decode_moves(0, bulk)
                self._next_index_copy()
            case Failed(code) if session == self._coordinator_session:
                self._end(code)
            case DocumentData():
                self._index_part(message, bulk)
            case _ if request in self._asked:
                self._answer(self._asked[request], request, message, bulk)
            case Failed() if not self._readings:
                self._next_index_copy()

    # ----------------------------------------------------------------------- index

    def _resolved(self, info: CommitInfo, record: bytes) -> None:
        self.checkpoint = info
        self._record, self._clock.changed = decode_record(record), True
        if self._record.info.checkpoint != info.checkpoint:
            raise Violation(f"P2: {info.checkpoint} is resolved with another's record")
        self._find_index()

    def _find_index(self) -> None:
        """Of the generation whose record is read now; what has moved of it is asked for first."""
        assert self._record is not None
        id = self._record.info.checkpoint
        moved, self._moves = self._whereabouts.get(id.generation), {}
        named = moved.indexes if moved is not None else self._record.index_targets
        self._index_from = [t for t in named if t in self._live]
        if moved is None or not moved.pages:
            self._next_index_copy()
        else:
            self._ask_moves()

    def _next_index_copy(self) -> None:
        if not self._index_from or self._record is None:
            self._end("unavailable")
            return
        self._index.clear()
        ask = ReadDocument(DocumentKind.INDEX, self._record.info.checkpoint)
        self._send_to(self._index_from.pop(0), next(self._requests), ask)

    def _index_part(self, message: DocumentData, bulk: bytes) -> None:
        if self._readings or self._record is None:
            return
        self._index += bulk
        if not message.last:
            return
        if xxh3_128(self._index) != self._record.index_digest:
            self._next_index_copy()
            return
        index = decode_index(bytes(self._index))
        self._payloads = self._wanted(index.payloads)
        for payload in self._payloads:
            self._begin(payload)
        self._conclude()

    def _wanted(self, payloads: tuple[IndexPayload, ...]) -> tuple[IndexPayload, ...]:
        return payloads

    # ----------------------------------------------------------------------- payloads

    def _begin(self, entry: IndexPayload) -> None:
        assert self._record is not None
        id = PayloadId(self._record.info.checkpoint, entry.rank)
        layout = Layout(entry.code, entry.payload_bytes, entry.cell_bytes)
        memory = bytearray(entry.payload_bytes)
        landings, spans = Landings(gap_bytes=1), [(0, entry.payload_bytes)]
        if self._wants_parts:
            spans = parts_of(entry.payload_bytes, random.Random(f"{self.name} {id}"))
        for start, end in spans:
            landings.add_range(start, memoryview(memory)[start:end])
        name = f"{self.name} of {id}"
        scratch = ScratchCells(name, layout, LIMITS)
        assembly = Assembly(layout, landings, entry.manifest_digest, pool=scratch)
        columns = tuple(
            self._moves.get((entry.rank, ColumnNumber(j)), t) for j, t in enumerate(entry.columns)
        )
        standings = tuple(
            re.Standing.ABSENT if t is None else re.Standing.REACHABLE for t in columns
        )
        wish = re.ReadWish(id, layout, landings.ranges(), standings, LIMITS)
        machine = PayloadReader(wish, self._requests, self._clock.now_us, assembly.is_direct)
        asked = AskedBytes(name, layout, LIMITS, parts=self._wants_parts)
        self._readings[id] = _Reading(machine, assembly, memory, columns, asked, spans)
        self._do(id, machine.begin())

    def _feed(self, id: PayloadId, event: re.ReaderEvent) -> None:
        reading = self._readings.get(id)
        if reading is not None and self.outcome is None:
            self._do(id, reading.machine.handle(event))
            reading.machine.check()

    def _do(self, id: PayloadId, actions: list[re.ReaderAction]) -> None:
        reading = self._readings[id]
        for action in actions:
            match action:
                case re.AskRanges(request, column, runs):
                    reading.asked.asks(action)
                    message = ReadRanges(ColumnId(id, column), to_wire(runs))
                    self._ask(request, _Question(id, column, Owed(runs)), message)
                case re.AskManifest(request, column):
                    message = ReadManifest(ColumnId(id, column))
                    self._ask(request, _Question(id, column, None), message)
                case re.CancelAsk(request, _):
                    self._asked.pop(request, None)
                    reading.asked.ended(request)
                case re.CutColumn(column, _):
                    reading.asked.left(column)
                    self._cut(reading.columns[column])
                case re.FinishStripe(stripe):
                    wrong = reading.finish(action)
                    finished = re.StripeFinished(self._clock.now_us, stripe, wrong)
                    self._clock.after(20, self._feed, id, finished)
                case re.ReadCompleted():
                    self._completed(id)
                case re.ReadFailed():
                    self._failed(id, action)

    def _ask(self, request: int, question: _Question, message: Message) -> None:
        target = self._readings[question.payload].columns[question.column]
        assert target is not None
        self._asked[request] = question
        self._send_to(target, request, message)

    def _answer(self, question: _Question, request: int, message: Message, bulk: bytes) -> None:
        id, column, owed = question
        reading, now_us = self._readings[id], self._clock.now_us
        match message:
            case RangeData(wire, crc):
                runs = from_wire(wire)
                assert runs, "targets here are honest"
                reading.asked.came(request, len(bulk))
                # What comes twice lands once.
                fits = owed is not None and owed.take(runs)
                whole = fits and reading.store(column, runs, bulk, crc)
                kind = re.RangesStored if whole else re.RangesBroken
                self._feed(id, kind(now_us, request, runs))
            case RangeDamaged(start, end, reason):
                reading.asked.came(request, end - start)
                self._feed(id, re.RangeErased(now_us, request, start, end, reason))
            case RangesDone():
                del self._asked[request]
                reading.asked.ended(request)
                self._feed(id, re.AskAnswered(now_us, request))
            case ManifestData(total, _):
                document = reading.documents.setdefault(request, bytearray())
                document += bulk
                if len(document) == total:
                    del self._asked[request]
                    self._manifest(id, request, bytes(document))
            case Failed(code, text):
                del self._asked[request]
                reading.asked.ended(request)
                self._feed(id, re.AskRefused(now_us, request, code, text))

    def _manifest(self, id: PayloadId, request: int, document: bytes) -> None:
        try:
            self._readings[id].assembly.take_manifest(document)
        except Corrupt as error:
            self._feed(id, re.ManifestWrong(self._clock.now_us, request, error.message))
            return
        self._feed(id, re.ManifestRead(self._clock.now_us, request))

    def _failed(self, id: PayloadId, action: re.ReadFailed) -> None:
        self._end(action.code)

    def _completed(self, id: PayloadId) -> None:
        reading = self._readings[id]
        self.rebuilt_bytes += reading.machine.statistics().rebuilt_bytes
        whole = bytearray(self._oracles.content_of(id))
        for start, end in reading.spans:
            whole[start:end] = reading.memory[start:end]
        self._oracles.bytes_were_read(id, bytes(whole))
        self._conclude()

    def _conclude(self) -> None:
        readings = self._readings.values()
        if len(readings) < len(self._payloads) or not all(r.machine.done for r in readings):
            return
        if self._wants_parts or not self.reads_parts:
            self._end("read")
            return
        self._wants_parts = True
        self._readings.clear()
        for payload in self._payloads:
            if self.outcome is None:
                self._begin(payload)
        self._conclude()

    # ----------------------------------------------------------------------- links

    def _send_to(self, target: TargetId, request: int, message: Message) -> None:
        session = self._links.get(target)
        if session is not None:
            self._network.send(Send(session, request, message))
            return
        waiting = self._dialing.setdefault(target, [])
        waiting.append((request, message))
        if len(waiting) == 1:
            self._network.dial(
                self, self._target_of(target), self.role, Role.TARGET,
                failed=lambda: self._dial_failed(target),
                opened=lambda session: self._dialed(target, session),
            )  # fmt: skip

    def _dialed(self, target: TargetId, session: Session) -> None:
        self._links[target] = session
        for request, message in self._dialing.pop(target, []):
            self._network.send(Send(session, request, message))

    def _dial_failed(self, target: TargetId) -> None:
        self._dialing.pop(target, None)
        self._target_lost(target)

    def _target_lost(self, target: TargetId) -> None:
        if not self._readings:
            self._next_index_copy()
            return
        for id, reading in list(self._readings.items()):
            for column, holder in enumerate(reading.columns):
                if holder == target:
                    now_us = self._clock.now_us
                    reading.asked.left(ColumnNumber(column))
                    self._feed(id, re.ColumnLost(now_us, ColumnNumber(column), "gone"))

    def _cut(self, target: TargetId | None) -> None:
        session = self._links.get(target) if target is not None else None
        if session is not None:
            self._network.cut(session)


def _store(assembly: Assembly, column: int, runs: RunSet, bulk: bytes, crc: int) -> bool:
    came = crc32(bulk)
    if len(runs) > 1 or not is_plain(runs):
        return assembly.store_apart(column, runs, memoryview(bulk), came, crc)
    assembly.land(column, runs[0][0], len(bulk))[:] = bulk
    return assembly.store(column, runs[0][0], len(bulk), came, crc)
