"""One rank of one launch: a scripted trainer, and its stager's real machines, streams and arena."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from ckpt.base.ids import ColumnId, ColumnNumber, LaunchNumber, PayloadId, Rank, Step, TargetId
from ckpt.format.checksum import crc32, xxh3_128
from ckpt.format.layout import Layout
from ckpt.format.messages import Message
from ckpt.format.messages.hello import Failed, Role
from ckpt.format.messages.launches import LaunchJoined
from ckpt.format.messages.saving import Place, ReplicaPolicy
from ckpt.format.messages.writing import (
    AbandonColumn,
    AskPace,
    BeginColumn,
    ColumnAccepted,
    ColumnSealed,
    CreditGranted,
    Fragment,
    SealColumn,
)
from ckpt.protocol.events import Received, Send, Session, SessionClosed, SessionOpened, Ticked
from ckpt.protocol.stager import events as se
from ckpt.protocol.stager.machine import SaverIdentity, StagerConfig, StagerMachine
from ckpt.protocol.writer import payload_events as pe
from ckpt.protocol.writer.column import Column
from ckpt.protocol.writer.payload_writer import PayloadWriter
from tests.sim.clockwork import Clockwork
from tests.sim.network import Network, Node
from tests.sim.oracles import Oracles, Violation
from tests.sim.payloads import Cells, Job, content, encode_cells, manifest_of, table_of

TICK_US = 500_000
HALF_BYTES = 1 << 17
"""The most that a half of the arena ever holds."""
STOP_US = 1_000
"""The longest that a sender's thread reads a half after it was told to stop."""


@dataclass(slots=True)
class _Link:
    """A connection to one boot of one target."""

    target: TargetId
    session: Session | None = None
    waiting: list[pe.OpenStream] = field(default_factory=list)


@dataclass(slots=True)
class _Sending:
    """One payload under way: its machine, its cells as encoded, and its manifest."""

    writer: PayloadWriter
    layout: Layout
    half: int
    launch: int
    cells: Cells
    manifest: bytes


class RankNode:
    """I am two processes in one object: `kill_trainer` leaves the stager, `crash` takes both."""

    def __init__(
        self, clock: Clockwork, network: Network, oracles: Oracles, coordinator: Node,
        target_of: Callable[[TargetId], Node], job: Job, rank: int, seed: int, starts: int = 0, *,
        tick_us: int = TICK_US,
    ) -> None:  # fmt: skip
        self.name = f"{job.launch_name}/rank{rank}" + "+" * starts
        self.up = True
        self.stopped = False
        self.trainer_alive = True
        self.job = job
        self.rank = rank
        self.starts = starts
        self._clock, self._network, self._oracles = clock, network, oracles
        self._coordinator = coordinator
        self._target_of = target_of
        self._seed = seed
        self._tick_us = tick_us
        self.process = f"{self.name}/{seed}"
        self.machine = StagerMachine(
            SaverIdentity(job.key, Rank(rank), job.world_size, self.process), StagerConfig()
        )
        self.half_bytes = HALF_BYTES
        #: Each as long as the largest padded payload that it ever held.
        self._halves = [bytearray(), bytearray()]
        self._sending: dict[PayloadId, _Sending] = {}
        #: Halves of payloads whose sender has been stopped and may still read them.
        self._stopping: dict[PayloadId, int] = {}
        #: Stream -> bytes that its target has granted and that were not sent.
        self._credit: dict[int, int] = {}
        self._links: dict[tuple[TargetId, int], _Link] = {}
        self._by_session: dict[Session, _Link] = {}
        self._stream_numbers = itertools.count(1)
        self._stream_payload: dict[int, PayloadId] = {}
        #: What a column of the last payload took.
        self._usual_us: int | None = None
        self._script: list[int] = list(job.steps)
        #: Save number -> step.
        self._saves: dict[int, int] = {}
        self.outcomes: dict[int, se.Outcome] = {}
        """Step -> what the trainer was told last."""
        self._coordinator_session: Session | None = None
        self.done_saving = False

    # ----------------------------------------------------------------------- trainer

    def start(self) -> None:
        self._handle(se.TrainerAttached(self._clock.now_us))
        self._tick()
        self._next_save()

    def _next_save(self) -> None:
        if not self.trainer_alive or not self.up:
            return
        if not self._script:
            self.done_saving = True
            return
        step = self._script.pop(0)
        number = len(self._saves) + 1
        self._saves[number] = step
        self._handle(se.HalfAsked(self._clock.now_us, number, self.job.run, Step(step)))

    def _stage(self, number: int, half: int) -> None:
        step = self._saves[number]
        data = self._content(step)
        read_halves = {*(s.half for s in self._sending.values()), *self._stopping.values()}
        self._oracles.half_granted(self, half, number, read_halves)

        def copied() -> None:
            if not self.trainer_alive or not self.up:
                return
            assert len(data) <= self.half_bytes
            self._halves[half][: len(data)] = data
            self._oracles.handed_over(self.job, step, self.rank)
            self._hand_over(number, len(data))
            self._clock.after(self.job.gap_us, self._next_save)

        self._clock.after(self._clock.between(50, 2000), copied)

    def metrics_of(self, step: int) -> dict[str, float]:
        """What the trainer says of it; nothing here."""
        return {}

    def _content(self, step: int) -> bytes:
        return content(self.job, step, self.rank, self._seed)

    def _hand_over(self, number: int, payload_bytes: int) -> None:
        now_us = self._clock.now_us
        self._handle(
            se.PayloadHandedOver(
                now_us, number, payload_bytes, 0, 0, ReplicaPolicy.ABORT, 100,
                metrics=self.metrics_of(self._saves[number]),
            )
        )  # fmt: skip
        self._clock.after(300, self._tell_table, number, table_of(self.job, self.rank))

    def _tell_table(self, number: int, table: bytes) -> None:
        if self.up:
            self._handle(se.TableReady(self._clock.now_us, number, table))

    @property
    def steps(self) -> Collection[int]:
        """Whose saves have begun."""
        return self._saves.values()

    def step_of(self, save: int) -> int:
        """The step of one of this process's saves."""
        return self._saves[save]

    @property
    def writers(self) -> list[PayloadWriter]:
        """Of every payload under way."""
        return [sending.writer for sending in self._sending.values()]

    @property
    def columns(self) -> Iterator[Column]:
        """The columns of every payload under way."""
        for sending in self._sending.values():
            yield from sending.writer.columns

    @property
    def launch_number(self) -> int | None:
        """As the coordinator answered; None before."""
        run = self.machine.runs.get(self.job.run)
        return run.number if run is not None else None

    @property
    def fenced(self) -> bool:
        """A newer launch has begun, as this process was told: it can save no more."""
        failures = (o for o in self.outcomes.values() if isinstance(o, se.SaveFailed))
        return any(failure.code == "fenced" for failure in failures)

    @property
    def joining(self) -> bool:
        """It asked for a launch and was not answered yet, or is about to ask."""
        run = self.machine.runs.get(self.job.run)
        return self.up and (self.trainer_alive if run is None else run.number is None)

    def kill_trainer(self) -> None:
        if self.trainer_alive and self.up:
            self.trainer_alive = False
            self._clock.changed = True
            self._clock.after(500, self._ended)

    def _ended(self) -> None:
        if self.up:
            self._handle(se.TrainerEnded(self._clock.now_us))

    def crash(self) -> None:
        """Both processes die, and the arena with them."""
        if self.up:
            self.up = self.trainer_alive = False
            self._clock.changed = True
            self._network.died(self)

    # ----------------------------------------------------------------------- network

    def session_opened(self, session: Session, role: Role, name: str) -> None:
        if role is Role.COORDINATOR:
            self._coordinator_session = session
            self._handle(SessionOpened(self._clock.now_us, session, role, name))

    def session_closed(self, session: Session) -> None:
        link = self._by_session.pop(session, None)
        if link is None:
            self._handle(SessionClosed(self._clock.now_us, session))
            return
        self._links = {key: each for key, each in self._links.items() if each is not link}
        self._lose_streams(link)

    def _lose_streams(self, link: _Link) -> None:
        for sending in list(self._sending.values()):
            for column in sending.writer.columns:
                if (
                    column.stream
                    and column.place is not None
                    and column.place.target == link.target
                ):
                    lost = pe.StreamLost(self._clock.now_us, column.stream, "connection ended")
                    self._write(sending, lost)

    def received(self, session: Session, request: int, message: Message, bulk: bytes) -> None:
        if session not in self._by_session:
            if isinstance(message, LaunchJoined):
                self._oracles.launch_given(message.launch, self.job)
            self._oracles.space_given(message)
            self._handle(Received(self._clock.now_us, session, request, message, bulk))
            return
        payload = self._stream_payload.get(request)
        sending = self._sending.get(payload) if payload is not None else None
        if sending is None:
            return
        now_us = self._clock.now_us
        match message:
            case ColumnAccepted(credit, pace, answers):
                self._credit[request] = self._credit.get(request, 0) + credit
                self._write(sending, pe.StreamAccepted(now_us, request, credit, pace, answers))
            case CreditGranted(credit, pace):
                self._credit[request] = self._credit.get(request, 0) + credit
                self._write(sending, pe.StreamCredited(now_us, request, credit, pace))
            case ColumnSealed(proof):
                self._write(sending, pe.StreamSealed(now_us, request, proof))
            case Failed(code, text):
                self._oracles.column_refused(code, text)
                self._write(sending, pe.StreamRefused(now_us, request, code, text))

    # ----------------------------------------------------------------------- stager

    def _tick(self) -> None:
        if not self.up:
            return
        if not self.stopped:
            for sending in list(self._sending.values()):
                self._write(sending, Ticked(self._clock.now_us))
            self._handle(Ticked(self._clock.now_us))
        self._clock.after(self._tick_us, self._tick)

    def _handle(self, event: se.StagerEvent) -> None:
        self._clock.changed = True
        for action in self.machine.handle(event):
            if self.up:
                self._perform(action)
        if self.up:
            self.machine.check()

    def _perform(self, action: se.StagerAction) -> None:
        now_us = self._clock.now_us
        match action:
            case Send():
                self._network.send(action)
            case se.DialCoordinator():
                self._dial_coordinator()
            case se.GrantHalf(number, half):
                self._stage(number, half)
            case se.RefuseSave(number, code, text):
                self.outcomes[self._saves[number]] = se.SaveFailed(code, text)
                self._clock.after(self.job.gap_us, self._next_save)
            case se.StartPayload():
                self._start(action)
            case se.AddSpares(payload, column, spares) if payload in self._sending:
                self._write(self._sending[payload], pe.SparesGiven(now_us, column, spares))
            case se.ReopenColumns(payload, columns, places) if payload in self._sending:
                self._write(self._sending[payload], pe.ColumnsReopened(now_us, columns, places))
            case se.StopPayload(payload):
                self._stop(payload)
            case se.ComputeBoxes(payload, _, boxes):
                prints = tuple(b"\0" * 16 for _ in boxes)
                self._handle(se.BoxesFingerprinted(now_us, payload, prints))
            case se.TellTrainer(number, outcome):
                self._tell(number, outcome)

    def _tell(self, number: int, outcome: se.Outcome) -> None:
        if not self.trainer_alive:
            return
        self.outcomes[self._saves[number]] = outcome
        self._oracles.trainer_told(self, self._saves[number], outcome)
        self._clock.after(50, self._hear, number)

    def _hear(self, number: int) -> None:
        if self.up:
            self._handle(se.OutcomeHeard(self._clock.now_us, number))

    def _dial_coordinator(self) -> None:
        self._network.dial(
            self,
            self._coordinator,
            Role.STAGER,
            Role.COORDINATOR,
            failed=lambda: self._handle(se.DialFailed(self._clock.now_us)),
            opened=lambda session: None,
        )

    # ----------------------------------------------------------------------- streams

    def _start(self, action: se.StartPayload) -> None:
        writer = PayloadWriter(
            action.plan, action.payload_bytes, self._stream_numbers, self._clock.now_us,
            usual_us=self._usual_us,
        )  # fmt: skip
        layout = writer.layout
        half = self._halves[action.half]
        padding = bytes(layout.padded_bytes - action.payload_bytes)
        half[action.payload_bytes : layout.padded_bytes] = padding
        cells = encode_cells(layout, bytes(half[: layout.padded_bytes]))
        manifest, crcs = manifest_of(action.plan.payload, action.launch, layout, cells)
        sending = _Sending(writer, layout, action.half, action.launch, cells, manifest)
        self._sending[action.plan.payload] = sending
        self._do(sending, writer.begin())
        ready = pe.ManifestReady(self._clock.now_us, xxh3_128(manifest), crcs)
        self._clock.after(200, self._write, sending, ready)

    def _stop(self, payload: PayloadId) -> None:
        sending = self._sending.pop(payload, None)
        if sending is not None:
            self._stopping[payload] = sending.half
            took = sorted(c.took_us for c in sending.writer.columns if c.proof is not None)
            self._usual_us = took[len(took) // 2] if took else None
            self._do(sending, sending.writer.handle(pe.WriterStopped(self._clock.now_us)))
        self._clock.after(self._clock.between(10, STOP_US), self._stopped, payload)

    def _stopped(self, payload: PayloadId) -> None:
        self._stopping.pop(payload, None)
        if self.up:
            self._handle(se.PayloadStopped(self._clock.now_us, payload))

    def _write(self, sending: _Sending, event: pe.WriterEvent) -> None:
        if not self.up:
            return
        self._do(sending, sending.writer.handle(event))
        self._pump(sending)
        sending.writer.check()

    def _do(self, sending: _Sending, actions: list[pe.WriterAction]) -> None:
        self._clock.changed = True
        payload = sending.writer.payload
        now_us = self._clock.now_us
        for action in actions:
            match action:
                case pe.OpenStream(_, stream, place):
                    self._stream_payload[stream] = payload
                    self._open_stream(action, place)
                case pe.SealStream(column, stream):
                    seal = SealColumn(len(sending.manifest))
                    self._send_to(sending, column, stream, seal, sending.manifest)
                case pe.AskTarget(column, stream):
                    self._send_to(sending, column, stream, AskPace(), b"")
                case pe.AbandonStream(_, stream, place, reason):
                    self._abandon(stream, place, reason)
                case pe.AskSpares(column, failed, held, stays):
                    self._handle(se.SparesWanted(now_us, payload, column, failed, held, stays))
                case pe.CertifyPayload(proofs, slow):
                    digest = xxh3_128(sending.manifest)
                    self._handle(se.PayloadSealed(now_us, payload, proofs, digest, slow=slow))
                case pe.FailPayload(code, text, hint):
                    self._handle(se.PayloadFailed(now_us, payload, code, text, hint))

    def _open_stream(self, action: pe.OpenStream, place: Place) -> None:
        key = (place.target, int(place.boot))
        link = self._links.get(key)
        if link is None:
            link = self._links[key] = _Link(place.target)
            link.waiting.append(action)
            self._network.dial(
                self,
                self._target_of(place.target),
                Role.STAGER,
                Role.TARGET,
                failed=lambda: self._link_failed(key, link),
                opened=lambda session: self._link_opened(link, session),
            )
        elif link.session is None:
            link.waiting.append(action)
        else:
            self._begin(link, action)

    def _link_failed(self, key: tuple[TargetId, int], link: _Link) -> None:
        self._links.pop(key, None)
        for action in link.waiting:
            payload = self._stream_payload[action.stream]
            if payload in self._sending:
                lost = pe.StreamLost(self._clock.now_us, action.stream, "nobody answers")
                self._write(self._sending[payload], lost)

    def _link_opened(self, link: _Link, session: Session) -> None:
        link.session = session
        self._by_session[session] = link
        waiting, link.waiting = link.waiting, []
        for action in waiting:
            self._begin(link, action)

    def _begin(self, link: _Link, action: pe.OpenStream) -> None:
        payload = self._stream_payload[action.stream]
        sending = self._sending.get(payload)
        if sending is None or link.session is None:
            return
        layout = sending.layout
        begin = BeginColumn(
            ColumnId(payload, action.column),
            LaunchNumber(sending.launch),
            action.place.reservation,
            str(layout.code),
            layout.payload_bytes,
            layout.cell_bytes,
        )
        self._network.send(Send(link.session, action.stream, begin))

    def _send_to(
        self, sending: _Sending, column: ColumnNumber, stream: int, message: Message, bulk: bytes
    ) -> None:
        place = sending.writer.columns[column].place
        link = self._links.get((place.target, int(place.boot))) if place is not None else None
        if link is not None and link.session is not None:
            self._network.send(Send(link.session, stream, message, bulk))

    def _abandon(self, stream: int, place: Place, reason: pe.AbandonReason) -> None:
        link = self._links.get((place.target, int(place.boot)))
        if link is None or link.session is None:
            return
        if reason is pe.AbandonReason.STALLED:
            self._network.cut(link.session)
        else:
            self._network.send(Send(link.session, stream, AbandonColumn()))

    def _pump(self, sending: _Sending) -> None:
        """The hot loop's rule: most bytes left first, as far as credit goes."""
        moved = True
        while moved:
            moved = False
            for column in sending.writer.send_order():
                stripe = sending.writer.next_stripe(column.number)
                if stripe is None:
                    continue
                cell = sending.cells[stripe][column.number]
                fragment = Fragment(stripe, crc32(cell))
                self._send_to(sending, column.number, column.stream, fragment, cell)
                self._credit[column.stream] -= len(cell)
                if self._credit[column.stream] < 0:
                    raise Violation(f"P5: {self.name} sends more than its credit to {column.place}")
                sent = pe.FragmentSent(self._clock.now_us, column.stream, stripe)
                self._do(sending, sending.writer.handle(sent))
                moved = True
