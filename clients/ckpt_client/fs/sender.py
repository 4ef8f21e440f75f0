"""Brings closed files to their targets: the stager's machine and sender, in this process.

    send ──order──> thread ─┬─> StagerMachine ──> coordinator (open, certify; again after a restart)
         <──certified──     └─> PayloadSender ──> targets

A rank's saves have a process of their own, because they go on when the trainer is gone. A file that
nobody commits is nothing, so it needs no process that outlives its writer: when this one ends, its
session does, and the coordinator gives the space back. `send` returns when the file is on enough
targets; its memory is free then.
"""

from __future__ import annotations

import os
import select
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ckpt.aio.clock import now_us
from ckpt.aio.net.link import Link, LinkClosed, LinkOpened, LinkReceived
from ckpt.aio.net.link_loop import LinkLoop
from ckpt.aio.secret import read_secret
from ckpt.aio.selecting import bell
from ckpt.aio.threads import start_thread
from ckpt.base.errors import Aborted, CkptError, Unavailable, error_from_wire
from ckpt.base.ids import CheckpointId, PayloadId, Rank, RunName, Step
from ckpt.base.system_errors import Scarce
from ckpt.format.members import Member, MemberPlan, member_table
from ckpt.format.messages.hello import Role
from ckpt.format.messages.saving import ReplicaPolicy
from ckpt.format.table import encode_table
from ckpt.protocol.events import Received, Send, SessionClosed, SessionOpened, Ticked
from ckpt.protocol.handshake import Caller
from ckpt.protocol.stager import events as e
from ckpt.protocol.stager.machine import SaverIdentity, StagerConfig, StagerMachine
from ckpt.transfer.payload_sender import PayloadSender, SenderOptions
from ckpt_client.environment import next_save_number, process_name
from ckpt_client.fs.spool import Spool
from ckpt_client.locate import Locator, client_name, dial_us

FILES_MAX: Final = 1024
"""Files of this process that may wait for their commit."""
TICK_MS: Final = 50
IDLE_TICK_MS: Final = 500
SEND_TIMEOUT_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Sent:
    """A file that is on its targets."""

    payload: PayloadId
    member: Member

    @property
    def checkpoint(self) -> CheckpointId:
        return self.payload.checkpoint


@dataclass(slots=True)
class _Job:
    """One file on its way. The thread fills it in and sets `done`."""

    save: int
    run: RunName
    step: Step
    member: Member
    plan: MemberPlan
    memory: memoryview | None
    """None once nothing reads it any more."""
    payload: PayloadId | None = None
    error: CkptError | None = None
    certified: bool = False
    done: threading.Event = field(default_factory=threading.Event)


#: Every sender of this process. A forked child abandons its copies.
_senders: Final[weakref.WeakSet[FileSender]] = weakref.WeakSet()


class FileSender:
    """I am thread safe. Close me."""

    def __init__(
        self,
        locator: Locator,
        secret_file: Path,
        on_committed: Callable[[CheckpointId], None],
    ) -> None:
        """on_committed hears on my thread of a commit that named a file of mine.

        Raises Scarce where the system has no thread or descriptor left.
        """
        self._locator = locator
        self._on_committed = on_committed
        self._secret = read_secret(secret_file)
        identity = SaverIdentity(None, Rank(0), 1, process_name())
        self._machine = StagerMachine(
            identity, StagerConfig(half_count=FILES_MAX, dial_us=dial_us())
        )
        self._link: Link | None = None
        self._session_open = False
        #: Guards the next three where my thread's end meets the other threads.
        self._lock = threading.Lock()
        #: Why my thread has ended.
        self._end_error: CkptError | None = None
        #: Files that other threads wait for, by save number. My thread's end settles them.
        self._awaited: dict[int, _Job] = {}
        #: What other threads want done by mine, in order.
        self._orders: deque[Callable[[], None]] = deque()
        #: By save number, until the machine has forgotten the save. Only my thread's.
        self._jobs: dict[int, _Job] = {}
        #: half -> the save it was granted to. Only my thread's.
        self._halves: dict[int, int] = {}
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="ckpt-files", daemon=True)
        with ExitStack() as held:
            self._loop = LinkLoop()
            held.callback(self._loop.shut)
            self._wake = bell()
            held.callback(os.close, self._wake)
            self._sender = PayloadSender(SenderOptions(secret=self._secret, name=client_name()))
            held.pop_all()
        _senders.add(self)
        try:
            start_thread(self._thread)
        except Scarce:
            self._end(Aborted("it never began"))
            raise

    # ----------------------------------------------------------------------- any thread

    def send(self, run: RunName, step: Step, spool: Spool, name: str) -> Sent:
        """Bring a sealed spool to its targets under that name, and wait for it. Raises NoSpace,
        Aborted when its attempt went on without it, Unavailable, Refused.
        """
        member, plan, memory = spool.seal(name)
        job = _Job(next_save_number(), run, step, member, plan, memory)
        with self._lock:
            if self._end_error is not None:
                raise self._end_error
            self._awaited[job.save] = job
        try:
            self._order(lambda: self._begin(job))
            if not job.done.wait(SEND_TIMEOUT_S):
                raise Unavailable(
                    f"{run}: {name} is not on its targets after {SEND_TIMEOUT_S:g} s",
                    hint="see ckpt status",
                )
        except BaseException:  # An interrupt as well: nobody will commit it.
            self._order(lambda: self._drop(job, Aborted("its writer waits no more")))
            raise
        finally:
            with self._lock:
                self._awaited.pop(job.save, None)
        if job.error is not None:
            raise job.error
        assert job.payload is not None, "certified ones were planned"
        return Sent(job.payload, member)

    def give_up(self, sent: Sent) -> None:
        """Give up a file that will not be committed: its space goes back."""

        def drop() -> None:
            for job in self._jobs.values():
                if job.payload == sent.payload:
                    self._drop(job, Aborted("removed by its writer"))
                    return

        self._order(drop)

    def close(self) -> None:
        """Files that are not committed are given up with the session. Idempotent."""
        self._closing = True
        self._order(lambda: None)
        self._thread.join()

    def abandon(self) -> None:
        """In a forked child: the connections are the parent's, and end with it."""
        self._loop.abandon()
        self._sender.abandon()

    def _order(self, order: Callable[[], None]) -> None:
        """Have it done by my thread, if that still lives."""
        with self._lock:
            if self._end_error is None:
                self._orders.append(order)
                os.eventfd_write(self._wake, 1)

    # ----------------------------------------------------------------------- my thread

    def _run(self) -> None:
        try:
            self._handle(e.TrainerAttached(now_us()))
            while not self._closing:
                self._wait()
                while self._orders:
                    self._orders.popleft()()
                self._read_coordinator()
                self._read_sender()
                self._handle(Ticked(now_us()))
        except BaseException as error:
            self._end(CkptError(f"the file sender broke: {error!r}"))
            raise
        else:
            self._end(Aborted("the filesystem was closed"))

    def _end(self, error: CkptError) -> None:
        with self._lock:
            self._end_error = error
            for job in self._awaited.values():
                self._settle(job, error)
            os.close(self._wake)
        self._sender.close()
        self._loop.shut()

    def _wait(self) -> None:
        if self._link is not None and self._link.pulse is not None:
            self._link.pulse.expect(now_us(), not self._machine.idle)
        poll = select.poll()
        for descriptor in (self._wake, self._loop.fileno(), self._sender.wakeup_fd):
            poll.register(descriptor, select.POLLIN)
        poll.poll(TICK_MS if self._machine.saves else IDLE_TICK_MS)
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            return

    def _handle(self, event: e.StagerEvent) -> None:
        events = [event]
        while events:
            for action in self._machine.handle(events.pop(0)):
                events.extend(self._perform(action))

    def _perform(self, action: e.StagerAction) -> list[e.StagerEvent]:
        match action:
            case Send():
                if self._link is not None:
                    self._link.try_send(action.request, action.message, action.bulk)
            case e.DialCoordinator():
                return self._dial()
            case e.GrantHalf(save, half):
                self._halves[half] = save
            case e.RefuseSave(save, code, message, hint):
                self._settle(self._jobs.pop(save), error_from_wire(code, message, hint))
            case e.StartPayload(save, _, _, _, plan):
                return self._start(self._jobs[save], action, plan.payload)
            case e.AddSpares(payload, column, spares):
                self._sender.add_spares(payload, column, spares)
            case e.ReopenColumns(payload, columns, places):
                self._sender.reopen(payload, columns, places)
            case e.StopPayload(payload):
                self._sender.stop(payload)
            case e.ReleaseHalf(half):
                self._jobs.pop(self._halves.pop(half), None)
            case e.TellCertified(save):
                self._certified(self._jobs[save])
            case e.TellTrainer(save, outcome):
                return self._heard(save, outcome)
        return []  # Also for reports, and for what only ranks have.

    # ----------------------------------------------------------------------- one file

    def _begin(self, job: _Job) -> None:
        self._jobs[job.save] = job
        policy = e.FullPolicy.ERROR
        self._handle(e.HalfAsked(now_us(), job.save, job.run, job.step, policy, job.member.name))
        if job.done.is_set():
            return
        self._handle(
            e.PayloadHandedOver(
                now_us=now_us(),
                save=job.save,
                payload_bytes=job.plan.payload_bytes,
                document_offset=job.plan.document_offset,
                document_bytes=len(job.plan.document),
                replicas=ReplicaPolicy.ABORT,
                stall_us=0,
            )
        )

    def _start(self, job: _Job, action: e.StartPayload, payload: PayloadId) -> list[e.StagerEvent]:
        assert job.memory is not None
        job.payload = payload
        self._sender.start(action, job.memory)
        table = encode_table(member_table(payload.rank, job.member))
        events: list[e.StagerEvent] = [e.TableReady(now_us(), job.save, table)]
        if job.error is not None:  # Its writer went before it was planned.
            error = job.error
            events.append(e.PayloadFailed(now_us(), payload, error.code, error.message))
        return events

    def _certified(self, job: _Job) -> None:
        job.certified = True
        if job.memory is not None and job.payload is not None:
            self._sender.stop(job.payload)  # PayloadStopped frees the memory.

    def _heard(self, save: int, outcome: e.Outcome) -> list[e.StagerEvent]:
        job = self._jobs.get(save)
        if job is not None:
            match outcome:
                case e.SaveFailed(code, message, hint):
                    self._settle(job, error_from_wire(code, message, hint))
                case e.SaveCommitted(info) if not job.certified:
                    text = f"{info.checkpoint} was committed without {job.member.name}"
                    self._settle(job, Aborted(text, hint="write the file again"))
                case e.SaveCommitted(info):
                    self._settle(job, None)
                    self._on_committed(info.checkpoint)
        return [e.OutcomeHeard(now_us(), save)]

    def _drop(self, job: _Job, error: Aborted) -> None:
        self._settle(job, error)
        if job.payload is not None:
            self._handle(e.PayloadFailed(now_us(), job.payload, error.code, error.message))

    def _settle(self, job: _Job, error: CkptError | None) -> None:
        """The first word counts."""
        if not job.done.is_set():
            job.error = error
            job.done.set()

    def _stopped(self, payload: PayloadId) -> None:
        for job in self._jobs.values():
            if job.payload == payload:
                job.memory = None
                if job.certified:
                    self._settle(job, None)

    # ----------------------------------------------------------------------- coordinator, targets

    def _dial(self) -> list[e.StagerEvent]:
        try:
            address = self._locator.address()
        except CkptError:
            return [e.DialFailed(now_us())]
        self._link = self._loop.connect(address, Caller(self._secret, Role.STAGER, client_name()))
        return []

    def _read_coordinator(self) -> None:
        for event in self._loop.poll(0):
            match event:
                case LinkOpened(link, peer):
                    self._session_open = True
                    self._handle(SessionOpened(now_us(), link.session, peer.role, peer.name))
                case LinkReceived(link, request, bulk=bulk):
                    view = bulk.view if bulk is not None else b""
                    self._handle(Received(now_us(), link.session, request, event.message, view))
                    if bulk is not None:
                        bulk.release()
                case LinkClosed(link):
                    self._link = None
                    opened, self._session_open = self._session_open, False
                    self._handle(
                        SessionClosed(now_us(), link.session) if opened else e.DialFailed(now_us())
                    )
                case _:
                    continue

    def _read_sender(self) -> None:
        for result in self._sender.results():
            if isinstance(result, e.PayloadStopped):
                self._stopped(result.payload)
            self._handle(result)


def _abandon_in_child() -> None:
    for sender in list(_senders):
        sender.abandon()


os.register_at_fork(after_in_child=_abandon_in_child)
