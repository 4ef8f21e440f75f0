"""A target's disk, as `ckpt catalog rebuild` reads it."""

from __future__ import annotations

from ckpt.aio.disk import scan
from ckpt.base.errors import Corrupt
from ckpt.base.ids import CheckpointId
from ckpt.format.checksum import xxh3_128
from ckpt.format.column import ColumnHeader
from ckpt.format.documents.file import DocumentHeader
from ckpt.format.messages.reading import DocumentKind
from ckptd.catalog.rebuild import Holdings
from tests.sim.target_node import TargetNode


class DiskSource:
    """What is durable there, whether its process runs or not."""

    def __init__(self, target: TargetNode) -> None:
        self._target = target
        self._files: dict[tuple[DocumentKind, CheckpointId], tuple[str, DocumentHeader]] = {}

    @property
    def name(self) -> str:
        return self._target.name

    def holdings(self) -> Holdings:
        loaded = scan(self._target.disk, 0)
        checkpoints = set()
        for found in loaded.files:
            match found.header:
                case ColumnHeader() as header:
                    checkpoints.add(header.column.payload.checkpoint)
                case DocumentHeader() as header:
                    key = (DocumentKind(header.kind), header.checkpoint)
                    self._files[key] = (found.file, header)
                    checkpoints.add(header.checkpoint)
        return Holdings(frozenset(checkpoints), frozenset(self._files), loaded.term)

    def document(self, kind: DocumentKind, checkpoint: CheckpointId) -> bytes:
        file, header = self._files[(kind, checkpoint)]
        content = self._target.disk.durable(file) or b""
        for copy in range(header.copies):
            start = header.copy_offset(copy)
            document = content[start : start + header.total_bytes]
            if xxh3_128(document) == header.digest:
                return document
        raise Corrupt(f"{file} fails its checksum")
