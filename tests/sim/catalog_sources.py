"""A target's disk, as `ckpt catalog rebuild` reads it; or one that does not answer."""

from __future__ import annotations

from copy import deepcopy

from ckpt.aio.directory_scan import scan
from ckpt.base.errors import Corrupt, Unavailable
from ckpt.base.ids import CheckpointId, TargetId
from ckpt.format.checksum import xxh3_128
from ckpt.format.column import ColumnHeader
from ckpt.format.documents.cluster_map import decode_map
from ckpt.format.documents.file import DocumentHeader
from ckpt.format.messages.hello import OLDEST_VERSION
from ckpt.format.messages.reading import DocumentKind
from ckpt.testing.disk import FakeDisk, Keep
from ckptd.catalog.rebuild import Holdings
from tests.sim.target_node import TargetNode


class DiskSource:
    """What is durable there, whether its process runs or not."""

    def __init__(self, target: TargetNode) -> None:
        self.name = target.name
        self._disk = target.disk
        self._files: dict[tuple[DocumentKind, CheckpointId], tuple[str, DocumentHeader]] = {}

    @classmethod
    def at_once(cls, target: TargetNode) -> DiskSource:
        """What it would be if the power went now; the target goes on."""
        found = cls(target)
        found._disk = _without_power(target.disk)
        return found

    def holdings(self) -> Holdings:
        loaded = scan(self._disk, 0)
        checkpoints = set()
        for found in loaded.files:
            match found.header:
                case ColumnHeader() as header:
                    checkpoints.add(header.column.payload.checkpoint)
                case DocumentHeader() as header:
                    key = (DocumentKind(header.kind), header.checkpoint)
                    self._files[key] = (found.file, header)
                    checkpoints.add(header.checkpoint)
        map = decode_map(loaded.map) if loaded.map else None
        files, needs = frozenset(self._files), max(OLDEST_VERSION, loaded.protocol)
        target = TargetId(self.name)
        return Holdings(frozenset(checkpoints), files, loaded.term, needs, map, target)

    def document(self, kind: DocumentKind, checkpoint: CheckpointId) -> bytes:
        file, header = self._files[(kind, checkpoint)]
        content = self._disk.durable(file) or b""
        for copy in range(header.copies):
            start = header.copy_offset(copy)
            document = content[start : start + header.total_bytes]
            if xxh3_128(document) == header.digest:
                return document
        raise Corrupt(f"{file} fails its checksum")


def _without_power(disk: FakeDisk) -> FakeDisk:
    copied = deepcopy(disk)
    copied.faults.clear()
    copied.crash(Keep.SOME)
    return copied


class AwaySource:
    """A target that does not answer whoever makes the catalog."""

    def __init__(self, name: str) -> None:
        self.name = name

    def holdings(self) -> Holdings:
        raise Unavailable("it does not answer")

    def document(self, kind: DocumentKind, checkpoint: CheckpointId) -> bytes:
        raise Unavailable("it does not answer")
