"""A device of which each write takes long holds up no loop: its target answers meanwhile."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from ckpt.aio.disk import RealDisk
from ckpt.aio.net.dial import Dialer
from ckpt.aio.net.serving.server import serve
from ckpt.aio.slots import SlotPool
from ckpt.base.ids import BootId, TargetId
from ckpt.base.limits import FRAME_BULK_BYTES_MAX, PAGE_BYTES
from ckpt.base.units import KiB, MiB
from ckpt.format.messages.hello import Role
from ckpt.format.messages.reading import ByteRange, RangesDone, ReadRanges
from ckpt.format.messages.writing import AskPace, ColumnAccepted, ColumnSealed, CreditGranted
from ckpt.protocol.events import Buffer
from ckpt.protocol.handshake import Caller, Identity
from ckpt.protocol.target.core import TargetIdentity, TargetLimits
from ckpt.protocol.target.disk_events import DiskDone, DiskFailed, WriteAt
from ckpt.protocol.target.machine import TargetMachine
from ckptd.log import reporter
from ckptd.target import transfers
from ckptd.target.handlers import CoordinatorHandler, Relay
from ckptd.target.shell import TargetShell
from ckptd.target.transfers import QUICK_COUNT, Transfers
from tests.ckptd.target_peers import CLUSTER, SECRET, Coordinator, Peer, reserve, run
from tests.protocol.target_world import Column

STUCK_S = 5.0
"""A loop that does the write itself waits so long, and the test fails."""


class StuckDisk(RealDisk):
    """A write to a column, or a read of one, ends when somebody says so."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.stuck = False
        """Nobody said so."""

    def write_at(self, file: str, offset: int, data: Buffer) -> None:
        if "reservation" in file:
            self._wait()
        super().write_at(file, offset, data)

    def read_at(self, file: str, offset: int, length: int, *, at_rest: bool = False) -> memoryview:
        if file.startswith("columns/"):
            self._wait()
        return super().read_at(file, offset, length, at_rest=at_rest)

    def _wait(self) -> None:
        self.begun.set()
        self.stuck = self.stuck or not self.may_end.wait(STUCK_S)

    def hold(self) -> None:
        """From now on."""
        self.begun.clear()
        self.may_end.clear()


async def _check_lives(disk: StuckDisk, stager: Peer, request: int) -> None:
    """While the device does something it answers."""
    assert await asyncio.to_thread(disk.begun.wait, STUCK_S)
    await stager.send(request, AskPace())
    answer, _ = await stager.next()
    assert isinstance(answer, CreditGranted)
    assert not disk.stuck, "the loop waited for the device"
    disk.may_end.set()


def test_a_target_answers_while_its_device_writes_and_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "QUICK_US", -1)  # Whatever it does takes too long for the loop.

    async def story(coordinator: Coordinator) -> None:
        disk, pool, relay = StuckDisk(tmp_path), SlotPool(4 * FRAME_BULK_BYTES_MAX), Relay()
        boot, stop, report = BootId(1), asyncio.Event(), reporter("test")
        machine = TargetMachine(
            TargetIdentity(CLUSTER, TargetId("t1"), boot, "p/r/h/d"), SECRET, TargetLimits()
        )
        server = serve(
            relay, listen=("127.0.0.1", 0), unix=None, secret=SECRET, pool=pool,
            identity=Identity(CLUSTER, Role.TARGET, "t1", boot),
        )  # fmt: skip
        for name in ("columns", "documents", "staging", "aside"):
            disk.make_directory(name)
        shell = relay.shell = TargetShell(machine, disk, report)
        shell.server = server
        shell.dialer = Dialer(
            CoordinatorHandler(shell, stop.set),
            Caller(SECRET, Role.TARGET, "t1", cluster=CLUSTER),
            address=coordinator.address,
        )
        column = Column(2 * MiB, cell_bytes=512 * KiB)
        try:
            shell.start()
            shell.dialer.start()
            await coordinator.registrations.get()
            await reserve(coordinator, [column])
            async with Peer(f"127.0.0.1:{server.port}") as stager:
                await stager.send(7, column.begin(1))
                answer, _ = await stager.next()
                assert isinstance(answer, ColumnAccepted)
                for stripe in range(column.layout.stripe_count):
                    message, cell = column.fragment(stripe)
                    await stager.send(7, message, cell)
                await _check_lives(disk, stager, 7)
                await stager.send(7, column.seal, column.manifest)
                while not isinstance(answer, ColumnSealed):
                    answer, _ = await stager.next()
                disk.hold()
                async with Peer(f"127.0.0.1:{server.port}", Role.READER) as reader:
                    question = ReadRanges(column.id, (ByteRange(0, PAGE_BYTES),))
                    asked = asyncio.create_task(reader.ask(3, question))
                    await _check_lives(disk, stager, 7)
                    assert (await asked)[-1][0] == RangesDone()
        finally:
            disk.may_end.set()
            await shell.dialer.close()
            await server.close()
            await shell.close()
            disk.close()
        assert pool.free_bytes == pool.total_bytes, "every fragment's memory is free again"

    run(story)


def test_the_loop_writes_itself_while_the_device_is_quick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before that is known, and not after it has waited for one for too long."""

    async def story() -> None:
        answers: list[DiskDone | DiskFailed] = []
        disk = RealDisk(tmp_path)
        moving = Transfers(disk, answers.append)
        write = WriteAt(1, "x", 0, bytes(PAGE_BYTES))

        async def in_thread(count: int) -> None:
            for _ in range(count):
                assert moving.in_thread
                assert moving.do(write) is None
                await moving.rest()
            assert len(answers) == count
            answers.clear()

        monkeypatch.setattr(transfers, "QUICK_US", 1 << 40)
        await in_thread(QUICK_COUNT)
        assert isinstance(moving.do(write), DiskDone)
        assert not moving.in_thread, "that took no half a second"
        monkeypatch.setattr(transfers, "HELD_US", 0)
        assert isinstance(moving.do(write), DiskDone)
        await in_thread(QUICK_COUNT)
        assert not moving.in_thread
        monkeypatch.setattr(transfers, "QUICK_US", -1)
        assert isinstance(moving.do(write), DiskDone)
        await in_thread(QUICK_COUNT + 1)
        assert moving.in_thread, "no answer came soon"
        moving.end()
        disk.close()

    asyncio.run(story())
