"""A target daemon as a process, and the peers that tests speak to it with."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import TracebackType

from ckpt.aio.net.bulk import Bulk
from ckpt.aio.net.dial import Dialer
from ckpt.aio.net.serving.server import Server, serve
from ckpt.aio.slots import SlotPool
from ckpt.base.ids import BootId, Epoch, ReservationId
from ckpt.base.units import MiB
from ckpt.format.messages import Message
from ckpt.format.messages.hello import Failed, Role
from ckpt.format.messages.targets import (
    LeaseRenewed,
    RegisterTarget,
    RenewLease,
    Reserve,
    TargetRegistered,
)
from ckpt.format.messages.writing import BeginColumn, ColumnAccepted, ColumnSealed, CreditGranted
from ckpt.protocol.events import Session
from ckpt.protocol.handshake import Caller, Established, Identity
from tests.protocol.target_world import Column
from tests.warm_child import start_daemon

SECRET = bytes(range(32))
CLUSTER = "c0ffee"
ANSWER_S = 30.0

Frame = tuple[int, Message, bytes]


class Mailbox:
    """A session handler that keeps what arrives, in order."""

    def __init__(self) -> None:
        self.session: asyncio.Future[Session] = asyncio.get_running_loop().create_future()
        self.frames: asyncio.Queue[Frame] = asyncio.Queue()

    def opened(self, session: Session, _peer: Established) -> None:
        if self.session.done():
            self.session = asyncio.get_running_loop().create_future()
        self.session.set_result(session)

    def received(
        self, _session: Session, request: int, message: Message, bulk: Bulk | None
    ) -> None:
        data = b"" if bulk is None else bytes(bulk.view)
        if bulk is not None:
            bulk.release()
        self.frames.put_nowait((request, message, data))

    def closed(self, _session: Session, reason: str) -> None:
        self.frames.put_nowait((0, Failed("closed", reason), b""))


class Coordinator(Mailbox):
    """Takes targets in, renews leases, and sends commands."""

    def __init__(self) -> None:
        super().__init__()
        self.server: Server | None = None
        self.registrations: asyncio.Queue[RegisterTarget] = asyncio.Queue()
        self.renewals: asyncio.Queue[RenewLease] = asyncio.Queue()
        self._request = 1000

    def listen(self, port: int = 0, cluster: str = CLUSTER) -> None:
        self.server = serve(
            self, listen=("127.0.0.1", port), unix=None, secret=SECRET, pool=SlotPool(8 * MiB),
            identity=Identity(cluster, Role.COORDINATOR, "", BootId(1)),
        )  # fmt: skip

    @property
    def address(self) -> str:
        assert self.server is not None
        return f"127.0.0.1:{self.server.port}"

    def received(self, session: Session, request: int, message: Message, bulk: Bulk | None) -> None:
        assert self.server is not None
        match message:
            case RegisterTarget():
                self.server.send(session, request, TargetRegistered(1, Epoch(1 << 32), 3_000_000))
                self.registrations.put_nowait(message)
            case RenewLease():
                self.server.send(session, request, LeaseRenewed(Epoch(1 << 32)))
                self.renewals.put_nowait(message)
            case _:
                super().received(session, request, message, bulk)

    async def command(self, message: Message, bulk: bytes = b"") -> Message:
        """Send it to the target that came last; the answer."""
        assert self.server is not None
        self._request += 1
        self.server.send(await self.session, self._request, message, bulk)
        async with asyncio.timeout(ANSWER_S):
            while True:
                request, answer, _ = await self.frames.get()
                if request == self._request:
                    return answer


class Peer(Mailbox):
    """A stager or reader of one target."""

    def __init__(self, address: str, role: Role = Role.STAGER, secret: bytes = SECRET) -> None:
        super().__init__()
        self.dialer = Dialer(
            self, Caller(secret, role, "test", server_role=Role.TARGET), address=address
        )
        self.dialer.start()

    async def __aenter__(self) -> Peer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        await self.dialer.close()

    async def send(self, request: int, message: Message, bulk: bytes = b"") -> None:
        async with asyncio.timeout(ANSWER_S):
            self.dialer.send(await self.session, request, message, bulk)

    async def next(self) -> tuple[Message, bytes]:
        async with asyncio.timeout(ANSWER_S):
            _, message, data = await self.frames.get()
            return message, data

    async def ask(self, request: int, message: Message) -> list[tuple[Message, bytes]]:
        """All answers up to one that ends the question."""
        await self.send(request, message)
        answers = []
        while True:
            answers.append(await self.next())
            if type(answers[-1][0]).__name__ in (
                "RangesDone", "Failed", "ColumnVerified", "ColumnsListed",
            ):  # fmt: skip
                return answers

    async def write(self, column: Column, reservation: int, request: int = 7) -> Message:
        """Send the whole column under credit; the proof, or the failure."""
        begin: BeginColumn = column.begin(reservation)
        await self.send(request, begin)
        credit = 0
        for stripe in range(column.layout.stripe_count):
            message, cell = column.fragment(stripe)
            while credit < len(cell):
                answer, _ = await self.next()
                if not isinstance(answer, ColumnAccepted | CreditGranted):
                    return answer
                credit += answer.credit_bytes
            credit -= len(cell)
            await self.send(request, message, cell)
        await self.send(request, column.seal, column.manifest)
        while True:
            answer, _ = await self.next()
            if isinstance(answer, ColumnSealed | Failed):
                return answer


class Daemon:
    """`ckptd target` as a child process, ended by its own pid."""

    def __init__(
        self, directory: Path, coordinator: str, *flags: str, cluster: str = CLUSTER,
        before: Callable[[], None] | None = None, cold: bool = False,
    ) -> None:  # fmt: skip
        secret = directory.parent / "secret"
        if not secret.exists():
            secret.write_text(SECRET.hex())
            secret.chmod(0o600)
        environ = {k: v for k, v in os.environ.items() if not k.startswith("CKPT")}
        words = [
            *("target", "--directory", str(directory)),
            *("--coordinator", coordinator, "--secret-file", str(secret)),
            *(("--cluster", cluster) if cluster else ()), *flags,
        ]  # fmt: skip
        self.log = directory.parent / f"{directory.name}.log"
        with self.log.open("ab") as log:
            self.process = start_daemon(
                words, stderr=log.fileno(), environment=environ, before=before, cold=cold
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.ready: dict[str, object] = json.loads(line) if line else {}

    @property
    def address(self) -> str:
        return str(self.ready["address"])

    def __enter__(self) -> Daemon:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.end(signal.SIGKILL)

    def end(self, number: signal.Signals) -> int:
        """Send the signal; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        status = self.process.wait(timeout=ANSWER_S)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return status


async def reserve(coordinator: Coordinator, columns: Sequence[Column]) -> None:
    """Reservations 1, 2, … for the columns."""
    for number, column in enumerate(columns, start=1):
        message = Reserve(1, ReservationId(number), column.file_bytes)
        answer = await coordinator.command(message)
        assert not isinstance(answer, Failed), answer


Story = Callable[[Coordinator], Awaitable[None]]


def run(story: Story) -> None:
    """The story, with a coordinator that listens."""

    async def scene() -> None:
        coordinator = Coordinator()
        coordinator.listen()
        assert coordinator.server is not None
        try:
            await story(coordinator)
        finally:
            await coordinator.server.close(linger_s=0)

    asyncio.run(scene())
