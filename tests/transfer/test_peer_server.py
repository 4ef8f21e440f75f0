"""A reader gives other readers what it has read, straight from where it landed."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from ckpt.aio.net.wire_policy import FollowedWire
from ckpt.base.errors import NoSpace, Unavailable
from ckpt.base.ids import ColumnId, ColumnNumber, PayloadId, Rank
from ckpt.erasure.code import Code
from ckpt.format.checksum import crc32, xxh3_128
from ckpt.format.messages import Message
from ckpt.format.messages.hello import Failed, Wire
from ckpt.format.messages.reading import (
    ByteRange,
    ByteRuns,
    RangeData,
    RangesDone,
    ReadManifest,
    ReadRanges,
)
from ckpt.protocol.reader.events import ReadLimits
from ckpt.protocol.runs.spans import Spans
from ckpt.transfer.landings import Landings
from ckpt.transfer.payload_receiver import read_payloads
from ckpt.transfer.peer_server import PeerServer
from ckpt.transfer.read_job import PayloadDamaged, ReadJob, ReceiverOptions
from tests.aio.netkit import SECRET, RawPeer
from tests.aio.tap import Tap, Way
from tests.no_descriptors import no_descriptors
from tests.protocol.reading import PAYLOAD, Columns
from tests.waiting import wait_until

CODE = Code(4, 2)
CELL = 64 * 1024
SIZE = 24 * CELL * CODE.k + 12_345
HASTY = ReceiverOptions(SECRET, "reader", "cluster-a", limits=ReadLimits(timeout_us=0))


@pytest.fixture(scope="module")
def data() -> Columns:
    return Columns.make(CODE, SIZE, CELL, seed=3)


def landed(data: Columns, cuts: int = 1) -> Landings:
    """The payload's bytes, in so many pieces of memory."""
    landings = Landings()
    whole = np.frombuffer(data.payload, np.uint8).copy()
    borders = np.linspace(0, SIZE, cuts + 1).astype(int).tolist()
    for start, end in pairwise(borders):
        landings.add_range(start, whole[start:end].copy())
    return landings


def job(data: Columns, landings: Landings) -> ReadJob:
    return ReadJob(PAYLOAD, data.layout, xxh3_128(data.manifest), (), {}, landings)


@contextmanager
def peer(
    data: Columns, spans: Spans, cuts: int = 1, directory: Path | None = None
) -> Iterator[PeerServer]:
    with closing(PeerServer(SECRET, "cluster-a", "127.0.0.1", directory)) as server:
        server.offer(job(data, landed(data, cuts)), spans, data.manifest)
        yield server


def read(data: Columns, server: PeerServer, spans: Spans) -> bytes:
    memory = np.zeros(SIZE, np.uint8)
    landings = Landings()
    for start, end in spans:
        landings.add_range(start, memory[start:end])
    read_payloads([job(data, landings).from_peer(server.address)], HASTY)
    return b"".join(memory[start:end].tobytes() for start, end in spans)


def test_a_whole_payload_comes_from_one_peer(data: Columns) -> None:
    with peer(data, ((0, SIZE),)) as server:
        assert read(data, server, ((0, SIZE),)) == data.payload


def test_runs_that_lie_apart_are_put_together(data: Columns, tmp_path: Path) -> None:
    with peer(data, ((0, SIZE),), 97, tmp_path) as server:
        assert server.address.unix
        spans = ((5, 70_000), (3 * CELL, 9 * CELL + 1), (SIZE - 700, SIZE))
        assert read(data, server, spans) == b"".join(data.payload[a:b] for a, b in spans)


@contextmanager
def nothing_stays() -> Iterator[None]:
    """Neither a descriptor nor a thread."""
    before = len(os.listdir("/proc/self/fd"))
    yield
    gc.collect()
    # What a thread of an earlier test has open for a moment does not stay.
    wait_until(lambda: len(os.listdir("/proc/self/fd")) == before, "all descriptors are closed")
    assert not any(each.name == "ckpt-peers" for each in threading.enumerate())


@pytest.mark.parametrize("left", range(5))
def test_who_has_no_descriptor_for_it_hears_so(left: int) -> None:
    """And reads alone."""
    with nothing_stays():
        spare = [os.open(os.devnull, os.O_RDONLY) for _ in range(left)]
        with no_descriptors():
            for number in spare:
                os.close(number)
            with pytest.raises(Unavailable, match="Too many open files"):
                PeerServer(SECRET, "cluster-a", "127.0.0.1", None)


def test_who_has_no_memory_for_it_hears_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """And reads alone."""
    monkeypatch.setattr("ckpt.transfer.peer_server.FRAME_BULK_BYTES_MAX", 1 << 60)
    with nothing_stays(), pytest.raises(NoSpace, match="Cannot allocate memory"):
        PeerServer(SECRET, "cluster-a", "127.0.0.1", None)


@pytest.mark.parametrize(
    ("coordinator", "encrypted"),
    [(Wire.ENCRYPT, True), (None, True), (Wire.MAC, False), (Wire.PLAIN, False)],
)
def test_a_peer_encrypts_where_its_coordinator_does(
    data: Columns, coordinator: Wire | None, encrypted: bool
) -> None:
    """Asked at each connection: which session there is may be known later than the address."""
    said: list[Wire | None] = [Wire.PLAIN]
    wire = FollowedWire(lambda: said[0])
    with closing(PeerServer(SECRET, "cluster-a", "127.0.0.1", None, wire)) as server:
        said[0] = coordinator
        server.offer(job(data, landed(data)), ((0, SIZE),), data.manifest)
        host, _, port = server.address.address.rpartition(":")
        assert host == "127.0.0.1"
        tap = Tap(int(port))
        try:
            there = structs.replace(server.address, address=f"127.0.0.1:{tap.port}")
            landings = Landings()
            memory = np.zeros(SIZE, np.uint8)
            landings.add_range(0, memory)
            read_payloads([job(data, landings).from_peer(there)], HASTY)
        finally:
            tap.close()
        assert memory.tobytes() == data.payload
        assert (data.payload[:200] not in bytes(tap.said[Way.DOWN])) is encrypted


def test_what_was_not_offered_is_not_given(data: Columns) -> None:
    with peer(data, ((0, 4 * CELL),)) as server:
        server.offer(job(data, landed(data)), ((6 * CELL, 8 * CELL),), None)
        given = ((0, 4 * CELL), (6 * CELL, 8 * CELL))
        assert read(data, server, given) == b"".join(data.payload[a:b] for a, b in given)
        with pytest.raises(Unavailable, match="are not here"):
            read(data, server, ((4 * CELL, 5 * CELL),))


def test_bytes_that_changed_in_a_peers_memory_are_not_taken(data: Columns) -> None:
    changed = landed(data)
    place = changed.place(CELL, CELL + 1)
    assert place is not None
    place[0] ^= 1
    with closing(PeerServer(SECRET, "cluster-a", "127.0.0.1", None)) as server:
        server.offer(job(data, changed), ((0, SIZE),), data.manifest)
        with pytest.raises(PayloadDamaged):
            read(data, server, ((0, SIZE),))
        server.offer(job(data, landed(data)), (), None)
        assert read(data, server, ((0, SIZE),)) == data.payload


def test_a_question_that_has_no_answer_gets_one_reason_and_the_next_one_is_answered(
    data: Columns, caplog: pytest.LogCaptureFixture
) -> None:
    column = ColumnId(PAYLOAD, ColumnNumber(1))
    strange = ColumnId(PayloadId(PAYLOAD.checkpoint, Rank(4)), ColumnNumber(1))
    questions: list[Message] = [
        ReadRanges(column, (ByteRuns(10, 10),)),
        ReadRanges(column, (ByteRuns(0, 5), ByteRuns(3 * CELL, 5 * CELL))),
        ReadRanges(strange, (ByteRuns(0, 5),)),
        ReadManifest(strange),
    ]
    with peer(data, ((0, SIZE),)) as server, RawPeer(_port(server)) as raw:
        raw.shake()
        for number, question in enumerate(questions):
            raw.send(question, request=number)
        reasons = [raw.receive() for _ in questions]
        raw.send(ReadRanges(column, (ByteRuns(5, 12),)), request=9)
        given = [raw.receive() for _ in range(2)]
    assert [number for number, _ in reasons] == [0, 1, 2, 3]
    codes = [reason.code for _, reason in reasons if isinstance(reason, Failed)]
    assert codes == ["refused", "unavailable", "unavailable", "not_found"]
    crc = crc32(data.columns[1][5:12])
    assert given == [(9, RangeData((ByteRuns(5, 12),), crc)), (9, RangesDone())]
    assert not caplog.records, "the loop tells of what is thrown in a callback"


def test_whatever_is_given_can_be_asked_for_and_nothing_beside_it(data: Columns) -> None:
    column = ColumnId(PayloadId(PAYLOAD.checkpoint, Rank(9)), ColumnNumber(2))

    def view(number: ColumnNumber, wanted: ByteRange) -> memoryview | None:
        whole = memoryview(data.columns[number])
        return whole[wanted.start : wanted.end] if wanted.end <= 4096 else None

    with peer(data, ((0, SIZE),)) as server, RawPeer(_port(server)) as raw:
        server.give(column.payload, view)
        raw.shake()
        for start in (4000, 4090):
            raw.send(ReadRanges(column, (ByteRuns(start, start + 50),)), request=start)
        answers = [raw.receive() for _ in range(3)]
    crc = crc32(data.columns[2][4000:4050])
    assert answers[:2] == [(4000, RangeData((ByteRuns(4000, 4050),), crc)), (4000, RangesDone())]
    assert isinstance(answers[2][1], Failed)


def _port(server: PeerServer) -> int:
    return int(server.address.address.rpartition(":")[2])


def test_a_peer_that_closed_gives_nothing(data: Columns) -> None:
    with peer(data, ((0, SIZE),)) as server:
        address = server
    with pytest.raises(Unavailable):
        read(data, address, ((0, SIZE),))
    server.close()


def test_what_a_closed_peer_has_given_is_freed_without_the_cyclic_collector(data: Columns) -> None:
    gc.collect()
    gc.disable()
    try:
        with closing(PeerServer(SECRET, "cluster-a", "127.0.0.1", None)) as server:
            memory = np.frombuffer(data.payload, np.uint8).copy()
            landings = Landings()
            landings.add_range(0, memory)
            server.offer(job(data, landings), ((0, SIZE),), data.manifest)
            assert read(data, server, ((0, SIZE),)) == data.payload
        gone = weakref.ref(memory)
        del memory, landings, server
        assert gone() is None
    finally:
        gc.enable()
