"""The daemon's client of etcd, whose requests come to the world's etcd instead of a socket."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator

from ckpt.base.errors import Unavailable
from ckptd.catalog.etcd.client import EtcdClient
from ckptd.catalog.etcd.credentials import Credentials
from ckptd.catalog.etcd.identity import EtcdIdentity
from ckptd.catalog.etcd.url import EtcdUrl
from ckptd.catalog.etcd.words import KeyChanges, WatchKeys, failure_of
from tests.sim.leading.cluster import BROKEN, MEMBERS, REFUSED, Asker, EtcdCluster

URL = EtcdUrl(MEMBERS, "sim")


class SimEtcdClient(EtcdClient):
    """I ask as the daemon's does: one member after the other, again and again."""

    def __init__(self, etcd: EtcdCluster, asker: Asker) -> None:
        self.url = URL
        self.mark: object = None
        """What is said beside each transaction of the writer, for those who look on."""
        self._members = list(MEMBERS)
        self.identity = EtcdIdentity(URL.prefix)
        self._token = ""
        self._credentials = Credentials(URL)
        self._etcd, self._asker = etcd, asker

    async def close(self) -> None:
        """There is no connection."""

    async def _say(self, member: str, method: str, path: str, body: bytes) -> bytes:
        if self._asker.loop.ended:
            raise Unavailable("the process is gone")
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[tuple[int, bytes]] = loop.create_future()

        def answer(status: int, text: bytes) -> None:
            if not self._asker.loop.ended:
                loop.call_soon(_settle, answered, status, text)

        self._etcd.ask(self._asker, member, path, body, answer, self.mark)
        status, text = await answered
        if status in (REFUSED, BROKEN):
            raise Unavailable("connection reset")
        if status != 200:
            raise failure_of(status, text, self.url)
        return text

    async def recount(self) -> None:
        """Nobody leaves it."""

    async def health(self, member: str) -> tuple[float, str]:
        return math.nan, "nobody asks here"

    async def watch(
        self, request: WatchKeys, turn: int, silence_s: float
    ) -> AsyncGenerator[KeyChanges | None, None]:
        if self._asker.loop.ended:
            raise Unavailable("the process is gone")
        member = MEMBERS[turn % len(MEMBERS)]
        stream = self._etcd.watch(self._asker, member, request.create_request)
        try:
            while True:
                try:
                    async with asyncio.timeout(silence_s):
                        changes = await stream.heard.get()
                except TimeoutError:
                    yield None
                    continue
                if changes is None:
                    break
                yield changes
        finally:
            self._etcd.end_watch(stream)
        raise Unavailable(f"{member} ends the watch")


def _settle(answered: asyncio.Future[tuple[int, bytes]], status: int, text: bytes) -> None:
    if not answered.done():
        answered.set_result((status, text))
