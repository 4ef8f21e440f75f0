"""Bulks land while a selector waits: it is woken by what is whole, broken or somebody else's."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
import selectors
import socket
import threading
from collections.abc import Iterator

import pytest

from ckpt.aio.selecting import BulkLoop, BulkSelector, bulks_of
from ckpt.native.landing import CLOSED, WHOLE, Landing
from ckpt.native.plain_sending import PlainSending
from ckpt.native.polling import SHOWN_S

LENGTH = 600_000
Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def selector() -> Iterator[BulkSelector]:
    made = BulkSelector()
    yield made
    made.close()


def tcp_pair() -> Pair:
    """Sender and receiver; the latter does not wait."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = socket.create_connection(listener.getsockname())
        receiver, _ = listener.accept()
    receiver.setblocking(False)
    return sender, receiver


@pytest.fixture
def pairs() -> Iterator[list[Pair]]:
    made = [tcp_pair() for _ in range(3)]
    yield made
    for pair in made:
        for each in pair:
            each.close()


def lands(
    selector: BulkSelector, receiver: socket.socket, *, wake_bytes: int = 0
) -> tuple[Landing, memoryview]:
    view = memoryview(bytearray(LENGTH))
    landing = Landing(view, 0, wake_bytes=wake_bytes)
    selector.bulks.land(receiver.fileno(), landing)
    return landing, view


def keys_of(found: list[tuple[selectors.SelectorKey, int]]) -> set[object]:
    return {key.data for key, mask in found if mask == selectors.EVENT_READ}


def test_a_bulk_lands_without_a_word_until_it_is_whole(
    selector: BulkSelector, pairs: list[Pair]
) -> None:
    sender, receiver = pairs[0]
    selector.register(receiver, selectors.EVENT_READ, "bulk")
    landing, view = lands(selector, receiver)
    text = bytes(range(250)) * (LENGTH // 250)
    sender.sendall(text[:1000])
    while landing.filled < 1000:
        assert selector.select(0) == []
    thread = threading.Thread(target=sender.sendall, args=(text[1000:],))
    thread.start()
    while not selector.select(SHOWN_S / 10):
        assert landing.rest
    thread.join()
    assert landing.receive(receiver.fileno()) == WHOLE
    assert view == text
    # It is no waiting that a peer could be blamed for.
    assert selector.bulks.worked_us > 0


def test_what_others_want_to_hear_is_found_meanwhile(
    selector: BulkSelector, pairs: list[Pair]
) -> None:
    for (_, receiver), data in zip(pairs, ("bulk", "small", "closing"), strict=True):
        selector.register(receiver, selectors.EVENT_READ, data)
    bulk, _ = lands(selector, pairs[0][1])
    closing, _ = lands(selector, pairs[2][1])
    pairs[0][0].sendall(bytes(500))
    pairs[1][0].sendall(b"a frame")
    pairs[2][0].sendall(bytes(700))
    pairs[2][0].close()
    seen: set[object] = set()
    while seen != {"small", "closing"}:
        seen |= keys_of(selector.select(SHOWN_S / 10))
        assert "bulk" not in seen
    assert (bulk.filled, closing.filled) == (500, 700)
    assert closing.receive(pairs[2][1].fileno()) == CLOSED
    assert pairs[1][1].recv(100) == b"a frame"


def test_one_that_lands_for_long_is_shown_now_and_then(
    selector: BulkSelector, pairs: list[Pair]
) -> None:
    """Whoever asks for how long a peer has been silent hears of it."""
    sender, receiver = pairs[0]
    selector.register(receiver, selectors.EVENT_READ, "bulk")
    landing, _ = lands(selector, receiver)
    shown = sent = 0
    while shown < 2:
        sender.sendall(b"x")
        sent += 1
        assert sent < LENGTH
        shown += len(selector.select(SHOWN_S))
    assert 0 < landing.filled <= sent


def test_what_has_ended_is_nobodys(selector: BulkSelector, pairs: list[Pair]) -> None:
    sender, receiver = pairs[0]
    selector.register(receiver, selectors.EVENT_READ, "bulk")
    landing, _ = lands(selector, receiver)
    other, _ = lands(selector, pairs[1][1])
    selector.bulks.landed(receiver.fileno())
    selector.bulks.landed(receiver.fileno())
    sender.sendall(b"the next frame")
    while not selector.select(SHOWN_S):
        assert not landing.filled
    assert receiver.recv(100) == b"the next frame"
    assert (landing.filled, other.filled) == (0, 0)


def test_descriptors_of_any_number(selector: BulkSelector, pairs: list[Pair]) -> None:
    many = [socket.socket() for _ in range(200)]
    sender, receiver = tcp_pair()
    try:
        assert receiver.fileno() > 200
        first, _ = lands(selector, pairs[0][1])
        selector.register(pairs[0][1], selectors.EVENT_READ, "first")
        selector.register(receiver, selectors.EVENT_READ, "last")
        last, _ = lands(selector, receiver)
        sender.sendall(b"ab")
        pairs[0][0].sendall(b"c")
        while (first.filled, last.filled) != (1, 2):
            assert selector.select(0) == []
        selector.bulks.landed(receiver.fileno())
    finally:
        for each in (*many, sender, receiver):
            each.close()


def test_a_reader_is_woken_when_enough_has_come(selector: BulkSelector, pairs: list[Pair]) -> None:
    sender, receiver = pairs[0]
    selector.register(receiver, selectors.EVENT_READ, "bulk")
    landing, _ = lands(selector, receiver, wake_bytes=100_000)
    sender.sendall(bytes(1))
    while not landing.filled:
        assert selector.select(0) == []
    level = (socket.SOL_SOCKET, socket.SO_RCVLOWAT)
    assert receiver.getsockopt(*level) == landing.woken_by == 100_000
    rest = LENGTH - 1 - 5_000
    thread = threading.Thread(target=sender.sendall, args=(bytes(rest),))
    thread.start()
    # Woken by parts, it says now what is left.
    while landing.filled < rest - 100_000:
        assert selector.select(0) == []
    thread.join()
    assert landing.woken_by == min(100_000, landing.rest)


def sends(selector: BulkSelector, sender: socket.socket, text: bytes) -> PlainSending:
    sender.setblocking(False)
    sending = PlainSending(memoryview(bytearray(text)))
    assert sending.send(sender.fileno()) == errno.EAGAIN
    selector.register(sender, selectors.EVENT_WRITE, "sending")
    selector.bulks.send(sender.fileno(), sending)
    return sending


def test_a_bulk_leaves_without_a_word_until_all_has(
    selector: BulkSelector, pairs: list[Pair]
) -> None:
    sender, receiver = pairs[0]
    text = random.Random(1).randbytes(12_000_000)
    sending, came = sends(selector, sender, text), bytearray()
    while not (found := selector.select(0)):
        with contextlib.suppress(BlockingIOError):
            came += receiver.recv(1_000_000)
    assert [key.data for key, _ in found] == ["sending"]
    assert sending.sent == len(text)
    assert sending.send(sender.fileno()) == WHOLE
    receiver.setblocking(True)
    while len(came) < len(text):
        came += receiver.recv(1_000_000)
    assert came == text


def test_a_reader_that_leaves_is_shown(selector: BulkSelector, pairs: list[Pair]) -> None:
    sender, receiver = pairs[0]
    sending = sends(selector, sender, bytes(12_000_000))
    receiver.close()
    while not selector.select(SHOWN_S):
        assert sending.sent < 12_000_000
    selector.bulks.sent(sender.fileno())
    assert not selector.bulks
    assert sending.send(sender.fileno()) in (errno.EPIPE, errno.ECONNRESET)


@pytest.mark.parametrize("view", [b"", b"readonly", bytearray(10)])
def test_nothing_is_sent_from_a_buffer_that_does_not_fit(view: bytes | bytearray) -> None:
    with pytest.raises(ValueError, match="cannot be sent"):
        PlainSending(memoryview(view)[::2])


def test_a_loop_has_its_selectors_bulks() -> None:
    loop, plain = BulkLoop(), asyncio.SelectorEventLoop()
    try:
        assert bulks_of(loop) is loop.bulks
        assert bulks_of(plain) is None
    finally:
        loop.close()
        plain.close()
