"""Our way of receiving beside asyncio's BufferedProtocol (docs/decisions/0001), on both loops.

    python benchmarks/peers/buffered_protocol.py --rounds 9

One process sends fragments of 2 MiB over loopback TCP, another receives them into a ring of slots:

    watched    `Watch` and `Channel`, as a daemon receives
    protocol   the same Channel, fed by a transport: get_buffer is `landing`, buffer_updated
               is `advance`
    bare       a BufferedProtocol that counts bytes and knows no frames: what a loop itself costs

Ways take turns, each in a fresh process. Figures are the receiver's CPU seconds per GB, medians.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import select
import socket
import statistics
import sys
import time
from multiprocessing.connection import Connection

import uvloop

from ckpt.aio.channel import Bulk, Channel
from ckpt.aio.slots import Slot, SlotPool
from ckpt.aio.sockets import tune
from ckpt.aio.watch import Watch
from ckpt.base.errors import CkptError
from ckpt.base.ids import BootId
from ckpt.base.units import MiB
from ckpt.format.frame import FrameHead
from ckpt.format.messages import Fragment, Message, Role
from ckpt.protocol.handshake import (
    NONCE_BYTES,
    ClientHandshake,
    Established,
    Identity,
    ServerHandshake,
)

WAYS = ("watched", "protocol", "bare")
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
FRAGMENT_BYTES = 2 * MiB
POOL_BYTES = 32 * MiB
QUEUE_BYTES = 4 * FRAGMENT_BYTES
SECRET = b"a secret of two processes of one benchmark"
UNCHECKED = frozenset({Fragment})
"""As in a target: the thread that writes a fragment checks it."""


class Receiver:
    """A channel's owner that gives each fragment's slot back at once."""

    def __init__(self, sock: socket.socket, expected: int, done: asyncio.Event) -> None:
        identity = Identity("bench", Role.TARGET, "t0", BootId(1))
        handshake = ServerHandshake(secret=SECRET, identity=identity, nonce=os.urandom(NONCE_BYTES))
        self.channel = Channel(sock, handshake, self, unchecked=UNCHECKED)
        self.expected = expected
        self._pool = SlotPool(POOL_BYTES)
        self._done = done

    def established(self, channel: Channel, peer: Established) -> None:
        """The sender may begin."""

    def arrived(self, channel: Channel, request: int, message: Message, bulk: Bulk | None) -> None:
        """A fragment is whole."""
        assert bulk is not None
        bulk.release()
        self.expected -= 1
        if self.expected == 0:
            self._done.set()

    def ended(self, channel: Channel, error: CkptError) -> None:
        """The sender has gone."""
        self._done.set()

    def land(self, channel: Channel, head: FrameHead, message: Message) -> Slot | None:
        """Memory for a fragment."""
        return self._pool.take(head.bulk_bytes)


class FedChannel(asyncio.BufferedProtocol):
    """A transport receives into the channel's landings."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the channel wants its next bytes."""
        return self._channel.landing()

    def buffer_updated(self, nbytes: int) -> None:
        """They have come."""
        self._channel.advance(nbytes)


class Bare(asyncio.BufferedProtocol):
    """Bytes into a ring; no frames."""

    def __init__(self, expected: int, done: asyncio.Event) -> None:
        pool = SlotPool(POOL_BYTES)
        self._ring = [pool.take(FRAGMENT_BYTES) for _ in range(POOL_BYTES // FRAGMENT_BYTES)]
        self._expected = expected
        self._received = 0
        self._done = done

    def get_buffer(self, sizehint: int) -> memoryview:
        """The rest of the fragment that has begun."""
        number, filled = divmod(self._received, FRAGMENT_BYTES)
        slot = self._ring[number % len(self._ring)]
        assert slot is not None
        return slot.view[filled:]

    def buffer_updated(self, nbytes: int) -> None:
        """They have come."""
        self._received += nbytes
        if self._received >= self._expected:
            self._done.set()


class Sender:
    """A channel's owner that sends fragments and waits until the kernel has taken them."""

    def __init__(self, sock: socket.socket) -> None:
        handshake = ClientHandshake(
            secret=SECRET,
            role=Role.STAGER,
            name="rank 0",
            server_role=Role.TARGET,
            nonce=os.urandom(NONCE_BYTES),
        )
        self.sock = sock
        self.channel = Channel(sock, handshake, self)
        self.ready = False

    def established(self, channel: Channel, peer: Established) -> None:
        """Fragments may go."""
        self.ready = True

    def arrived(self, channel: Channel, request: int, message: Message, bulk: Bulk | None) -> None:
        """A receiver says nothing after the handshake."""
        raise AssertionError(f"unexpected {message}")

    def land(self, channel: Channel, head: FrameHead, message: Message) -> None:
        """It sends no bulk either."""
        raise AssertionError(f"unexpected {message}")

    def run(self, count: int) -> None:
        """The handshake, then `count` fragments out of memory that is in no cache."""
        memory = SlotPool(8 * POOL_BYTES)
        slots = [memory.take(FRAGMENT_BYTES) for _ in range(8 * POOL_BYTES // FRAGMENT_BYTES)]
        self.channel.greet()
        while not self.ready:
            select.select([self.sock], [], [])
            self.channel.receive()
        for number in range(count):
            slot = slots[number % len(slots)]
            assert slot is not None
            self.channel.send(0, Fragment(number, 0), slot.view)
            self.drain(QUEUE_BYTES)
        self.drain(0)

    def drain(self, left: int) -> None:
        """Until at most `left` bytes wait for the kernel."""
        while self.channel.queued_bytes > left:
            select.select([], [self.sock], [])
            self.channel.flush()


def send(port: int, way: str, count: int) -> None:
    """The sending process."""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        if way == "bare":
            memory = memoryview(bytearray(8 * POOL_BYTES))
            for number in range(count):
                start = number * FRAGMENT_BYTES % len(memory)
                sock.sendall(memory[start : start + FRAGMENT_BYTES])
        else:
            tune(sock)
            Sender(sock).run(count)
        sock.shutdown(socket.SHUT_WR)


def receive(loop: str, way: str, count: int, answer: Connection) -> None:
    """The receiving process: tells its port, then its CPU seconds per GB."""
    with (
        asyncio.Runner(loop_factory=LOOPS[loop]) as runner,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        answer.send(listener.getsockname()[1])
        sock, _ = listener.accept()
        tune(sock)
        receiving = _receive_bytes(sock, count) if way == "bare" else _receive(sock, way, count)
        answer.send(runner.run(receiving) / (count * FRAGMENT_BYTES / 1e9))


async def _receive(sock: socket.socket, way: str, count: int) -> float:
    """CPU seconds for so many fragments, the handshake included."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    receiver = Receiver(sock, count, done)
    watch = Watch(loop, receiver.channel, receiver.ended)
    began = time.process_time()
    if way == "watched":
        watch.update()
    else:
        await loop.create_connection(lambda: FedChannel(receiver.channel), sock=sock)
    await done.wait()
    spent = time.process_time() - began
    watch.stop()
    if receiver.expected:
        raise EOFError(f"the sender left {receiver.expected} fragments out")
    return spent


async def _receive_bytes(sock: socket.socket, count: int) -> float:
    """CPU seconds for the bytes of so many fragments."""
    done = asyncio.Event()
    bare = Bare(count * FRAGMENT_BYTES, done)
    began = time.process_time()
    await asyncio.get_running_loop().create_connection(lambda: bare, sock=sock)
    await done.wait()
    return time.process_time() - began


def measure(loop: str, way: str, count: int) -> float:
    """CPU seconds per GB of one receiver."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    receiver = context.Process(target=receive, args=(loop, way, count, there))
    receiver.start()
    there.close()
    sender = context.Process(target=send, args=(here.recv(), way, count))
    sender.start()
    found: float = here.recv()
    sender.join()
    receiver.join()
    return found


def main() -> None:
    """Measure in turns and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--gb", type=float, default=4.0, help="sent in each round")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    count = max(1, int(options.gb * 1e9) // FRAGMENT_BYTES)
    found: dict[str, list[float]] = {f"{loop} {way}": [] for loop in LOOPS for way in WAYS}
    for _ in range(options.rounds):
        for loop in LOOPS:
            for way in WAYS:
                found[f"{loop} {way}"].append(measure(loop, way, count))
    if options.json:
        sys.stdout.write(json.dumps(found) + "\n")
        return
    for name, values in found.items():
        low, high = min(values), max(values)
        sys.stdout.write(f"{name:18}{statistics.median(values):.3f} [{low:.3f} - {high:.3f}]\n")


if __name__ == "__main__":
    main()
