"""Is the process that leads gone? Who stands by holds a session to it, which the kernel ends at
once when the process is; a lease would take seconds to say so.

A session that ends proves nothing by itself: networks break, and leaders step down. Only when the
port refuses as well is the process gone. Silence is left to the lease.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final

from ckpt.aio.clock import draw
from ckpt.aio.net.address import endpoints_by_resolver, parse_address
from ckpt.aio.net.bulk import Bulk
from ckpt.aio.net.dial import Dialer
from ckpt.base.errors import CkptError
from ckpt.base.rests import Rests
from ckpt.format.messages import Message
from ckpt.format.messages.asking import Answer, Ask
from ckpt.format.messages.hello import Role
from ckpt.protocol.coordinator.leading import KeyHolder
from ckpt.protocol.events import Session
from ckpt.protocol.handshake import Caller, Established

PROBE_S: Final = 0.5
"""Patience with the port."""
REST_S: Final = (0.02, 0.5)
"""First and longest pause between two probes."""


class LeaderWatch:
    """I watch one leader at a time. `on_gone` hears who it was, once."""

    def __init__(
        self, caller: Caller, on_gone: Callable[[KeyHolder], None],
        answer: Callable[[str], bytes | None],
    ) -> None:  # fmt: skip
        """caller: in the role of a coordinator, and for one. `answer` is what I say to what the
        leader asks; None: nothing.
        """
        assert caller.role is caller.server_role is Role.COORDINATOR
        self._caller = caller
        self._on_gone = on_gone
        self._answer = answer
        self._holder: KeyHolder | None = None
        self._task: asyncio.Task[None] | None = None

    def follow(self, holder: KeyHolder | None) -> None:
        """Watch this one from now on; None: nobody."""
        if holder == self._holder:
            return
        self._holder = holder
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if holder is not None and holder.address:
            self._task = asyncio.get_running_loop().create_task(self._watch(holder))

    async def close(self) -> None:
        """Stop watching."""
        task = self._task
        self.follow(None)
        if task is not None:
            await asyncio.gather(task, return_exceptions=True)

    async def _watch(self, holder: KeyHolder) -> None:
        ended = _SessionsEnd()
        dialer = Dialer(ended, self._caller, address=holder.address)

        def answer(session: Session, request: int, what: str) -> None:
            said = self._answer(what)
            if said is not None:
                dialer.send(session, request, Answer(), said)

        ended.asked = answer
        dialer.start()
        try:
            while True:
                await ended.once.wait()
                ended.once.clear()
                if await _ends(dialer, holder.address):
                    self._on_gone(holder)
                    return
        finally:
            await dialer.close()


class _SessionsEnd:
    """I hear that a session ended, and what is asked on it."""

    def __init__(self) -> None:
        self.once = asyncio.Event()
        self.asked: Callable[[Session, int, str], None] | None = None
        """Hears what the leader asks."""

    def opened(self, session: Session, peer: Established) -> None:
        """It stands; who leads may ask."""

    def received(self, session: Session, request: int, message: Message, bulk: Bulk | None) -> None:
        if isinstance(message, Ask) and self.asked is not None:
            self.asked(session, request, message.what)
        if bulk is not None:
            bulk.release()

    def closed(self, session: Session, reason: str) -> None:
        self.once.set()


async def _ends(dialer: Dialer, address: str) -> bool:
    """True once the port refuses; False when a session stands again. A process that is killed lets
    go of its connections one after the other, and its port may be the last.
    """
    rests = Rests(*REST_S, draw)
    while dialer.session is None:
        if await _refuses(address):
            return True
        await asyncio.sleep(rests.next_s())
    return False


async def _refuses(address: str) -> bool:
    """Nobody listens there any more, as its kernel says: at none of a name's addresses."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(PROBE_S):
            where = parse_address(address)
            for found in await loop.run_in_executor(None, endpoints_by_resolver, where):
                with socket.socket(found.family, socket.SOCK_STREAM) as probe:
                    probe.setblocking(False)
                    try:
                        await loop.sock_connect(probe, found.sockaddr)
                    except ConnectionRefusedError:
                        continue
                    return False
    except (OSError, TimeoutError, CkptError):
        return False
    return True
