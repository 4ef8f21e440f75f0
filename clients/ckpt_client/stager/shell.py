"""The stager process: one loop over the trainer, the coordinator, the sender and workers,
around StagerMachine.

    trainer ─packets─> TrainerChannel ─┐                      ┌─> LinkLoop ──> coordinator
    workers ─results─> Jobs ───────────┤ events      actions  ├─> PayloadSender ──> targets
    sender  ─results─> PayloadSender ──┼─> StagerMachine ─────┼─> TrainerChannel, Jobs
    coordinator ─────> LinkLoop ───────┘                      └─> MemoryServer ──> readers

The machine decides, this file performs. Nothing in the loop may block: memory is made and
fingerprints are computed by workers, bytes are sent by the sender's threads.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ckpt.aio.clock import now_us
from ckpt.aio.collector import collect_rarely
from ckpt.aio.net.link import Link, LinkClosed, LinkOpened, LinkReceived
from ckpt.aio.net.link_loop import LinkLoop
from ckpt.aio.secret import read_secret
from ckpt.base.errors import CkptError, PeerError
from ckpt.base.ids import CheckpointId, Rank, RunName, Step
from ckpt.base.units import US_PER_S
from ckpt.format.checksum import xxh3_128
from ckpt.format.messages.hello import Role
from ckpt.format.messages.saving import ReplicaPolicy
from ckpt.plan.references import Move
from ckpt.protocol.events import Received, Report, Send, SessionClosed, SessionOpened, Ticked
from ckpt.protocol.handshake import Caller, OtherCluster
from ckpt.protocol.stager.events import (
    AddSpares,
    BoxesFingerprinted,
    ComputeBoxes,
    DialCoordinator,
    DialFailed,
    EndAsked,
    Exit,
    GrantHalf,
    Outcome,
    OutcomeHeard,
    PayloadFailed,
    PayloadHandedOver,
    PayloadSealed,
    RefuseSave,
    ReleaseHalf,
    ReopenColumns,
    SaveCommitted,
    SaveFailed,
    StagerAction,
    StagerEvent,
    StagingDropped,
    StartPayload,
    StepRefused,
    StopPayload,
    TellTrainer,
    TrainerAttached,
    TrainerDetached,
    TrainerEnded,
    Unchanged,
)
from ckpt.protocol.stager.machine import SaverIdentity, StagerConfig, StagerMachine
from ckpt.transfer.payload_sender import PayloadSender, SenderOptions
from ckpt_client.locate import Locator, client_name, dial_us
from ckpt_client.stager import wire
from ckpt_client.stager.channel import TrainerChannel
from ckpt_client.stager.declaration import Declaration, DeclarationReader
from ckpt_client.stager.fingerprint import Fingerprinter, fingerprint_boxes
from ckpt_client.stager.half_desk import HalfDesk
from ckpt_client.stager.jobs import Jobs
from ckpt_client.stager.log import log
from ckpt_client.stager.memory import HeldMemory, MemoryRequest
from ckpt_client.stager.patience import LOOK_MS, Courtesy, CrowdPatience
from ckpt_client.stager.readers import Readers
from ckpt_client.stager.reviving import Reviving
from ckpt_client.stager.sending import Sending
from ckpt_client.stager.signals import EndSignals
from ckpt_client.stager.tables import TableOrder, Tables

TICK_MS: Final = 50
TICK_IDLE_MS: Final = 500
ATTACH_TIMEOUT_S: Final = 60.0


def serve(sock: socket.socket) -> bool:
    """Wait for Attach, then run until the machine says that nobody needs this process. Returns
    whether a save was given up.
    """
    collect_rarely()
    sock.settimeout(ATTACH_TIMEOUT_S)
    packet, _ = wire.receive_packet(sock)
    if not packet:
        sock.close()
        return False
    attach = wire.decode_from_trainer(packet)
    if not isinstance(attach, wire.Attach):
        raise PeerError("the trainer's first packet is not Attach")
    shell = StagerShell(TrainerChannel(sock), attach, Courtesy())
    try:
        shell.run()
    finally:
        shell.close()
    return shell.gave_up


@dataclass(frozen=True, slots=True)
class HalfContent:
    """What lies in a half."""

    checkpoint: CheckpointId
    payload_bytes: int
    serial: int
    """Of the half's memory."""
    manifest: bytes
    """Empty until sealed."""


class StagerShell:
    """I own the arena, the sockets and the threads of one rank's stager."""

    def __init__(
        self, trainer: TrainerChannel, attach: wire.Attach, courtesy: Courtesy,
        patience: CrowdPatience | None = None,
    ) -> None:  # fmt: skip
        self._trainer, self._courtesy = trainer, courtesy
        self._patience = patience or CrowdPatience()
        self._attach = attach
        self._locator = Locator(attach.directory, attach.address)
        self._secret_file = Path(attach.secret_file)
        self._rank = Rank(attach.rank)
        identity = SaverIdentity(attach.key, self._rank, attach.world_size, attach.process)
        config = StagerConfig(idle_us=int(attach.idle_s * US_PER_S), dial_us=dial_us())
        self._machine = StagerMachine(identity, config)
        self._jobs = Jobs(courtesy.go_on)
        self._desk = HalfDesk(
            attach.arena_bytes_max,
            self._jobs,
            trainer.send,
            self._handle,
            self._machine.free_half,
            lambda half: self._sending.withdraw(half),
        )
        self._loop = LinkLoop()
        #: The connection to the coordinator, from DialCoordinator until it is closed.
        self._link: Link | None = None
        #: Whether the machine knows of a session on that link.
        self._session_open = False
        self._sending = Sending(self._jobs, self._make_sender, self._handle)
        self._tables = Tables(self._jobs, self._handle)
        self._declarations = DeclarationReader()
        #: half -> what lies in it, from the hand-over until it is released.
        self._declared: dict[int, Declaration] = {}
        #: half -> the payload that was last sent from it; stays after the release, for readers.
        self._contents: dict[int, HalfContent] = {}
        self._readers = Readers(self._rank, self._look_up)
        self._reviving = Reviving(attach.directory, self._jobs)
        self._cluster = attach.cluster
        #: Why there is no session, as last logged; empty while there is one.
        self._complaint = ""
        self._running = True
        self._end_signals = EndSignals()
        self.gave_up = False
        """Whether a save was handed over of whose end nothing was heard."""
        trainer.watch_process(attach.pid)

    def run(self) -> None:
        """The loop."""
        self._end_signals.listen()
        self._attached()
        while self._running:
            self._wait()
            self.turn()

    def turn(self) -> None:
        """Handle what has come."""
        self._courtesy.go_on()
        if self._end_signals.take():
            log("info", "asked to end")
            self._handle(EndAsked(now_us()))
        self._jobs.finish()
        self._read_trainer()
        self._read_coordinator()
        self._read_sender()
        self._readers.serve(now_us())
        self._handle(Ticked(now_us()))

    def close(self) -> None:
        """Let go of everything that this process holds; sealed columns stay where they are."""
        self._trainer.flush()
        self._trainer.close()
        self._trainer.forget_process()
        self._sending.close()
        self._loop.shut()
        self._jobs.close()
        self._readers.close()
        self._desk.close()

    # ----------------------------------------------------------------------- the loop

    def _wait(self) -> None:
        if self._link is not None and self._link.pulse is not None:
            self._link.pulse.expect(now_us(), not self._machine.idle)
        poll = select.poll()
        own = (*self._trainer.descriptors, self._jobs.descriptor, self._loop.fileno())
        for descriptor in (*own, *self._sending.descriptors, *self._readers.descriptors):
            poll.register(descriptor, select.POLLIN)
        if self._trainer.wants_write:
            poll.register(self._trainer.fileno(), select.POLLIN | select.POLLOUT)
        dials = self._link is not None and not self._session_open
        quiet = self._machine.idle and not (self._jobs.pending or dials)
        poll.poll(LOOK_MS if self._patience.keeps else TICK_IDLE_MS if quiet else TICK_MS)

    def _handle(self, event: StagerEvent) -> None:
        """Perform what the machine says; actions may cause events, which are handled in order."""
        events = [event]
        while events:
            for action in self._machine.handle(events.pop(0)):
                answer = self._perform(action)
                if answer is not None:
                    events.append(answer)

    def _perform(self, action: StagerAction) -> StagerEvent | None:
        match action:
            case Send():
                if self._link is not None:
                    self._link.try_send(action.request, action.message, action.bulk)
            case DialCoordinator():
                return self._dial()
            case GrantHalf(save, half):
                self._desk.grant(save, half)
            case RefuseSave(save, code, message, hint):
                self._desk.forget(save)
                text, advice = wire.cut_text(message), wire.cut_text(hint)
                self._trainer.send(wire.SaveRefused(save, code, text, advice))
            case ReleaseHalf(half):
                self._declared.pop(half, None)
                self._desk.release(half)
            case ComputeBoxes():
                self._compute_boxes(action)
            case TellTrainer(save, outcome):
                self._tell(save, outcome)
            case Exit():
                self._exit(action)
            case Report(level, text, fields):
                log(level, text, **dict(fields))
            case StartPayload():
                return self._start_payload(action)
            case AddSpares() | ReopenColumns() | StopPayload():
                return self._sending.command(action)
        return None

    def _exit(self, action: Exit) -> None:
        for run, step in action.lost:
            text = "given up, it is not known to be committed: `ckpt ls` says what is"
            log("error", text, save=f"{run}@{step}", why=action.reason)
        log("info", "exit", reason=action.reason)
        self._running, self.gave_up = False, bool(action.lost)

    # ----------------------------------------------------------------------- trainer

    def _read_trainer(self) -> None:
        attached = not self._trainer.ended()
        if attached:
            self._hear_trainer()
        if attached and self._trainer.ended():
            self._desk.leave()
        if self._trainer.process_ended():
            if not self._machine.trainer_ended:
                log("info", "the trainer's process has ended", pid=self._attach.pid)
                self._handle(TrainerEnded(now_us()))
        elif attached and self._trainer.ended():
            self._handle(TrainerDetached(now_us()))

    def _hear_trainer(self) -> None:
        self._trainer.flush()
        try:
            for packet in self._trainer.receive():
                if not isinstance(packet, wire.HeardOutcome):
                    self._begin_payload(self._patience.end())
                self._trainer_said(packet)
        except PeerError as error:
            self._hang_up(error)
        ended = self._trainer.ended()
        self._begin_payload(self._patience.end() if ended else self._patience.due(now_us()))

    def _hang_up(self, error: PeerError) -> None:
        log("error", str(error))
        self._trainer.close()

    def _trainer_said(self, packet: wire.FromTrainer) -> None:
        match packet:
            case wire.AskHalf():
                self._desk.ask(packet)
            case wire.Declared():
                self._desk.read_ahead(packet, self._declarations.read)
            case wire.HandOver():
                self._courtesy.step_back()
                self._patience.keep(packet, now_us())
            case wire.DropStaging(save):
                self._desk.forget(save)
                self._handle(StagingDropped(now_us(), save))
            case wire.RefuseStep(save, run, step, why):
                self._desk.forget(save)
                self._handle(StepRefused(now_us(), save, RunName(run), Step(step), why))
            case wire.HeardOutcome(save):
                self._handle(OutcomeHeard(now_us(), save))
            case wire.Prepare(half_bytes):
                self._courtesy.step_back()
                self._desk.prepare(half_bytes)
            case wire.Detach():
                self._detached()
            case wire.Attach():
                if self._machine.trainer_attached or packet != self._attach:
                    raise PeerError("the trainer attached twice, or as another")
                self._attached()
                self._desk.announce_all()

    def _attached(self) -> None:
        """A store is open: the first one, or another one of its process."""
        self._tables.forget()
        self._trainer.listen()
        self._trainer.send(wire.Attached(os.getpid()))
        self._handle(TrainerAttached(now_us()))

    def _detached(self) -> None:
        self._desk.leave()
        self._handle(TrainerDetached(now_us()))
        self._trainer.send(wire.Detached())
        self._trainer.pause()

    def _begin_payload(self, packet: wire.HandOver | None) -> None:
        """What our patience kept, if anything."""
        if packet is not None:
            try:
                self._handed_over(packet)
            except PeerError as error:
                self._hang_up(error)

    def _handed_over(self, packet: wire.HandOver) -> None:
        half = self._desk.half_of(packet.save)
        memory = self._desk.slot(half).memory if half is not None else None
        if half is None or memory is None:
            raise PeerError(f"save {packet.save} was handed over without a half")
        end = packet.declaration_offset + packet.declaration_bytes
        if not 0 < packet.payload_bytes <= packet.declaration_offset <= end <= memory.size:
            raise PeerError(f"save {packet.save} does not fit its half")
        declaration = self._declarations.read(memory.memory[packet.declaration_offset : end])
        self._declared[half] = declaration
        saved = self._machine.saves[packet.save]
        order = TableOrder(
            save=packet.save,
            run=saved.run,
            step=saved.step,
            payload_bytes=packet.payload_bytes,
            document_bytes=packet.document_bytes,
            warn=packet.unchanged == Unchanged.WARN.value,
            refer=packet.references and self._machine.may_refer(saved.run),
        )
        handed = PayloadHandedOver(
            now_us=now_us(),
            save=packet.save,
            payload_bytes=packet.payload_bytes,
            document_offset=0,
            document_bytes=packet.document_bytes,
            replicas=ReplicaPolicy(packet.replicas),
            stall_us=packet.stall_us,
            fault_in_us=packet.fault_in_us,
            comparing=self._tables.has_base(order),
            metrics=packet.metrics,
        )
        self._handle(handed)
        self._tables.make(order, Fingerprinter(memory.memory, declaration))
        # Soon needed: pay its first touch beside the training. As much as this save needed, not as
        # its half has, or the two would grow past each other with every save.
        self._desk.make(1 - half, end)

    def _tell(self, save: int, outcome: Outcome) -> None:
        match outcome:
            case SaveCommitted(info):
                self._tables.committed(save, info.checkpoint)
                self._trainer.send(wire.Outcome(save, info))
            case SaveFailed(code, message, hint, after_us):
                self._tables.failed(save)
                text, advice = wire.cut_text(message), wire.cut_text(hint)
                self._trainer.send(wire.Outcome(save, None, code, text, advice, after_us))

    # ----------------------------------------------------------------------- coordinator

    def _dial(self) -> StagerEvent | None:
        try:
            if not self._machine.idle:
                self._reviving.look()
            address = self._locator.address()
            secret = read_secret(self._secret_file)
        except CkptError as error:
            return self._dial_failed(error)
        caller = Caller(secret, Role.STAGER, client_name(), cluster=self._cluster)
        self._link = self._loop.connect(address, caller)
        return None

    def _read_coordinator(self) -> None:
        for event in self._loop.poll(0):
            match event:
                case LinkOpened(link, peer):
                    self._session_open, self._complaint = True, ""
                    self._handle(SessionOpened(now_us(), link.session, peer.role, peer.name))
                case LinkReceived(link, request, bulk=bulk):
                    view = bulk.view if bulk is not None else b""
                    self._handle(Received(now_us(), link.session, request, event.message, view))
                    if bulk is not None:
                        bulk.release()
                case LinkClosed(link, error):
                    self._link = None
                    failed = self._dial_failed(error)
                    opened, self._session_open = self._session_open, False
                    self._handle(SessionClosed(now_us(), link.session) if opened else failed)
                case _:
                    continue

    def _dial_failed(self, error: CkptError) -> DialFailed:
        """Log why there is no session; not again at every attempt to dial."""
        if str(error) != self._complaint:
            self._complaint = str(error)
            log("warning", "no session with the coordinator", why=self._complaint)
        is_local = bool(self._locator.directory)
        gone = isinstance(error, OtherCluster) or self._locator.is_gone
        return DialFailed(now_us(), gone=is_local and gone)

    # ----------------------------------------------------------------------- sender, workers

    def _make_sender(self) -> PayloadSender:
        secret = read_secret(self._secret_file)
        return PayloadSender(SenderOptions(secret=secret, name=client_name()))

    def _start_payload(self, action: StartPayload) -> StagerEvent | None:
        slot = self._desk.slot(action.half)
        assert slot.memory is not None, "a granted half has memory"
        checkpoint = action.plan.payload.checkpoint
        self._contents[action.half] = HalfContent(
            checkpoint, action.payload_bytes, slot.serial, b""
        )
        runs = {content.checkpoint.run for content in self._contents.values()}
        self._readers.serve_runs(self._cluster, runs)
        moves: tuple[Move, ...] = ()
        if action.refers:
            found = self._tables.sent(action.save)
            declared = self._declared[action.half]
            self._declared[action.half] = replace(declared, table=found.table)
            moves = found.moves
        return self._sending.start(action, slot.memory, moves)

    def _read_sender(self) -> None:
        for result in self._sending.results():
            if isinstance(result, PayloadSealed):
                self._note_manifest(result)
            self._handle(result)

    def _note_manifest(self, sealed: PayloadSealed) -> None:
        for half, content in self._contents.items():
            if content.checkpoint == sealed.payload.checkpoint:
                self._contents[half] = replace(content, manifest=sealed.manifest)

    def _compute_boxes(self, action: ComputeBoxes) -> None:
        memory = self._desk.slot(action.half).memory
        declaration = self._declared.get(action.half)
        assert memory is not None, "a held half has memory"
        assert declaration is not None, "a held half is declared"
        answer: Callable[[tuple[bytes, ...]], None] = lambda prints: self._handle(  # noqa: E731
            BoxesFingerprinted(now_us(), action.payload, prints)
        )
        names = [box.name for box in action.boxes]
        self._tables.compared_with_others(action.payload.checkpoint.run, names)
        self._jobs.start(
            lambda: fingerprint_boxes(memory.memory, declaration, action.boxes),
            answer,
            lambda error: self._handle(
                PayloadFailed(now_us(), action.payload, error.code, error.message, error.hint)
            ),
        )

    def _look_up(self, request: MemoryRequest) -> HeldMemory | None:
        """The half that holds exactly this committed payload and that nobody can overwrite."""
        half = self._machine.committed_half(request.checkpoint)
        content = self._contents.get(half) if half is not None else None
        if half is None or content is None or request.rank != self._rank:
            return None
        slot = self._desk.slot(half)
        wanted = replace(content, checkpoint=request.checkpoint, serial=slot.serial)
        is_sealed_so = xxh3_128(content.manifest) == request.manifest_digest
        if slot.memory is None or content != wanted or not is_sealed_so:
            return None
        slot.lent = True
        return HeldMemory(slot.memory.descriptor, content.payload_bytes, content.manifest)
