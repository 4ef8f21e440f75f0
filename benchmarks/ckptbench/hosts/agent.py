"""`ckptbench agent`: I run ranks here for a `ckptbench --hosts` that knows the same secret.

Whoever knows the secret may have this user's processes write where their plans say: run me as a
user who may do no more, and listen where only the cluster's network reaches. Groups belong to the
session that started them and end with it.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from ckpt.aio.net.bulk import Bulk
from ckpt.aio.net.serving.server import Server, serve
from ckpt.aio.slots import SlotPool
from ckpt.base.errors import CkptError, Refused
from ckpt.base.ids import BootId
from ckpt.base.limits import FRAME_BULK_BYTES_MAX
from ckpt.format.messages import Message
from ckpt.format.messages.asking import Answer, Ask
from ckpt.format.messages.hello import Failed, Role
from ckpt.protocol.events import Session
from ckpt.protocol.handshake import Established, Identity
from ckpt_client.local.processes import MARK_NAME, find_marked
from ckptbench import proc
from ckptbench.engines import check_packages
from ckptbench.hosts.words import (
    CLUSTER,
    LINES_MAX,
    RANKS_MAX,
    WHAT,
    AgentPing,
    Drop,
    End,
    Reply,
    Request,
    Start,
    Tell,
    requests,
)
from ckptbench.ranks import Ranks
from ckptbench.run.counters import HostCounters

WORKERS: Final = 16
"""Requests that are worked on at once."""


@dataclass(slots=True)
class _Group:
    """Ranks of one session."""

    session: Session
    ranks: Ranks
    mark: str
    """In the environment of all that the ranks started."""
    number: int = 0
    """Of the last Tell."""
    last: Reply = field(default_factory=Reply)
    """To it: this may be asked for again after a lost connection."""

    def stagers(self) -> list[int]:
        """Of the ranks, as they are now."""
        return [one.pid for one in find_marked(self.mark) if one.is_stager]


class Agent:
    """I answer requests; each on a thread, since ranks take their time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="agent")
        self._loop = asyncio.get_running_loop()
        #: Groups of ranks that run here, by name. Only the loop adds and removes; a thread of the
        #: pool speaks with a group's ranks.
        self._groups: dict[str, _Group] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.server: Server | None = None

    # ----------------------------------------------------------------------- SessionHandler

    def opened(self, session: Session, peer: Established) -> None:
        """A run has come; it begins with a request."""

    def received(self, session: Session, request: int, message: Message, bulk: Bulk | None) -> None:
        text = bytes(bulk.view) if bulk is not None else b""
        if bulk is not None:
            bulk.release()
        task = self._loop.create_task(self._answer(session, request, message, text))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def closed(self, session: Session, reason: str) -> None:
        for name in [name for name, one in self._groups.items() if one.session == session]:
            self._groups.pop(name).ranks.abandon()

    def close(self) -> None:
        """End everything that runs here."""
        for group in self._groups.values():
            group.ranks.close()
        self._pool.shutdown()

    # ----------------------------------------------------------------------- inside

    async def _answer(self, session: Session, request: int, message: Message, text: bytes) -> None:
        assert self.server is not None, "set before anybody can come"
        try:
            if not isinstance(message, Ask) or message.what != WHAT:
                raise Refused(f"an agent does not know a {type(message).__name__}")
            reply = await self._perform(session, requests.decode(text))
        except (CkptError, msgspec.DecodeError, OSError, ValueError) as error:
            self.server.send(session, request, Failed(Refused.code, str(error)[:500]))
            return
        document = msgspec.json.encode(reply)
        if len(document) > FRAME_BULK_BYTES_MAX:
            self.server.send(session, request, Failed(Refused.code, "the answer is too long"))
        else:
            self.server.send(session, request, Answer(), document)

    async def _perform(self, session: Session, asked: Request) -> Reply:
        match asked:
            case AgentPing():
                return Reply()
            case Drop(paths):
                files = [Path(path) for path in paths]
                await self._aside(lambda: proc.drop_cached(files))
                return Reply()
            case Start():
                await self._start(session, asked)
                return Reply()
            case Tell():
                return await self._tell(self._find(session, asked.group), asked)
            case End(name, kindly):
                group = self._groups.pop(name, None)
                if group is not None and group.session == session:
                    await self._aside(group.ranks.finish if kindly else group.ranks.close)
                return Reply()

    async def _start(self, session: Session, asked: Start) -> None:
        if asked.group in self._groups:
            return  # Asked again: they run.
        if not 0 < len(asked.plans) <= RANKS_MAX:
            raise Refused(f"{len(asked.plans)} ranks: from 1 to {RANKS_MAX}")
        for plan in asked.plans:
            check_packages(plan.engine.engine)
        directory = Path(tempfile.mkdtemp(dir=self._directory))

        mark = secrets.token_hex(8)

        def start() -> Ranks:
            return Ranks(asked.plans, {**os.environ, MARK_NAME: mark}, directory)

        ranks = await self._loop.run_in_executor(self._pool, start)
        self._groups[asked.group] = _Group(session, ranks, mark)

    async def _tell(self, group: _Group, asked: Tell) -> Reply:
        if asked.number == group.number:
            return group.last
        if not 0 < len(asked.lines) <= LINES_MAX:
            raise Refused(f"{len(asked.lines)} lines: from 1 to {LINES_MAX}")

        def tell() -> Reply:
            counters = HostCounters(group.ranks.pids, group.stagers())
            group.ranks.begin(*asked.lines)
            answers = tuple(tuple(group.ranks.answers()) for _ in asked.lines)
            return Reply(answers, counters.since(group.stagers()))

        group.last = await self._loop.run_in_executor(self._pool, tell)
        group.number = asked.number
        return group.last

    def _find(self, session: Session, name: str) -> _Group:
        group = self._groups.get(name)
        if group is None or group.session != session:
            raise Refused("this session started no such ranks")
        return group

    async def _aside(self, work: Callable[[], None]) -> None:
        await self._loop.run_in_executor(self._pool, work)


async def run_agent(listen: tuple[str, int], secret: bytes, ready: Callable[[int], None]) -> None:
    """Until SIGTERM or SIGINT; calls `ready` with the port. Raises Unavailable."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    identity = Identity(CLUSTER, Role.ADMIN, "agent", BootId(secrets.randbits(62)))
    with tempfile.TemporaryDirectory(prefix="ckptbench-agent-") as directory:
        agent = Agent(Path(directory))
        pool = SlotPool(2 * FRAME_BULK_BYTES_MAX, ahead=True)
        server = serve(agent, listen=listen, unix=None, secret=secret, identity=identity, pool=pool)
        agent.server = server
        try:
            ready(server.port)
            await stop.wait()
        finally:
            await server.close()
            agent.close()
