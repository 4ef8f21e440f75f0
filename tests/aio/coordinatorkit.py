"""Coordinators of one cluster as servers in threads, of which one leads; and addresses of none."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from ckpt.base.errors import Unavailable
from ckpt.base.ids import BootId
from ckpt.format.messages.asking import Answer, Ask
from ckpt.format.messages.hello import Failed, Role
from ckpt.protocol.handshake import Identity
from ckpt.testing.network import Heard, RecordingHandler
from tests.aio.netkit import ServerThread, serving


class Member:
    """One coordinator: it answers questions with its name while it leads."""

    def __init__(self, stack: ExitStack, name: str, cluster: str) -> None:
        self.name = name
        self.leads = False
        self.leader: str | None = ""
        """Whom it names while it stands by; None: nobody is turned away."""
        self.turned_away = 0
        handler = RecordingHandler()
        identity = Identity(cluster, Role.COORDINATOR, "", BootId(5))
        self.running: ServerThread = stack.enter_context(
            serving(identity=identity, handler=handler, turn_away=self._turn_away)
        )
        handler.answer = self._answer

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.running.server.port}"

    @property
    def peers(self) -> list[Role]:
        """Who came in, in order."""
        return [peer.role for _, peer in self.running.handler.opened_]

    def follow(self, leader: Member | None) -> None:
        """From now on it stands by; who is here is sent away."""
        self.leads, self.leader = False, "" if leader is None else leader.address
        self.running.do(self._send_away)

    def lead(self, *members: Member) -> None:
        """It leads, and names these."""
        server, addresses = self.running.server, tuple(one.address for one in members)

        def begin() -> None:
            self.leads = True
            server.identity = replace(server.identity, coordinators=addresses)

        self.running.do(begin)

    def _send_away(self) -> None:
        gone = {session for session, _ in self.running.handler.closed_}
        for session, _ in self.running.handler.opened_:
            if session not in gone:
                self.running.server.close_session(session, "it leads no more")

    def _turn_away(self, _role: Role) -> Failed | None:
        if self.leads:
            return None
        self.turned_away += 1
        text = f"{self.name} stands by"
        return Failed(Unavailable.code, text, leader=self.leader or "")

    def _answer(self, heard: Heard) -> None:
        if isinstance(heard.message, Ask):
            server = self.running.server
            server.send(heard.session, heard.request, Answer(), self.name.encode())


@contextmanager
def coordinators(names: str, cluster: str = "cluster-a") -> Iterator[list[Member]]:
    """One for each letter; all stand by, and know of no leader."""
    with ExitStack() as stack:
        yield [Member(stack, name, cluster) for name in names]


def dead_address() -> str:
    """Nobody listens there."""
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        return f"127.0.0.1:{nobody.getsockname()[1]}"


@contextmanager
def silent_address() -> Iterator[str]:
    """Connections stand and never hear a word."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        yield f"127.0.0.1:{silent.getsockname()[1]}"


@contextmanager
def full_address() -> Iterator[str]:
    """Not even a connection stands: what comes is dropped, as where a host is gone."""
    with ExitStack() as stack:
        full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                filler.connect(full.getsockname())
        yield f"127.0.0.1:{full.getsockname()[1]}"
