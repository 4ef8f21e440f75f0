"""P5: a target daemon that hundreds read from has the memory that it has for a few; who does not
read what it asked for keeps nobody from it.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from ckpt.base.units import KiB, MiB
from ckpt.format.messages.hello import Role
from ckpt.format.messages.reading import ByteRuns, RangeData, RangesDone, ReadRanges
from ckpt.format.messages.writing import ColumnSealed
from tests.aio.netkit import RawPeer
from tests.ckptd.target_peers import ANSWER_S, SECRET, Coordinator, Daemon, Peer, reserve, run
from tests.protocol.target_world import Column

ASLEEP = 40
PIECE = 4 * MiB
READ_BYTES_MAX = 40 * MiB
"""A pool of 32 MiB, and a quarter more."""
PRIVATE_BYTES_MAX = 192 * MiB


def _private_bytes(pid: int) -> int:
    """Memory that is the process's own."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * KiB for line in lines if line.startswith("Private_"))


def _ask_and_sleep(port: int, column: Column, number: int) -> RawPeer:
    """A reader whose socket is never read; each wants other pieces than the ones before."""
    peer = RawPeer(port, SECRET)
    # The kernel shall not take for it what it does not take itself.
    peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * KiB)
    peer.shake()
    begin = number * PIECE % (len(column.data) - 4 * PIECE)
    peer.send(ReadRanges(column.id, (ByteRuns(begin, begin + 4 * PIECE),)), request=3)
    return peer


def test_hundreds_of_readers_that_do_not_read_take_bounded_memory_of_a_target(
    tmp_path: Path,
) -> None:
    column = Column(payload_bytes=96 * MiB, cell_bytes=MiB, column=0)

    async def story(coordinator: Coordinator) -> None:
        daemon = await asyncio.to_thread(Daemon, tmp_path / "t", coordinator.address)
        with daemon:
            async with asyncio.timeout(ANSWER_S):
                await coordinator.registrations.get()
            await reserve(coordinator, [column])
            async with Peer(daemon.address) as stager:
                assert isinstance(await stager.write(column, reservation=1), ColumnSealed)
            async with Peer(daemon.address, Role.READER) as reader:
                # The column's table is in memory, and all that a read needs.
                await reader.ask(3, ReadRanges(column.id, (ByteRuns(0, 4 * PIECE),)))
                before = _private_bytes(daemon.process.pid)
                port = int(daemon.address.rpartition(":")[2])
                asleep = [
                    await asyncio.to_thread(_ask_and_sleep, port, column, number)
                    for number in range(ASLEEP)
                ]
                after = _private_bytes(daemon.process.pid)
                assert after - before <= READ_BYTES_MAX
                assert after <= PRIVATE_BYTES_MAX
                # Those that hold memory are cut off; it becomes free for whoever waits.
                await reader.send(4, ReadRanges(column.id, (ByteRuns(0, PIECE),)))
                answers = []
                async with asyncio.timeout(2 * ANSWER_S):
                    while RangesDone not in answers:
                        answers.append(type((await reader.frames.get())[1]))
                assert RangeData in answers
                for each in asleep:
                    each.sock.close()

    run(story)
