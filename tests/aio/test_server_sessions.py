"""Server and dialer keep the session contract, over TCP and Unix; so does the fake."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ckpt.aio.net.bulk import BulkRules
from ckpt.aio.net.dial import Dialer
from ckpt.aio.net.serving.server import Server, serve
from ckpt.aio.net.socketpath import socket_path
from ckpt.aio.net.wire_policy import WirePolicy
from ckpt.aio.slots import SlotPool
from ckpt.base.units import MiB
from ckpt.format.messages.hello import Role
from ckpt.protocol.handshake import Caller
from ckpt.testing.network import FakeEndpoint, FakeNetwork, RecordingHandler
from ckpt.testing.session_contract import CLIENT_NAME, SERVER_IDENTITY, SessionContract
from tests.aio.netkit import SECRET, Waiter


class RealWorld:
    """Server and dialer on one loop, which runs only inside `settle`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, unix: str | None, wire: WirePolicy) -> None:
        self.loop = loop
        self.wire = wire
        self.at_server = RecordingHandler()
        self.at_client = RecordingHandler()
        self.pool = SlotPool(16 * MiB)
        self.server: Server
        self.client: Dialer
        loop.run_until_complete(self._start(unix))

    async def _start(self, unix: str | None) -> None:
        self._waiter = Waiter(self.at_server, self.at_client)
        self.server = serve(
            self.at_server,
            listen=None if unix else ("127.0.0.1", 0),
            unix=unix,
            secret=SECRET,
            identity=SERVER_IDENTITY,
            pool=self.pool,
            bulks=BulkRules(wire=self.wire),
        )
        self.client = Dialer(
            self.at_client,
            Caller(SECRET, Role.TARGET, CLIENT_NAME, cluster="cluster-a"),
            address=f"unix:{unix}" if unix else f"127.0.0.1:{self.server.port}",
            backoff_s=(0.001, 0.01),
        )
        self.client.start()

    def settle(self, until: Callable[[], bool]) -> None:
        self.loop.run_until_complete(self._waiter.until(until))

    def stop(self) -> None:
        async def stop() -> None:
            await self.client.close()
            await self.server.close()

        self.loop.run_until_complete(stop())
        assert self.pool.free_bytes == self.pool.total_bytes


class TestRealSessions(SessionContract):
    @pytest.fixture(params=["tcp", "unix", "mac", "encrypt"])
    def transport(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    # The suite's own fixture takes nothing; pytest looks at names, not at signatures.
    @pytest.fixture
    def world(  # type: ignore[override]
        self, transport: str, tmp_path: Path
    ) -> Iterator[RealWorld]:
        loop = asyncio.new_event_loop()
        unix = socket_path(tmp_path, "s") if transport == "unix" else None
        wire = WirePolicy("auto" if transport in ("tcp", "unix") else transport)
        world = RealWorld(loop, unix, wire)
        try:
            world.settle(lambda: bool(world.at_client.opened_ and world.at_server.opened_))
            yield world
        finally:
            world.stop()
            loop.close()


class FakeWorld:
    """The same over the fake network."""

    def __init__(self, seed: int) -> None:
        self.network = FakeNetwork(seed)
        self.at_server = RecordingHandler()
        self.at_client = RecordingHandler()
        self.server: FakeEndpoint = self.network.listen("here", self.at_server, SERVER_IDENTITY)
        self.client: FakeEndpoint = self.network.dial(
            "here", self.at_client, role=Role.TARGET, name=CLIENT_NAME, cluster="cluster-a"
        )

    def settle(self, until: Callable[[], bool]) -> None:
        while not until():
            assert self.network.step(), "quiet, and it never came true"


class TestFakeSessions(SessionContract):
    @contextmanager
    def make_world(self) -> Iterator[FakeWorld]:
        yield FakeWorld(seed=1)
