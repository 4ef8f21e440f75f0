"""Chunks that come from another rank: taken when the manifest proves them, else not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

import numpy as np
import pytest

from ckpt.base.errors import Corrupt
from ckpt.base.ids import CheckpointId, ColumnNumber, PayloadId
from ckpt.format.messages.reading import ByteRange
from ckpt.objects.planning import WriteOptions
from ckpt.objects.reader import StoredCheckpoint, open_stored
from ckpt.objects.sinks.file_sink import FileSink
from ckpt.objects.source import Array, Wish
from ckpt.objects.stored_chunk import StoredChunk
from ckpt.objects.writer import WriteLimits, write_checkpoint
from ckpt.protocol.runs.spans import Spans
from ckpt.transfer.peer_server import PeerServer
from ckpt_client.load.together.chunks import SharedChunks
from ckpt_client.load.together.meeting import Meeting
from ckpt_client.load.together.sharing import Part
from tests.aio.netkit import SECRET
from tests.landing import in_turn
from tests.objects.sources import HEADER, MemorySource, many_kinds

CHECKPOINT = CheckpointId(*HEADER.key)
MEETING = Meeting(
    share=lambda message, bulk: pytest.fail("nobody is asked"),
    wire=lambda: None,
    address="127.0.0.1:9",
    secret=SECRET,
    cluster="c0ffee",
    name="test",
    timeout_s=5.0,
)


@pytest.fixture(scope="module")
def sink(tmp_path_factory: pytest.TempPathFactory) -> FileSink:
    """With a checkpoint of tensors of every kind."""
    sink = FileSink(tmp_path_factory.mktemp("bucket"))
    write_checkpoint(sink, MemorySource(many_kinds()), WriteOptions(), WriteLimits())
    return sink


class Reader:
    """One rank that wants everything, shared."""

    def __init__(self, sink: FileSink) -> None:
        self.stored = open_stored(sink, *HEADER.key[:2])
        self.memories = {
            tensor.name: np.zeros(tensor.global_shape, array.dtype)
            for tensor in self.stored.tensors()
            for array in [many_kinds()[tensor.name]]
        }
        wishes = [
            Wish(tensor, None, (0,) * len(tensor.global_shape), self.memories[tensor.name], True)
            for tensor in self.stored.tensors()
        ]
        self.chunks: list[StoredChunk] = []
        self.stored.read(wishes, together=self)
        self.shared = SharedChunks(self.stored, CHECKPOINT, self.chunks, MEETING)

    def read(self, stored: StoredCheckpoint, chunks: Sequence[StoredChunk]) -> None:
        """See ckpt.objects.reader.Together: nothing is read yet."""
        self.chunks = list(chunks)

    def close(self) -> None:
        self.shared.close()
        self.stored.close()

    def holds(self, expected: dict[str, Array]) -> set[str]:
        """Names of tensors that are here bit by bit, of those that lie in arrays of their own."""
        names = {array.path.partition("/")[2] for array in self.stored.manifest.arrays}
        return {
            name
            for name, memory in self.memories.items()
            if name in names and memory.tobytes() == expected[name].tobytes()
        }


@pytest.fixture
def readers(sink: FileSink) -> Iterator[tuple[Reader, Reader]]:
    """Two ranks."""
    with closing(Reader(sink)) as one, closing(Reader(sink)) as other:
        yield one, other


def bytes_of(part: Part) -> int:
    return sum(end - start for spans in part.values() for start, end in spans)


def large() -> set[str]:
    return {name for name, array in many_kinds().items() if array.nbytes >= 1 << 20}


def test_every_chunk_is_given_as_it_is_stored_or_not_kept(readers: tuple[Reader, Reader]) -> None:
    giver, taker = readers
    with closing(PeerServer(SECRET, "c0ffee", "127.0.0.1", None)) as server:
        giver.shared.read(giver.shared.wanted(), 0)
        giver.shared.offer(giver.shared.wanted(), server)
        wanted = taker.shared.wanted()
        assert wanted == giver.shared.wanted()
        fetched = taker.stored.statistics().fetched_bytes
        came = taker.shared.read_from({server.address: wanted}, 0)
    found = taker.stored.statistics()
    assert found.fetched_bytes == fetched
    assert found.peer_bytes == bytes_of(came) >= bytes_of(wanted) // 2
    left: dict[object, Spans] = {
        number: tuple(span for span in spans if not _inside(span, came.get(number, ())))
        for number, spans in wanted.items()
    }
    taker.shared.read(left, 0)  # type: ignore[arg-type]
    assert taker.holds(many_kinds()) == large()


def _inside(span: tuple[int, int], spans: Spans) -> bool:
    return any(start <= span[0] and span[1] <= end for start, end in spans)


def flipped(column: ColumnNumber, wanted: ByteRange) -> memoryview | None:
    """A peer that gives as many bytes as it is asked for, and wrong ones."""
    return memoryview(bytes(wanted.end - wanted.start))


def nothing(column: ColumnNumber, wanted: ByteRange) -> memoryview | None:
    """A peer that has not got what it was said to have."""
    return None


@pytest.mark.parametrize("view", in_turn([flipped, nothing], every=2))
def test_a_peer_that_gives_something_else_or_nothing_fills_nothing(
    readers: tuple[Reader, Reader],
    view: Callable[[ColumnNumber, ByteRange], memoryview | None],
) -> None:
    _, taker = readers
    wanted = taker.shared.wanted()
    with closing(PeerServer(SECRET, "c0ffee", "127.0.0.1", None)) as server:
        for number in wanted:
            server.give(PayloadId(CHECKPOINT, number), view)
        assert taker.shared.read_from({server.address: wanted}, 0) == {}
    assert taker.stored.statistics().peer_bytes == 0
    assert all(not memory.tobytes().strip(b"\0") for memory in taker.memories.values())


def test_a_peer_that_is_gone_gives_nothing(readers: tuple[Reader, Reader]) -> None:
    _, taker = readers
    with closing(PeerServer(SECRET, "c0ffee", "127.0.0.1", None)) as server:
        address = server.address
    assert taker.shared.read_from({address: taker.shared.wanted()}, 0) == {}


def test_bytes_that_the_manifest_does_not_prove_are_refused_by_the_objects_name(
    readers: tuple[Reader, Reader],
) -> None:
    _, taker = readers
    chunk = taker.chunks[0]
    start, end = taker.stored.locate(chunk)
    with pytest.raises(Corrupt, match="chunk 0 is not what was committed"):
        taker.stored.take(chunk, bytes(end - start))
