"""Chunks of a stored checkpoint as what ranks read together.

    mine    store --stored bytes--> verified, into place --peer server--> other ranks
    theirs  their peer servers --stored bytes--> verified by the same manifest, into place

What travels is what lies in the store, so that the manifest's CRC-32 of a chunk proves it wherever
it comes from. To the coordinator an object is what a payload is in the tier: its number stands for
the rank, a span is one chunk, never parted.

Memory: an uncompressed chunk is given from where it landed. What did not land as it is stored
(compressed, at an array's edge, wanted in part) is kept until the load ends, up to half of what the
load reads: of N ranks that begin together each keeps an N-th.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Final

import numpy as np

from ckpt.aio.net.rpc import RpcClient
from ckpt.base.errors import CkptError, PeerError
from ckpt.base.ids import CheckpointId, ColumnId, ColumnNumber, PayloadId, Rank
from ckpt.base.limits import PAYLOAD_BYTES_MAX
from ckpt.base.units import MiB
from ckpt.format.messages.hello import Role
from ckpt.format.messages.loading import TargetAddress
from ckpt.format.messages.reading import ByteRange, ByteRuns, RangeData, ReadRanges
from ckpt.objects.reader import StoredCheckpoint
from ckpt.objects.stored_chunk import StoredChunk
from ckpt.protocol.handshake import Caller
from ckpt.protocol.runs.spans import covers
from ckpt.transfer.peer_server import PeerServer
from ckpt.transfer.target_links import nearest_address
from ckpt_client.load.together.meeting import Meeting
from ckpt_client.load.together.sharing import SHARED_BYTES_MIN, Part, SharedReading, merged

PIECE_BYTES: Final = 4 * MiB
"""Of one question to a peer."""
PATIENCE_S: Final = 4.0
"""For a peer's answer; less than the coordinator has for a word from us."""
KEPT_FRACTION: Final = 2
"""What is kept for peers is at most this part of what is read."""
OBJECT: Final = ColumnNumber(0)
"""An object has its own bytes as its one column."""

_log = logging.getLogger("ckpt.restore")


class StoreTogether:
    """I read shared chunks with the ranks that I meet; see ckpt.objects.reader.Together."""

    def __init__(self, meeting: Meeting, key: str) -> None:
        """key: what ranks that read together have in common."""
        self._meeting = meeting
        self._key = key

    def read(self, stored: StoredCheckpoint, chunks: Sequence[StoredChunk]) -> None:
        if sum(chunk.array.grid.chunk_bytes for chunk in chunks) < SHARED_BYTES_MIN:
            stored.each(stored.fetch, chunks)
            return
        checkpoint = CheckpointId(*stored.header.key)
        shared = SharedChunks(stored, checkpoint, chunks, self._meeting)
        try:
            # Only who reads the very same manifest means the same bytes by the same numbers.
            key = f"{self._key}/{stored.digest}"
            SharedReading(self._meeting, checkpoint, key, shared).read()
        finally:
            shared.close()


@dataclass(frozen=True, slots=True)
class _Here:
    """A chunk's stored bytes in memory: the first of them, and the rest."""

    start: int
    body: memoryview
    tail: bytes

    def view(self, start: int, end: int) -> memoryview | None:
        """Bytes [start, end) of its object, copied where the two meet."""
        low, high = start - self.start, end - self.start
        if low < 0 or high > len(self.body) + len(self.tail):
            return None
        if high <= len(self.body):
            return self.body[low:high]
        over = max(0, low - len(self.body))
        return memoryview(bytes(self.body[low:]) + self.tail[over : high - len(self.body)])


class SharedChunks:
    """I fill these chunks; see ckpt_client.load.together.sharing.Shared. Close me."""

    align_bytes = PAYLOAD_BYTES_MAX

    def __init__(
        self,
        stored: StoredCheckpoint,
        checkpoint: CheckpointId,
        chunks: Sequence[StoredChunk],
        meeting: Meeting,
    ) -> None:
        """Looks up where the chunks lie. Raises Corrupt, Unavailable."""
        self._stored = stored
        self._checkpoint = checkpoint
        self._meeting = meeting
        self._chunks: dict[Rank, list[StoredChunk]] = {}
        for chunk in chunks:
            self._chunks.setdefault(self._number(chunk), []).append(chunk)
        # Object by object: each index is asked for once.
        stored.each(lambda of_object: of_object.sort(key=stored.locate), self._chunks.values())
        sizes = [end - start for start, end in map(stored.locate, chunks)]
        #: So many bytes may still be kept only to give them to peers.
        self._kept_bytes_left = sum(sizes) // KEPT_FRACTION
        #: What peers may ask for, by object; the peer server's thread reads it.
        self._here: dict[Rank, tuple[_Here, ...]] = {}
        self._peers: dict[TargetAddress, RpcClient] = {}
        #: Peers that once gave nothing, or something else: they are not asked again.
        self._bad: set[TargetAddress] = set()
        #: Guards what I keep and `_bad`: chunks are read by several threads.
        self._lock = Lock()

    def wanted(self) -> Part:
        return {
            number: tuple(map(self._stored.locate, chunks))
            for number, chunks in self._chunks.items()
        }

    def read(self, part: Part, done_bytes: int) -> None:
        self._stored.each(self._fetch, self._within(part))

    def offer(self, part: Part, server: PeerServer) -> None:
        for number in part:
            server.give(PayloadId(self._checkpoint, number), partial(self._view, number))

    def read_from(self, peers: Mapping[TargetAddress, Part], done_bytes: int) -> Part:
        for peer in peers:
            self._peer(peer)
        # By turns, so that none of them is asked for everything at once.
        asked = sorted(
            (place, number, peer, chunk)
            for number, (peer, part) in enumerate(peers.items())
            for place, chunk in enumerate(self._within(part))
        )
        came: list[Part] = []

        def ask(one: tuple[TargetAddress, StoredChunk]) -> None:
            if self._came(*one):
                came.append({self._number(one[1]): (self._stored.locate(one[1]),)})

        self._stored.each(ask, [(peer, chunk) for _, _, peer, chunk in asked])
        return merged(came)

    def close(self) -> None:
        """Leave the peers. Idempotent."""
        for client in self._peers.values():
            client.close()

    # ----------------------------------------------------------------------- what I read

    def _fetch(self, chunk: StoredChunk) -> None:
        raw = memoryview(self._stored.fetch(chunk))
        start, _ = self._stored.locate(chunk)
        landed = chunk.landed()
        with self._lock:
            if landed is not None:
                here = _Here(start, landed, bytes(raw[len(landed) :]))
            elif len(raw) <= self._kept_bytes_left:
                self._kept_bytes_left -= len(raw)
                here = _Here(start, raw, b"")
            else:
                return  # Who is sent here for it reads it as I did.
            number = self._number(chunk)
            self._here[number] = (*self._here.get(number, ()), here)

    def _view(self, number: Rank, column: ColumnNumber, wanted: ByteRange) -> memoryview | None:
        with self._lock:
            here = self._here.get(number, ())
        found = (one.view(wanted.start, wanted.end) for one in here)
        return next((view for view in found if view is not None), None)

    # ----------------------------------------------------------------------- what peers read

    def _came(self, peer: TargetAddress, chunk: StoredChunk) -> bool:
        """Ask for one chunk, unless this peer has failed before; whether it is filled now."""
        if peer in self._bad:
            return False
        try:
            self._stored.take(chunk, self._ask(self._peer(peer), chunk))
        except CkptError as error:
            with self._lock:
                is_first = peer not in self._bad
                self._bad.add(peer)
            if is_first:
                _log.warning("another rank gives nothing more: %s", error.message)
            return False
        return True

    def _ask(self, client: RpcClient, chunk: StoredChunk) -> memoryview:
        first, last = self._stored.locate(chunk)
        column = ColumnId(PayloadId(self._checkpoint, self._number(chunk)), OBJECT)
        raw = np.empty(last - first, np.uint8).data
        for start in range(first, last, PIECE_BYTES):
            end = min(start + PIECE_BYTES, last)
            question = ReadRanges(column, (ByteRuns(start, end),))
            answer, bulk = client.call(question, timeout_s=PATIENCE_S)
            if not isinstance(answer, RangeData) or len(bulk) != end - start:
                raise PeerError(f"{client.address} answers for a chunk with something else")
            raw[start - first : end - first] = bulk
        return raw

    def _peer(self, where: TargetAddress) -> RpcClient:
        if where not in self._peers:
            meeting = self._meeting
            caller = Caller.of_target(
                meeting.secret, Role.READER, meeting.name, where.target, meeting.cluster
            )
            self._peers[where] = RpcClient(nearest_address(where), caller, lasting=False)
        return self._peers[where]

    # ----------------------------------------------------------------------- chunks

    def _number(self, chunk: StoredChunk) -> Rank:
        return Rank(self._stored.object_number(chunk))

    def _within(self, part: Part) -> list[StoredChunk]:
        return [
            chunk
            for number, spans in part.items()
            for chunk in self._chunks.get(number, ())
            if covers(spans, *self._stored.locate(chunk))
        ]
