"""The shell around one term's coordinator machine. It decides nothing.

    sessions, ticks, tickets --events--> CoordinatorMachine --actions--> frames, catalog, log

An error of the catalog ends the term: the next one loads what it really holds.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from ckpt.aio.catalog import Catalog
from ckpt.aio.clock import now_us
from ckpt.aio.net.bulk import Bulk
from ckpt.aio.net.serving.server import Server
from ckpt.aio.net.serving.server_limits import Pressure
from ckpt.base.errors import CkptError, Corrupt, NoSpace, Refused, Unavailable
from ckpt.base.ids import CheckpointId, RunName, Step
from ckpt.base.limits import STANDSTILL_US
from ckpt.base.units import US_PER_S
from ckpt.format.messages import Message
from ckpt.format.messages.asking import Answer, Ask
from ckpt.format.messages.hello import Failed, Role
from ckpt.native.version import release
from ckpt.protocol.coordinator import catalog as entries
from ckpt.protocol.coordinator.catalog import Persist, Persisted
from ckpt.protocol.coordinator.desk import FIRST_QUESTION, Action, Worked, WorkLeft, nothing
from ckpt.protocol.coordinator.machine import CoordinatorMachine, CoordinatorPolicy, Event
from ckpt.protocol.coordinator.reading.answers import Check
from ckpt.protocol.coordinator.reading.checks import check, connections_full
from ckpt.protocol.coordinator.reading.coordinator_answers import CoordinatorView
from ckpt.protocol.coordinator.room import RoomSeen
from ckpt.protocol.events import (
    CloseSession,
    Received,
    Report,
    Send,
    Session,
    SessionClosed,
    SessionOpened,
    StoodStill,
    Ticked,
)
from ckpt.protocol.handshake import Established
from ckptd.catalog.backup import backup_path
from ckptd.coordinator.metrics import CommitStatistics, coordinator_families
from ckptd.door_watch import DoorWatch
from ckptd.http.exposition import Family
from ckptd.log import Reporter

_FINISH_STEP_S: Final = 0.01
FINISH_S: Final = 10.0
"""How long what waits for the catalog may take at a term's end."""

BACKUP: Final = "backup"
"""The question that this shell answers itself: the machine has no catalog file."""

CLIENT_ROLES: Final = (Role.STAGER, Role.READER, Role.ADMIN)


class CoordinatorShell:
    """I perform the machine's actions in order, one event at a time, on the loop's thread.

    `on_failed` hears once of the error that ends the term; nothing is stored from then on.
    """

    def __init__(
        self, policy: CoordinatorPolicy, catalog: Catalog, directory: Path, secret: bytes,
        report: Reporter, on_failed: Callable[[CkptError], None],
    ) -> None:  # fmt: skip
        """Raises Corrupt for a catalog that cannot be read, with the command that makes another."""
        try:
            self.machine = CoordinatorMachine(
                policy, catalog.image, secret=secret, wall_s=time.time
            )
        except Corrupt as error:
            command = policy.mend.replace("{targets}", "HOST:PORT ...")
            raise Corrupt(error.message, hint=f"run: {command}") from None
        self.ended = False
        """Nothing is fed, sent or stored any more."""
        self._on_failed = on_failed
        self._server: Server | None = None
        self._door: DoorWatch | None = None
        self._catalog = catalog
        self._directory = directory
        self._report = report
        self._loop = asyncio.get_running_loop()
        #: Events that came while another was handled; a send may end a session.
        self._events: deque[Event] = deque()
        self._handling = False
        #: Why the catalog had no room when I looked: what the machine knows.
        self._full: NoSpace | None = None
        #: Role of every authenticated peer.
        self._roles: dict[Session, Role] = {}
        self._idle_since_us = self._ticked_us = now_us()
        #: So long the next tick may stay away, but for the shortest pause.
        self._alone_until_us = 0
        self._hasten: Callable[[], None] = nothing
        #: Tickets that the catalog has not made durable yet, with the checkpoints that they commit.
        self._tickets: dict[int, list[CheckpointId]] = {}
        self._statistics = CommitStatistics()

    def begin(
        self, server: Server, view: CoordinatorView, checks: Callable[[], tuple[Check, ...]],
        colleagues: Callable[[], Mapping[str, int]], hasten: Callable[[], None],
    ) -> None:  # fmt: skip
        """Take the server; what a restart has to do happens now. `colleagues`: what the other
        coordinators speak. `hasten`: the next tick is due soon.
        """
        self._server = server
        self._hasten = hasten
        self._door = DoorWatch(server, self._report)
        self.machine.views.coordinator = view
        self.machine.views.all_coordinators = lambda: server.identity.coordinators
        self.machine.upgrading.colleagues = colleagues
        self.machine.views.own_checks = lambda: (*self._own_checks(), *checks())
        self._catalog.start(self.durable, self.failed)
        self.tick()

    async def finish(self) -> bool:
        """Nobody is heard any more: what waits for the catalog is stored and acknowledged. False
        when that was not all in FINISH_S. Its sessions are as they were.
        """
        deadline_us = now_us() + int(FINISH_S * US_PER_S)
        # Asked again and again, as happens once in a term.
        while self._tickets and self._may_finish() and now_us() < deadline_us:  # noqa: ASYNC110
            await asyncio.sleep(_FINISH_STEP_S)
        self.end()
        return not self._tickets

    def _may_finish(self) -> bool:
        return not self.ended and self._catalog.full is None

    def end(self) -> None:
        """End the term: whatever comes from now on is too late."""
        self.ended = True

    # ----------------------------------------------------------------------- sessions

    def opened(self, session: Session, peer: Established) -> None:
        self._roles[session] = peer.role
        self.feed(SessionOpened(now_us(), session, peer.role, peer.name, peer.version))

    def received(self, session: Session, request: int, message: Message, bulk: Bulk | None) -> None:
        if isinstance(message, Ask) and message.what == BACKUP:
            self._back_up(session, request)
            return
        content = b"" if bulk is None else bulk.view
        if self._handling:
            content = bytes(content)  # It is handled later, when the slot may be another's.
        self.feed(Received(now_us(), session, request, message, content))
        if bulk is not None:
            bulk.release()

    def closed(self, session: Session, reason: str) -> None:
        role = self._roles.pop(session)
        if role in CLIENT_ROLES and not self.client_count:
            self._idle_since_us = now_us()
        if session not in self.machine.members.refused:  # Why it was is in the log, once.
            fields = {"session": session, "role": role.value, "reason": reason}
            self._report("info", "session closed", fields)
        self.feed(SessionClosed(now_us(), session))

    @property
    def client_count(self) -> int:
        """Sessions of trainers, readers and tools."""
        return sum(role in CLIENT_ROLES for role in self._roles.values())

    # ----------------------------------------------------------------------- the machine

    def feed(self, event: Event) -> None:
        """Handle one event, and those that its actions cause, in order."""
        if self.ended:
            return
        self._events.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._events:
                for action in self.machine.handle(self._events.popleft()):
                    self._perform(action)
        finally:
            self._handling = False
        if self.machine.resting.stirred_us >= self._ticked_us:
            self._alone_until_us = 0
            self._hasten()
        assert self._server is not None
        self._server.epoch = self.machine.members.epoch
        needs = self.machine.upgrading.needs
        if self._server.identity.needs != needs:
            self._server.identity = replace(self._server.identity, needs=needs)

    def tick(self) -> None:
        """Let time pass. If the clock leapt, this process or its loop was stopped."""
        last_us, self._ticked_us = max(self._ticked_us, self._alone_until_us), now_us()
        gap_us = self._ticked_us - last_us
        if gap_us >= STANDSTILL_US:
            self._report("warning", "the coordinator stood still", {"for_s": gap_us / US_PER_S})
            self.feed(StoodStill(self._ticked_us, gap_us))
        self._look_at_room()
        self.feed(Ticked(self._ticked_us))
        assert self._door is not None
        self._door.look(self._ticked_us)

    def rest(self, tick_s: float) -> float:
        """Seconds until the next tick, at least `tick_s`; what happens meanwhile hastens it."""
        tick_us = round(tick_s * US_PER_S)
        rest_us = self.machine.resting.rest_us(tick_us)
        self._alone_until_us = self._ticked_us + rest_us - tick_us
        return rest_us / US_PER_S

    def _look_at_room(self) -> None:
        """What stores the catalog is full, or has room again."""
        full, before = self._catalog.full, self._full
        self._full = full
        if (full is None) is (before is None):
            return
        if full is None:
            self._report("info", "the catalog has room again", {})
            self.feed(RoomSeen(self._ticked_us))
        else:
            fields = {"why": full.message, "remedy": full.hint}
            self._report("error", "the catalog has no room: no save begins", fields)
            self.feed(RoomSeen(self._ticked_us, full.message, full.hint))

    def durable(self, ticket: int) -> None:
        """Called from any thread, by the catalog."""
        self._loop.call_soon_threadsafe(self._persisted, ticket)

    def failed(self, error: CkptError) -> None:
        """Called from any thread, by the catalog."""
        self._loop.call_soon_threadsafe(self._stop_for, error)

    def _persisted(self, ticket: int) -> None:
        if self.ended:
            return  # The next term finds it.
        committed = self._tickets.pop(ticket)
        self.feed(Persisted(now_us(), ticket))
        for id in committed:
            checkpoint = self.machine.checkpoints.get(id)
            if checkpoint is not None:
                self._statistics.committed(checkpoint.info)

    def _perform(self, action: Action) -> None:
        assert self._server is not None
        match action:
            case Send():
                self._send(action)
            case CloseSession():
                self._server.close_session(action.session, action.reason)
            case Report():
                self._report(action.level, action.text, dict(action.fields))
            case Persist():
                self._persist(action)
            case WorkLeft():
                # After what the loop has heard meanwhile.
                self._loop.call_soon(self._go_on)

    def _send(self, action: Send) -> None:
        """Who cannot be sent something hears that, or is cut off: it is nobody else's business, and
        what follows in the same event is done.
        """
        assert self._server is not None
        session, request = action.session, action.request
        try:
            self._server.send(session, request, action.message, action.bulk)
        except Refused as error:
            self._report("error", "cannot be sent", {"session": session, "why": error.message})
            if 0 < request < FIRST_QUESTION:
                self._fail(session, request, error)
            else:
                self._server.close_session(session, error.message)

    def _go_on(self) -> None:
        self.feed(Worked(now_us()))

    def _persist(self, action: Persist) -> None:
        self._tickets[action.ticket] = [
            entry.checkpoint for entry in action.entries if isinstance(entry, entries.RowCommitted)
        ]
        self._statistics.aborted_count += sum(
            isinstance(entry, entries.RowAborted) for entry in action.entries
        )
        try:
            self._catalog.submit(action)
        except CkptError as error:
            self._stop_for(error)

    def _back_up(self, session: Session, request: int) -> None:
        """Copy the catalog, once its targets vouch for it; the answer says where the copy is."""
        position = self.machine.vouching.position
        problem = self.machine.vouching.problem() or self._full
        if problem is not None or position is None:
            self._fail(session, request, problem or Unavailable("the catalog has no entry yet"))
            return
        path = backup_path(self._directory, position).absolute()

        def answer(failure: CkptError | None) -> None:
            if self.ended or self._server is None:
                return
            if failure is not None:
                self._fail(session, request, failure)
                return
            size, cluster = path.stat().st_size, self._catalog.cluster
            told = {"path": str(path), "cluster": cluster, "bytes": size}
            self._server.send(session, request, Answer(), json.dumps(told).encode())

        def copied(failure: CkptError | None) -> None:
            self._loop.call_soon_threadsafe(answer, failure)

        try:
            self._catalog.copy_to(path, copied)
        except CkptError as error:
            self._fail(session, request, error)

    def _fail(self, session: Session, request: int, error: CkptError) -> None:
        assert self._server is not None
        self._server.send(session, request, Failed(error.code, error.message, error.hint))

    def _stop_for(self, error: CkptError) -> None:
        if not self.ended:
            self.end()
            self._on_failed(error)

    # ----------------------------------------------------------------------- reports

    def answer(self, what: str, run: RunName | None, step: Step | None) -> bytes:
        """JSON; `sessions` is this shell's own, all else the machine's."""
        if what != "sessions":
            return self.machine.views.answer(what, run, step)
        idle_s = 0.0 if self.client_count else (now_us() - self._idle_since_us) / US_PER_S
        members, catalog = self.machine.members, self.machine.vouching.standing.value
        live = [target.id for target in members.live()]
        refused = [claim.target for claim in members.claims() if claim.replaces]
        told = {"clients": self.client_count, "idle_s": idle_s, "live": live, "refused": refused}
        lacks = bool(self.machine.repairs.waiting())
        return json.dumps({**told, "catalog": catalog, "repair_due": lacks}).encode()

    def _own_checks(self) -> tuple[Check, ...]:
        found: list[Check] = []
        if self._full is not None:
            found.append(check("CATALOG_FULL", self._full.message, self._full.hint))
        need = "" if self._server is None else self._server.need()
        if need:
            address = self.machine.views.coordinator.address
            found.append(connections_full(f"the coordinator {need}", os.getpid(), address))
        return tuple(found)

    def families(self) -> Iterator[Family]:
        """What Prometheus is answered."""
        return coordinator_families(
            version=release(),
            machine=self.machine,
            stores=self.machine.views.stores(),
            statistics=self._statistics,
            sessions=Counter(self._roles.values()),
            tickets_waiting=len(self._tickets),
            catalog_full=self._full is not None,
            pressure=self._server.pressure() if self._server is not None else Pressure(),
        )

    def is_ready(self) -> bool:
        """The catalog takes entries and its targets vouch for it."""
        return not self.ended and self.machine.vouching.serves
