"""The index of a checkpoint, fetched from the targets that hold it: whole when it is small, else
in ranges."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Final, Self

from ckpt.aio.net.rpc import RpcClient
from ckpt.base.errors import CkptError, Corrupt, Unavailable
from ckpt.base.ids import CheckpointId, TargetId
from ckpt.base.system_errors import Scarce
from ckpt.base.units import MiB
from ckpt.format.checksum import Buffer, Xxh3, xxh3_128
from ckpt.format.documents.record import CommitRecord
from ckpt.format.index.reader import IndexReader
from ckpt.format.messages.hello import Role
from ckpt.format.messages.loading import TargetAddress
from ckpt.format.messages.reading import DocumentData, DocumentKind, ReadDocument
from ckpt.protocol.handshake import Caller
from ckpt.transfer.target_links import nearest_address

WHOLE_BYTES_MAX: Final = 1 * MiB
"""An index up to this size is read whole, so that its digest can be compared with the record's."""
PART_BYTES: Final = 1 * MiB
"""Bytes that one question asks for."""
PATIENCE_S: Final = (1.5, 10.0)
"""Patience with one answer: while other copies are left, and after each was tried once. Then it
ends with the time of who asks."""


class IndexUnreadable(Unavailable):
    """No copy that was reached gave the index: the coordinator can say whether one is left."""


class IndexSource:
    """I fetch one checkpoint's index. A copy that is silent or damaged is passed over for the
    next. Close me."""

    def __init__(
        self,
        record: CommitRecord,
        holders: Sequence[TargetId],
        addresses: Mapping[TargetId, TargetAddress],
        secret: bytes,
        name: str,
    ) -> None:
        """`holders`: who should have a copy; the record's targets, unless somebody knows better.
        `name`: the reader's, for people."""
        self._record = record
        self._holders = holders
        self._clients: dict[TargetId, RpcClient] = {}
        try:
            for target in holders:
                if target in addresses:
                    caller = Caller.of_target(secret, Role.READER, name, target, record.cluster)
                    self._clients[target] = RpcClient(nearest_address(addresses[target]), caller)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connections; the reader fetches no more."""
        for client in self._clients.values():
            client.close()

    def reader(self, timeout_s: float) -> IndexReader:
        """The index. Raises Unavailable when none of its targets is live, IndexUnreadable, or
        Corrupt when the copies that were read do not make a whole one."""
        deadline = time.monotonic() + timeout_s
        if not self._clients:
            names = ", ".join(self._holders)
            raise Unavailable(f"the index lies on targets {names}, none of which is live")
        problem: CkptError | None = None
        for patience_s, end_s in zip(PATIENCE_S, (math.inf, deadline), strict=True):
            try:
                return self._reader(patience_s, end_s)
            except CkptError as error:
                problem = error
                if not error.retryable or time.monotonic() > deadline:
                    break
        assert problem is not None
        raise problem

    @property
    def record(self) -> CommitRecord:
        return self._record

    def copies(self, patience_s: float) -> dict[TargetId, str]:
        """Read every copy whole and compare it with the record's digest: what is wrong with it, by
        the target that should have it; empty for one that is whole."""
        return {
            target: self._wrong_copy(self._clients[target], patience_s)
            if target in self._clients
            else "its target is not live"
            for target in self._holders
        }

    def _wrong_copy(self, client: RpcClient, patience_s: float) -> str:
        """Why it is not the index; empty when it is. A part of it is in memory at a time."""
        fetch, digest = _Fetch(client, self._checkpoint, patience_s), Xxh3()
        size = self._record.index_bytes
        try:
            for start in range(0, size, PART_BYTES):
                digest.update(fetch(start, min(size, start + PART_BYTES)))
        except CkptError as error:
            return error.message
        is_whole = digest.digest() == self._record.index_digest
        return "" if is_whole else "it is not what was committed"

    def _reader(self, patience_s: float, end_s: float) -> IndexReader:
        if self._record.index_bytes > WHOLE_BYTES_MAX:
            fetches = [_Fetch(client, self._checkpoint, patience_s) for client in self._ordered()]
            return IndexReader(*fetches)
        return IndexReader(*self._whole_copies(patience_s, end_s))

    def _whole_copies(self, patience_s: float, end_s: float) -> list[_Memory]:
        """One copy with the right digest, else all that could be read: their parts may mend each
        other."""
        size, damaged = self._record.index_bytes, []
        away: Unavailable = IndexUnreadable("no copy of the index")
        for client in self._ordered():
            left_s = min(patience_s, end_s - time.monotonic())
            if left_s <= 0:
                break
            try:
                document = bytes(_Fetch(client, self._checkpoint, left_s)(0, size))
            except (IndexUnreadable, Scarce) as error:
                away = error
                continue
            if xxh3_128(document) == self._record.index_digest:
                return [_Memory(document)]
            damaged.append(_Memory(document))
        if not damaged:
            raise away
        return damaged

    def _ordered(self) -> Sequence[RpcClient]:
        return list(self._clients.values())

    @property
    def _checkpoint(self) -> CheckpointId:
        return self._record.info.checkpoint


class _Memory:
    """A copy that was read whole."""

    def __init__(self, document: bytes) -> None:
        self._document = memoryview(document)

    def __call__(self, start: int, end: int) -> Buffer:
        if end > len(self._document):
            raise Corrupt(f"the index ends before byte {end}")
        return self._document[start:end]


class _Fetch:
    """Ranges of the copy on one target."""

    def __init__(self, client: RpcClient, checkpoint: CheckpointId, patience_s: float) -> None:
        self._client = client
        self._checkpoint = checkpoint
        self._patience_s = patience_s

    def __call__(self, start: int, end: int) -> Buffer:
        document = bytearray()
        while len(document) < end - start:
            at = start + len(document)
            part = self._part(at, min(end, at + PART_BYTES))
            document += part
        return document

    def _part(self, start: int, end: int) -> memoryview:
        # A target may split its answer; what comes after the first part is asked for again.
        question = ReadDocument(DocumentKind.INDEX, self._checkpoint, start, end)
        try:
            answer, bulk = self._client.call(question, timeout_s=self._patience_s)
        except Scarce:
            raise
        except CkptError as error:
            raise IndexUnreadable(f"the index is out of reach: {error.message}") from error
        if not isinstance(answer, DocumentData) or answer.offset != start or not len(bulk):
            # As one that is away: other copies may be whole.
            text = f"{self._client.address} answers for an index with something else"
            raise IndexUnreadable(text)
        return bulk[: end - start]
