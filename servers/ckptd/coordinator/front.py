"""The port of a coordinator over all its terms: who leads serves whoever comes, who stands by sends
everybody on.

    peer that proved itself, while a shell leads:  one of its sessions
                             while none does:      Failed, with where the leader listens
                             while nobody can:     people hear why (`reception`); Failed for others

Sessions of other coordinators are held open and say nothing: they end when this process does.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Final, Protocol

from msgspec.structs import replace as replaced

from ckpt.aio.net.address import TcpAddress
from ckpt.aio.net.bulk import Bulk, BulkRules
from ckpt.aio.net.serving.server import Server, serve
from ckpt.aio.net.wire_policy import WirePolicy
from ckpt.aio.slots import SlotPool
from ckpt.base.errors import Unavailable
from ckpt.base.ids import BootId, RunName, Step
from ckpt.base.units import US_PER_S, MiB
from ckpt.format.messages import Message
from ckpt.format.messages.hello import CoordinatorsNamed, Failed, Ping, Pong, Role
from ckpt.format.messages.speaking import refusal
from ckpt.format.messages.versions import since
from ckpt.native.version import release
from ckpt.protocol.coordinator.reading.answers import Check
from ckpt.protocol.coordinator.reading.coordinator_answers import CoordinatorView
from ckpt.protocol.events import Session
from ckpt.protocol.handshake import Established, Identity
from ckpt.protocol.resting import REST_US
from ckptd import config as options
from ckptd.coordinator.config import CoordinatorConfig
from ckptd.coordinator.metrics import health_family
from ckptd.coordinator.reception import Reception
from ckptd.coordinator.shell import CoordinatorShell
from ckptd.http.exposition import Family, render
from ckptd.http.plane import served
from ckptd.log import write_ready_line
from ckptd.target.metrics import build_info

TICK_S: Final = 0.05
REST_S: Final = REST_US / US_PER_S
"""Longest pause between two ticks, where nothing is due."""
SLOT_BYTES: Final = 64 * MiB
"""Memory for bulks of requests (tables); what does not fit waits in the sender."""
CLOSE_LINGER_S: Final = 1.0


class People(Protocol):
    """Answers what is asked about the coordinators themselves, independent of any term."""

    def answers(self, session: Session, request: int, message: Message) -> bool:
        """Answer a question about coordinators. False when the message belongs to a term."""

    def opened(self, session: Session, peer: Established) -> None:
        """Note a session that a standby may hold."""

    def speaking(self) -> Mapping[str, int]:
        """Which version of the protocol each other coordinator speaks, by its id."""

    def heard(self, session: Session, request: int, message: Message, bulk: Bulk | None) -> bool:
        """Whether it answered what I asked of who stands by. The bulk stays the caller's."""

    def closed(self, session: Session) -> None:
        """Any that was open."""

    def checks(self) -> tuple[Check, ...]:
        """Of `ckpt status`."""

    def families(self) -> Iterator[Family]:
        """What Prometheus is answered beside what a term has to say."""


class Front:
    """I am the handler of the port and of the page. `server`, `view` and `bound` are set before
    anybody can come, `people` before I lead.
    """

    server: Server
    view: CoordinatorView
    bound: str
    """HOST:PORT at which I listen."""

    def __init__(self, cluster: str) -> None:
        self.leader = ""
        """Where another coordinator leads, as HOST:PORT; empty: nobody does, or I do."""
        self.people: People | None = None
        self._cluster = cluster
        self.reception = Reception(self)
        """For people, while nobody can lead."""
        self._shell: CoordinatorShell | None = None
        #: Of the present term, with who is there.
        self._sessions: dict[Session, Established] = {}
        #: While the clock rests.
        self._rest: asyncio.Timeout | None = None

    def lead(self, shell: CoordinatorShell, coordinators: tuple[str, ...] = ()) -> None:
        """Serve by this shell, under a new boot id. `coordinators`: where all listen."""
        boot = BootId(secrets.randbits(64) | 1)
        epoch = shell.machine.members.epoch
        self.leader = ""
        self.reception.close()
        self.server.identity = Identity(
            self._cluster, Role.COORDINATOR, "", boot, epoch, coordinators
        )
        self._shell = shell
        people = self.known_people
        shell.begin(self.server, self.view, people.checks, people.speaking, self.hasten)
        self.hasten()

    @property
    def cluster(self) -> str:
        """The id of the cluster."""
        return self._cluster

    @property
    def known_people(self) -> People:
        """They are known once anybody can come."""
        assert self.people is not None
        return self.people

    def named(self, coordinators: tuple[str, ...]) -> None:
        """Name these to peers from now on as all coordinators. Who is here hears of another one:
        the session may last until all others were replaced.
        """
        known = self.server.identity.coordinators
        self.server.identity = replace(self.server.identity, coordinators=coordinators)
        if set(coordinators) - set(known):
            said = CoordinatorsNamed(coordinators)
            for session, peer in list(self._sessions.items()):
                if since(said) <= peer.version:
                    self.server.send(session, 0, said)

    def retire(self) -> CoordinatorShell | None:
        """Let nobody in and hear nobody any more; returns the sessions that are open."""
        shell, self._shell = self._shell, None
        return shell

    async def run(self, stop: asyncio.Event, tick: Callable[[], float] = lambda: REST_S) -> None:
        """Run the shell's clock until then. `tick` is called beside it, and says in how many
        seconds it is due again.
        """
        while not stop.is_set():
            rest_s = min(REST_S, tick())
            if self._shell is not None:
                self._shell.tick()
                rest_s = min(rest_s, self._shell.rest(TICK_S))
            with suppress(TimeoutError):
                async with asyncio.timeout(max(TICK_S, rest_s)) as self._rest:
                    await stop.wait()
            self._rest = None

    def hasten(self) -> None:
        """Something happened: the clock goes on within a tick."""
        rest, soon_s = self._rest, asyncio.get_running_loop().time() + TICK_S
        if rest is None or rest.expired():
            return
        due_s = rest.when()
        if due_s is not None and due_s > soon_s:
            rest.reschedule(soon_s)

    # ----------------------------------------------------------------------- the port

    def turn_away(self, role: Role) -> Failed | None:
        """Why a peer that proved itself is not let in; the server asks for each."""
        if self._shell is not None or self.reception.admits(role):
            return None
        if self.leader:
            return Failed(
                Unavailable.code, f"this coordinator stands by: {self.leader} leads",
                leader=self.leader,
            )  # fmt: skip
        return self.reception.refusal()

    def opened(self, session: Session, peer: Established) -> None:
        if self._shell is None:
            self.reception.opened(session)
        elif peer.role is Role.COORDINATOR:
            self.known_people.opened(session, peer)
        else:
            self._sessions[session] = peer
            self._shell.opened(session, peer)

    def received(self, session: Session, request: int, message: Message, bulk: Bulk | None) -> None:
        if isinstance(message, Ping):
            self.server.send(session, request, Pong())
        elif session not in self._sessions or self._shell is None:
            if not self.known_people.heard(session, request, message, bulk):
                self.reception.received(session, request, message)
            if bulk is not None:
                bulk.release()
        elif (refused := refusal(self._sessions[session].role, message)) is not None:
            self.server.send(session, request, Failed(refused.code, refused.message))
            if bulk is not None:
                bulk.release()
        elif not self.known_people.answers(session, request, message):
            self._shell.received(session, request, message, bulk)

    def closed(self, session: Session, reason: str) -> None:
        self.reception.closed(session)
        if self.people is not None:
            self.people.closed(session)
        if session in self._sessions:
            del self._sessions[session]
            if self._shell is not None:
                self._shell.closed(session, reason)

    async def part(self, reason: str, linger_s: float) -> None:
        """End every session, once what was said to it has been sent."""
        self._sessions.clear()
        self.reception.close()
        await self.server.part(reason, linger_s=linger_s)

    # ----------------------------------------------------------------------- the page

    def answer(self, what: str, run: RunName | None, step: Step | None) -> bytes:
        """JSON of the term; raises Unavailable while another one leads."""
        if self._shell is None:
            turned = self.turn_away(Role.READER)
            assert turned is not None
            raise Unavailable(turned.message)
        return self._shell.answer(what, run, step)

    def metrics(self) -> str:
        """Prometheus text."""
        shell, people = self._shell, self.people
        own = self._families_without_term() if shell is None else shell.families()
        return render((*own, *(() if people is None else people.families())))

    def _families_without_term(self) -> Iterator[Family]:
        """Who stands by leaves the checks to the leader, and says them while nobody can lead."""
        yield build_info(release())
        if self.reception.why:
            yield health_family(self.known_people.checks())

    def is_ready(self) -> bool:
        """It leads, its catalog takes entries and its targets vouch for it."""
        return self._shell is not None and self._shell.is_ready()

    def why_not_ready(self) -> str:
        """For people."""
        turned = self.turn_away(Role.READER)
        return "not ready" if turned is None else turned.message


@asynccontextmanager
async def listening(config: CoordinatorConfig, secret: bytes, cluster: str) -> AsyncIterator[Front]:
    """Listen at the configured addresses while the block runs; nobody leads at first. Raises
    Unavailable for an address that cannot be had.
    """
    front = Front(cluster)
    host, port = options.host_and_port(config.listen)
    front.server = server = serve(
        front, listen=(host, port), unix=None, secret=secret,
        identity=Identity(cluster, Role.COORDINATOR, "", BootId(1)), pool=SlotPool(SLOT_BYTES),
        bulks=BulkRules(wire=WirePolicy.parse(config.wire)), turn_away=front.turn_away,
    )  # fmt: skip
    plane = served(config.http, front, answers=front, secret=secret, directory=config.directory)
    try:
        view = CoordinatorView(reached_at(config, server.port), os.getpid(), wire=config.wire)
        front.view = view
        front.bound = str(TcpAddress(host, server.port))
        async with plane as http:
            front.view = replaced(view, http=http)
            yield front
    finally:
        front.retire()
        await server.close(linger_s=CLOSE_LINGER_S)


def reached_at(config: CoordinatorConfig, port: int) -> str:
    """HOST:PORT at which others reach this process."""
    host, _ = options.host_and_port(config.listen)
    # A wildcard is no address: others reach this host by its name.
    own = socket.gethostname() if host in ("0.0.0.0", "::") else host
    return str(TcpAddress(config.advertise or own, port))


def say_ready(front: Front, **more: object) -> None:
    """The ready line, on standard output."""
    view, identity = front.view, front.server.identity
    ready: dict[str, object] = {"ready": "coordinator", "address": front.bound, "pid": view.pid}
    ready |= {"cluster": identity.cluster, "boot": f"{identity.boot:016x}", **more}
    ready |= {"http": view.http} if view.http else {}
    write_ready_line(ready)
