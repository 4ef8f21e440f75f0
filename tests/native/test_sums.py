"""Checksums of bytes and of their blocks are zlib's, from memory and from a socket."""

from __future__ import annotations

import errno
import os
import random
import socket
import threading
import zlib
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckpt.base.limits import BLOCK_BYTES
from ckpt.native.landing import CLOSED, WHOLE, Landing
from ckpt.native.sums import Sums, sums_of
from tests.waiting import wait_until

LENGTHS = (0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 5 * BLOCK_BYTES, 700_001)


def plain(view: memoryview) -> tuple[int, list[int]]:
    """The definition."""
    parts = (view[at : at + BLOCK_BYTES] for at in range(0, len(view), BLOCK_BYTES))
    return zlib.crc32(view), [zlib.crc32(part) for part in parts]


def as_plain(sums: Sums) -> tuple[int, list[int]]:
    return sums.whole, sums.blocks.tolist()


@given(length=st.sampled_from(LENGTHS) | st.integers(0, 3 * BLOCK_BYTES), shift=st.integers(0, 7))
@settings(max_examples=60)
def test_sums_of_memory(length: int, shift: int) -> None:
    view = memoryview(random.Random(length).randbytes(length + shift))[shift:]
    assert as_plain(sums_of(view)) == plain(view)


@pytest.fixture(params=["tcp", "unix"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Sender and receiver; the latter does not wait."""
    if request.param == "unix":
        sender, receiver = socket.socketpair()
    else:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            sender = socket.create_connection(listener.getsockname())
            receiver, _ = listener.accept()
    receiver.setblocking(False)
    yield sender, receiver
    sender.close()
    receiver.close()


def heard(landing: Landing, receiver: socket.socket, outcomes: list[int]) -> int:
    outcomes.append(landing.receive(receiver.fileno()))
    return outcomes[-1]


@pytest.mark.parametrize("length", LENGTHS[1:])
@pytest.mark.parametrize("filled", [0, 1, 4096, 2 * BLOCK_BYTES + 5])
def test_bytes_land_in_any_pieces(
    pair: tuple[socket.socket, socket.socket], length: int, filled: int
) -> None:
    sender, receiver = pair
    filled = min(filled, length)
    source = random.Random(length)
    sent = source.randbytes(length)
    memory = memoryview(bytearray(b"\xa5" * (length + 128)))
    view = memory[64 : 64 + length]
    view[:filled] = sent[:filled]
    landing = Landing(view, filled)

    def send() -> None:
        at = filled
        while at < length:
            piece = source.choice((1, 77, 4096, 200_000))
            sender.sendall(sent[at : at + piece])
            at += piece
        sender.sendall(b"the next frame")

    thread = threading.Thread(target=send)
    thread.start()
    outcomes: list[int] = []
    wait_until(lambda: heard(landing, receiver, outcomes) == WHOLE, "all bytes landed")
    thread.join()
    assert set(outcomes) <= {WHOLE, errno.EAGAIN}
    assert view == sent
    assert bytes(memory[:64]) == bytes(memory[64 + length :]) == b"\xa5" * 64
    assert as_plain(landing.sums()) == plain(view)
    assert (landing.filled, landing.rest) == (length, 0)
    # What comes after it is nobody's yet. It may still be on its way, also on one host.
    receiver.settimeout(30.0)
    assert receiver.recv(100) == b"the next frame"


def test_more_than_a_block_is_taken_at_once() -> None:
    """Each time the kernel tells the peer of room. What is not asked for of a datagram is lost, so
    it shows how much was."""
    sender, receiver = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with sender, receiver:
        sent = random.Random(1).randbytes(BLOCK_BYTES + 32_768)
        assert sender.send(sent) == len(sent)
        view = memoryview(bytearray(len(sent)))
        landing = Landing(view, 0)
        assert landing.receive(receiver.fileno()) == WHOLE
        assert view == sent
        assert as_plain(landing.sums()) == plain(view)


def test_a_peer_that_closes_says_so(pair: tuple[socket.socket, socket.socket]) -> None:
    sender, receiver = pair
    landing = Landing(memoryview(bytearray(10)), 3)
    sender.sendall(b"abcd")
    sender.close()
    outcomes: list[int] = []
    wait_until(lambda: heard(landing, receiver, outcomes) == CLOSED, "the end is seen")
    assert set(outcomes[:-1]) <= {errno.EAGAIN}
    assert (landing.filled, landing.rest) == (7, 3)


def test_an_error_of_the_socket_is_its_number() -> None:
    landing = Landing(memoryview(bytearray(10)), 0)
    assert landing.receive(-1) == errno.EBADF
    reading, writing = os.pipe()
    assert landing.receive(reading) == errno.ENOTSOCK
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize(
    ("view", "filled"),
    [
        (memoryview(bytes(10)), 0),
        (memoryview(bytearray(10))[::2], 0),
        (memoryview(bytearray(10)), 11),
        (memoryview(bytearray(10)), -1),
        (memoryview(bytearray()), 0),
    ],
)
def test_nothing_lands_where_it_does_not_fit(view: memoryview, filled: int) -> None:
    with pytest.raises(ValueError, match="cannot land"):
        Landing(view, filled)
