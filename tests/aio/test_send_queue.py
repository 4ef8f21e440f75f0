"""What is queued leaves in its order, encrypted where it is to be, and is its owner's once more."""

from __future__ import annotations

import random
import selectors
import socket
from collections.abc import Iterator

import pytest

from ckpt.aio.net.send_queue import ALONE_BYTES, SLICE_BYTES, SendQueue
from ckpt.aio.selecting import BulkSelector
from ckpt.native.gcm import BULK, TAG_BYTES, Opener, Sealer
from tests.waiting import wait_until

KEY = bytes(range(32))
BUFFER_BYTES = 64 * 1024


class Pipe:
    """A queue, and who reads what it sends; pushed, or watched while large views leave."""

    def __init__(self, *, watched: bool) -> None:
        self.near, self.far = socket.socketpair()
        self.near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        self.near.setblocking(False)
        self.far.setblocking(False)
        self.selector = BulkSelector()
        self.selector.register(self.near, selectors.EVENT_WRITE)
        self.queue = SendQueue(self.near, self.selector.bulks if watched else None)
        self.pushes = 0
        self.sealer = Sealer(KEY, BULK)
        self.came = bytearray()

    def flow(self) -> None:
        """Until nothing is queued, and all of it has come."""
        self.queue.push()
        wait_until(self._moved, "all was sent")

    def _moved(self) -> bool:
        if self.selector.select(0):
            self.queue.push()
            self.pushes += 1
        self.take()
        return self.queue.is_idle

    def take(self) -> None:
        try:
            while part := self.far.recv(50_000):
                self.came += part
        except BlockingIOError:
            return


@pytest.fixture(params=[False, True], ids=["pushed", "watched"])
def pipe(request: pytest.FixtureRequest) -> Iterator[Pipe]:
    made = Pipe(watched=request.param)
    with made.near, made.far:
        yield made
    made.selector.close()


def opened(number: int, sealed: bytes) -> bytes:
    opener, text = Opener(KEY), bytearray(sealed[:-TAG_BYTES])
    opener.begin(number)
    opener.add(text)
    assert opener.fits(sealed[-TAG_BYTES:])
    return bytes(text)


SIZES = [1, 1000, SLICE_BYTES - 1, SLICE_BYTES, SLICE_BYTES + 1, 3 * SLICE_BYTES + 5]


@pytest.mark.parametrize("readonly", [False, True])
def test_what_is_sealed_leaves_in_its_place_in_the_queue(pipe: Pipe, readonly: bool) -> None:
    done: list[int] = []
    bulks = [random.Random(size).randbytes(size) for size in SIZES]
    for number, bulk in enumerate(bulks):
        memory = memoryview(bulk if readonly else bytearray(bulk))
        pipe.queue.put(memoryview(b"head"), None)
        pipe.queue.put_sealed(
            memory, lambda number=number: done.append(number), pipe.sealer, number
        )
    pipe.queue.put(memoryview(b"end"), lambda: done.append(-1))
    whole = sum(4 + size + TAG_BYTES for size in SIZES) + 3
    assert pipe.queue.queued_bytes == whole
    pipe.flow()
    assert (pipe.queue.queued_bytes, pipe.queue.sent_bytes) == (0, whole)
    assert done == [*range(len(SIZES)), -1]

    at = 0
    for number, bulk in enumerate(bulks):
        assert pipe.came[at : at + 4] == b"head"
        at += 4 + len(bulk) + TAG_BYTES
        assert opened(number, pipe.came[at - len(bulk) - TAG_BYTES : at]) == bulk
    assert pipe.came[at:] == b"end"


def test_what_is_not_sealed_leaves_in_its_order(pipe: Pipe) -> None:
    done: list[int] = []
    sizes = [3, ALONE_BYTES - 1, 5_000_000, 4, ALONE_BYTES, 3_000_000]
    texts = [random.Random(size).randbytes(size) for size in sizes]
    for number, text in enumerate(texts):
        # Documents may not be written to.
        view = memoryview(text if number == len(texts) - 1 else bytearray(text))
        pipe.queue.put(view, lambda number=number: done.append(number))
    whole = sum(sizes)
    pipe.queue.push()
    assert pipe.queue.queued_bytes + pipe.queue.sent_bytes == whole
    assert done == [0, 1]
    pipe.flow()
    assert (pipe.queue.queued_bytes, pipe.queue.sent_bytes) == (0, whole)
    assert done == [*range(len(sizes))]
    assert pipe.came == b"".join(texts)
    assert not pipe.selector.bulks


def test_who_is_watched_is_woken_once_for_a_view() -> None:
    pipe = Pipe(watched=True)
    with pipe.near, pipe.far:
        # On a busy machine it would be shown by the clock as well.
        pipe.selector.bulks._state.show_us = 10**12
        pipe.queue.put(memoryview(bytearray(8_000_000)))
        pipe.flow()
        assert (len(pipe.came), pipe.pushes) == (8_000_000, 1)
    pipe.selector.close()


def test_a_view_that_leaves_is_its_owner_s_when_the_queue_is_closed(pipe: Pipe) -> None:
    memory = bytearray(5_000_000)
    done: list[int] = []
    pipe.queue.put(memoryview(memory), lambda: done.append(1))
    pipe.queue.push()
    pipe.queue.close()
    assert done == [1]
    assert not pipe.selector.bulks
    pipe.take()
    came = len(pipe.came)
    pipe.selector.select(0)
    pipe.take()
    assert len(pipe.came) == came


def test_a_queue_that_is_stuck_holds_one_slice_and_changes_nothing(pipe: Pipe) -> None:
    content = random.Random(1).randbytes(8 * SLICE_BYTES)
    memory = [bytearray(content) for _ in range(3)]
    done: list[int] = []
    for number, each in enumerate(memory):
        pipe.queue.put_sealed(
            memoryview(each), lambda number=number: done.append(number), pipe.sealer, number
        )
    pipe.queue.push()
    pipe.queue.push()
    assert pipe.queue._slice is not None
    assert len(pipe.queue._slice) == SLICE_BYTES
    assert done == []
    assert all(each == content for each in memory)
    pipe.flow()
    assert done == [0, 1, 2]
    assert all(each == content for each in memory)
    assert pipe.queue._slice is None, "an idle connection holds nothing"


def test_what_is_sealed_is_its_owner_s_again_when_the_queue_is_closed(pipe: Pipe) -> None:
    done: list[int] = []
    for number in range(3):
        pipe.queue.put_sealed(
            memoryview(bytes(SLICE_BYTES)), lambda number=number: done.append(number),
            pipe.sealer, number,
        )  # fmt: skip
    pipe.queue.push()
    pipe.queue.close()
    assert done == [0, 1, 2]
    assert pipe.queue._slice is None


def test_who_is_done_may_queue_more(pipe: Pipe) -> None:
    """From within the push that says so."""
    bulk = bytes(1000)

    def more() -> None:
        pipe.queue.put_sealed(memoryview(bulk), None, pipe.sealer, 1)

    pipe.queue.put_sealed(memoryview(bulk), more, pipe.sealer, 0)
    pipe.flow()
    size = len(bulk) + TAG_BYTES
    assert [opened(0, pipe.came[:size]), opened(1, pipe.came[size:])] == [bulk, bulk]
