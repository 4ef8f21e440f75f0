"""Where a rebuild learns what one target holds: from its daemon, or from its directory at rest."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from ckpt.aio.net.rpc import RpcClient
from ckpt.base.errors import Corrupt, Refused, Unavailable
from ckpt.base.ids import CheckpointId, TargetId
from ckpt.base.limits import PAGE_BYTES
from ckpt.base.units import MiB
from ckpt.format.checksum import xxh3_128
from ckpt.format.column import ColumnHeader
from ckpt.format.documents.cluster_map import ClusterMap, decode_map
from ckpt.format.documents.file import DocumentHeader
from ckpt.format.messages.hello import MOVES_VERSION, OLDEST_VERSION, Role
from ckpt.format.messages.reading import DocumentData, DocumentKind, ReadDocument
from ckpt.format.messages.targets import AskMap, ColumnsListed, ListColumns, MapTold
from ckpt.protocol.handshake import Caller
from ckpt.protocol.target.directory import identify
from ckpt.protocol.target.notes.map_note import MAP_FILE
from ckpt.protocol.target.term import (
    COORDINATOR_FILE,
    PROTOCOL_FILE,
    TERM_FILE,
    decode_protocol,
    noted_term,
)
from ckptd.target.identity import read_target_file

PART_BYTES: Final = 1 * MiB


@dataclass(frozen=True, slots=True)
class Holdings:
    """What one target has."""

    checkpoints: frozenset[CheckpointId]
    """Of columns and documents."""
    documents: frozenset[tuple[DocumentKind, CheckpointId]]
    term: int
    """The highest that it is known to have acknowledged."""
    protocol: int = OLDEST_VERSION
    """The protocol version that it demands of its peers, since its cluster's upgrade is
    finished.
    """
    map: ClusterMap | None = None
    """The cluster's map that it keeps; None without one that can be read."""
    target: TargetId = TargetId("")
    """The target's id, as it says; empty if it does not say."""


class TargetSource(Protocol):
    """One target, running or at rest. Methods raise Unavailable when it is out of reach."""

    @property
    def name(self) -> str:
        """For people."""

    def holdings(self) -> Holdings:
        """Everything of the cluster that is here."""

    def document(self, kind: DocumentKind, checkpoint: CheckpointId) -> bytes:
        """A document, whole. Raises Corrupt."""


class RunningTarget:
    """A target daemon, asked over its data port."""

    def __init__(self, address: str, secret: bytes) -> None:
        self.name = address
        self._client = RpcClient(
            address, Caller(secret, Role.ADMIN, "rebuild", server_role=Role.TARGET)
        )

    def close(self) -> None:
        """End the connection."""
        self._client.close()

    def cluster(self) -> str:
        """The id that it serves; raises Unavailable."""
        self._client.call(ListColumns(count_max=1))
        assert self._client.peer is not None
        return self._client.peer.cluster

    def holdings(self) -> Holdings:
        checkpoints: set[CheckpointId] = set()
        documents: set[tuple[DocumentKind, CheckpointId]] = set()
        cursor = ""
        while True:
            answer, _ = self._client.call(ListColumns(cursor))
            if not isinstance(answer, ColumnsListed):
                raise Unavailable(f"{self.name} cannot list what it holds")
            checkpoints |= {proof.column.payload.checkpoint for proof in answer.columns}
            documents |= {(each.kind, each.checkpoint) for each in answer.documents}
            if not answer.cursor:
                break
            cursor = answer.cursor
        checkpoints |= {checkpoint for _, checkpoint in documents}
        peer = self._client.peer
        term = 0 if peer is None else peer.epoch >> 32
        needs = OLDEST_VERSION if peer is None else max(OLDEST_VERSION, peer.needs)
        held = Holdings(frozenset(checkpoints), frozenset(documents), term, needs)
        keeps_map = peer is not None and peer.version >= MOVES_VERSION
        return self._with_map(held) if keeps_map else held

    def _with_map(self, held: Holdings) -> Holdings:
        answer, document = self._client.call(AskMap())
        if not isinstance(answer, MapTold):
            raise Unavailable(f"{self.name} cannot tell the cluster's map")
        return replace(held, map=_readable(document), target=answer.target)

    def document(self, kind: DocumentKind, checkpoint: CheckpointId) -> bytes:
        content = bytearray()
        total_bytes = 1
        while len(content) < total_bytes:
            start = len(content)
            end = None if start == 0 else min(total_bytes, start + PART_BYTES)
            answer, bulk = self._client.call(ReadDocument(kind, checkpoint, start, end))
            if not isinstance(answer, DocumentData) or answer.offset != start or not bulk:
                raise Corrupt(f"{self.name} cannot read {kind.value} of {checkpoint}")
            total_bytes = answer.total_bytes
            content += bulk
        return bytes(content)


class RestingTarget:
    """A target's directory, while no daemon works on it."""

    def __init__(self, directory: Path, cluster: str) -> None:
        self.name = str(directory)
        self._directory = directory
        self._cluster = cluster
        #: Files of the documents, with their headers; filled by `holdings`.
        self._files: dict[tuple[DocumentKind, CheckpointId], tuple[Path, DocumentHeader]] = {}

    def holdings(self) -> Holdings:
        if not self._directory.is_dir():
            raise Unavailable("no such directory")
        known = read_target_file(self._directory)
        if known is not None and known.cluster != self._cluster:
            raise Refused(f"it is of cluster {known.cluster}")
        checkpoints: set[CheckpointId] = set()
        for folder in ("columns", "documents"):
            for path in sorted((self._directory / folder).glob("*")):
                header = identify(f"{folder}/{path.name}", _outer_pages(path))
                match header:
                    case ColumnHeader() if header.cluster == self._cluster:
                        checkpoints.add(header.column.payload.checkpoint)
                    case DocumentHeader() if header.cluster == self._cluster:
                        kind = DocumentKind(header.kind)
                        self._files[(kind, header.checkpoint)] = (path, header)
                        checkpoints.add(header.checkpoint)
        map = _readable(self._note(MAP_FILE))
        term = noted_term(self._note(TERM_FILE), self._note(COORDINATOR_FILE))
        needs = max(OLDEST_VERSION, decode_protocol(self._note(PROTOCOL_FILE)))
        target = TargetId("" if known is None else known.target)
        return Holdings(frozenset(checkpoints), frozenset(self._files), term, needs, map, target)

    def document(self, kind: DocumentKind, checkpoint: CheckpointId) -> bytes:
        path, header = self._files[(kind, checkpoint)]
        content = path.read_bytes()
        for copy in range(header.copies):
            start = header.copy_offset(copy)
            document = content[start : start + header.total_bytes]
            if xxh3_128(document) == header.digest:
                return document
        raise Corrupt(f"{path} fails its checksum")

    def _note(self, file: str) -> bytes:
        try:
            return (self._directory / file).read_bytes()
        except OSError:
            return b""


def check_own(path: Path, cluster: str, folders: Sequence[Path]) -> None:
    """Raises Refused where `path` names a cluster that none of these targets is of: it was changed,
    and what they hold would be passed over.
    """
    known = [file.cluster for file in map(read_target_file, folders) if file is not None]
    if known and cluster not in known:
        raise Refused(
            f"{path} says cluster {cluster}, and its targets are of {', '.join(sorted({*known}))}",
            hint=f'put back what it said: cluster = "{known[0]}"',
        )


def _readable(document: bytes | memoryview) -> ClusterMap | None:
    try:
        return decode_map(document) if document else None
    except Corrupt:
        return None


def _outer_pages(path: Path) -> tuple[bytes, ...]:
    """The first and the last page of a file."""
    with path.open("rb") as file:
        first = file.read(PAGE_BYTES)
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - PAGE_BYTES))
        return first, file.read(PAGE_BYTES)
