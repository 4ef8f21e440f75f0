"""The catalog is lost: what do the targets alone say? For `ckpt catalog rebuild`.

A checkpoint comes back when one target has its commit record, and one the index that the record's
digest names; the index says which target's column counts. Everything else is refused with its
reason, and left untouched on the targets:

    no commit record          the attempt never committed, or its record's targets are not here
    tombstoned                deleted; kept as deleted, so that late columns are dropped; what later
                              ones refer to is kept for them
    a home is missing         it refers to bytes of an earlier one that does not come back: damaged;
                              what is there of that one, deleted or not, stays for the next rebuild
    undecodable, conflicting  a record that is damaged on every target, or of which two differ
    index missing             on none of the targets that answered: bring them and rebuild again

The new catalog's term is far above the highest seen in records, generations, tombstones and the
targets' own term files, so that no target that is away now has obeyed it. When one comes that
holds a record or a tombstone that was not found here, the coordinator serves nobody any more, and
this is to be done again, with that target (ckpt/protocol/coordinator/cluster/vouching.py). What is
refused is noted in the catalog: it proves nothing against it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final, Protocol

from ckpt.aio.net.rpc import RpcClient
from ckpt.aio.secret import read_secret
from ckpt.base.errors import CkptError, Corrupt, Degraded, NotFound, Unavailable
from ckpt.base.ids import CatalogPosition, CheckpointId, LaunchNumber, TargetId
from ckpt.base.limits import PAGE_BYTES
from ckpt.base.units import MiB
from ckpt.format.checksum import xxh3_128
from ckpt.format.column import ColumnHeader
from ckpt.format.document import DocumentHeader
from ckpt.format.index import decode_index
from ckpt.format.messages.hello import Role
from ckpt.format.messages.reading import DocumentData, DocumentKind, ReadDocument
from ckpt.format.messages.targets import ColumnsListed, ListColumns
from ckpt.format.record import CommitRecord, decode_record, decode_tombstone
from ckpt.protocol.coordinator.catalog import CatalogImage, CatalogRow, RowState, TargetSeen
from ckpt.protocol.coordinator.keeping.placements import encode_placement
from ckpt.protocol.target.directory import identify
from ckpt.protocol.target.term import TERM_FILE, decode_term
from ckptd import config as options
from ckptd.catalog.backup import read_backup, take_from
from ckptd.catalog.sqlite import CATALOG_NAME, create_catalog
from ckptd.local.cluster_file import FILE_NAME, device_of, read_cluster
from ckptd.target.identity import incarnation_of

PART_BYTES: Final = 1 * MiB
#: A generation that has one of these and gets no row is passed over: later it proves nothing.
_PROOFS: Final = (DocumentKind.RECORD, DocumentKind.TOMBSTONE)
TERM_SKIP: Final = 1000
"""More starts than a coordinator makes while a target is away."""


@dataclass(frozen=True, slots=True)
class RebuildConfig:
    """Options of `ckptd rebuild-catalog`."""

    directory: Path
    """Of the coordinator; without targets, of a local cluster that does not run."""
    targets: Annotated[str, "ADDRESSES"] = ""
    """HOST:PORT of each running target, separated by spaces."""
    backup: Annotated[str, "FILE"] = ""
    """A copy of the catalog, for what no target knows; empty for none."""


@dataclass(frozen=True, slots=True)
class Holdings:
    """What one target has."""

    checkpoints: frozenset[CheckpointId]
    """Of columns and documents."""
    documents: frozenset[tuple[DocumentKind, CheckpointId]]
    term: int
    """The highest that it is known to have acknowledged."""


class Source(Protocol):
    """One target, running or at rest. Methods raise Unavailable when it is out of reach."""

    @property
    def name(self) -> str:
        """For people."""

    def holdings(self) -> Holdings:
        """Everything of the cluster that is here."""

    def document(self, kind: DocumentKind, checkpoint: CheckpointId) -> bytes:
        """A document, whole. Raises Corrupt."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A generation that does not come back, and why."""

    checkpoint: CheckpointId
    reason: str


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a rebuild found."""

    cluster: str
    image: CatalogImage
    committed: tuple[CheckpointId, ...]
    refused: tuple[Refusal, ...]
    unreachable: tuple[str, ...]
    """Targets that did not answer, each with its error."""


def rebuild(cluster: str, sources: Sequence[Source], backup: CatalogImage | None = None) -> Rebuilt:
    """Ask every source; decide about every generation. Writes nothing.

    A backup adds what no source knows (ckptd.catalog.backup).

    Raises Unavailable when no source answers.
    """
    held: list[tuple[Source, Holdings]] = []
    unreachable = []
    for source in sources:
        try:
            held.append((source, source.holdings()))
        except CkptError as error:
            unreachable.append(f"{source.name}: {error}")
    if not held:
        raise Unavailable(f"no target answers: {'; '.join(unreachable) or 'none was named'}")
    image = CatalogImage(max(holdings.term for _, holdings in held))
    committed, refused = [], []
    seen = set().union(*(holdings.checkpoints for _, holdings in held))
    for checkpoint in sorted(seen):
        try:
            row, record_term = _row(cluster, checkpoint, held)
        except CkptError as error:
            refused.append(Refusal(checkpoint, error.message))
            image.term = max(image.term, checkpoint.generation.term)
            continue
        image.rows[checkpoint] = row
        image.term = max(image.term, checkpoint.generation.term, record_term)
        if row.state is RowState.COMMITTED:
            committed.append(checkpoint)
        else:
            refused.append(Refusal(checkpoint, row.reason))
    if backup is not None:
        take_from(backup, image, seen)
        committed = sorted(id for id, row in image.rows.items() if row.state is RowState.COMMITTED)
        refused = [each for each in refused if each.checkpoint not in committed]
    refused += _settle_homes(cluster, image, held, committed)
    _spare_homes(cluster, image, held, refused)
    proved = {id for _, each in held for kind, id in each.documents if kind in _PROOFS}
    image.passed_over = proved - image.rows.keys()
    image.rebuilt_from = len(sources)
    image.rebuilt_term, image.term = image.term, image.term + TERM_SKIP
    image.position = CatalogPosition(image.term, 0)
    return Rebuilt(cluster, image, tuple(committed), tuple(refused), tuple(unreachable))


def rebuild_directory(directory: Path, backup: Path | None = None) -> tuple[Rebuilt, Path]:
    """Rebuild a local cluster's catalog, at rest, from its target directories; (found, new file).

    An old catalog is kept beside it as `catalog.sqlite.N`. Raises Busy while the cluster runs.
    """
    local = read_cluster(directory / FILE_NAME)
    folders = [directory / "targets" / id for id in local.target_ids]
    sources = [RestingTarget(folder, local.cluster) for folder in folders]
    kept = None if backup is None else read_backup(backup, local.cluster)
    found = rebuild(local.cluster, sources, kept)
    for id, folder in zip(local.target_ids, folders, strict=True):
        domain = local.domain(id, device_of(directory))
        seen = TargetSeen(TargetId(id), domain, str(folder), incarnation_of(folder))
        found.image.targets[seen.target] = seen
    return found, write_rebuilt(directory, found)


def rebuild_running(
    directory: Path, addresses: Sequence[str], secret: bytes, backup: Path | None = None
) -> tuple[Rebuilt, Path]:
    """Rebuild the catalog in `directory` from running targets at HOST:PORT; as above."""
    sources = [RunningTarget(address, secret) for address in addresses]
    try:
        clusters = {source.cluster() for source in sources}
        if len(clusters) != 1:
            raise Corrupt(
                f"these targets belong to several clusters: {', '.join(sorted(clusters))}"
            )
        cluster = clusters.pop()
        kept = None if backup is None else read_backup(backup, cluster)
        found = rebuild(cluster, sources, kept)
    finally:
        for source in sources:
            source.close()
    return found, write_rebuilt(directory, found)


def write_rebuilt(directory: Path, found: Rebuilt) -> Path:
    """Put the new catalog in its place; an old one is moved beside it, never deleted."""
    path = directory / CATALOG_NAME
    return create_catalog(directory, found.cluster, found.image, keep_old=path.exists())


def main(argv: Sequence[str]) -> int:
    """`ckptd rebuild-catalog …`: writes a new catalog, prints what it found as JSON."""
    loaded = options.load(
        RebuildConfig,
        program="rebuild-catalog",
        description="Make a lost catalog again from the targets alone. No coordinator may run.",
        example="ckptd rebuild-catalog --directory /scratch/burst",
        argv=argv,
    )
    directory, addresses = loaded.config.directory, loaded.config.targets.split()
    backup = Path(loaded.config.backup) if loaded.config.backup else None
    if addresses:
        secret = read_secret(loaded.secret_file)
        found, path = rebuild_running(directory, addresses, secret, backup)
    else:
        found, path = rebuild_directory(directory, backup)
    document = {
        "catalog": str(path),
        "cluster": found.cluster,
        "term": found.image.term,
        "committed": [str(checkpoint) for checkpoint in found.committed],
        "refused": [
            {"checkpoint": str(each.checkpoint), "reason": each.reason} for each in found.refused
        ],
        "unreachable": list(found.unreachable),
    }
    os.write(sys.stdout.fileno(), json.dumps(document, indent=2).encode() + b"\n")
    return Degraded.exit_code if found.unreachable else 0


# --------------------------------------------------------------------------- deciding


def _row(
    cluster: str, checkpoint: CheckpointId, held: list[tuple[Source, Holdings]]
) -> tuple[CatalogRow, int]:
    """(the generation's row, the highest term in its documents). Raises why it is refused."""
    tombstones = list(_documents(DocumentKind.TOMBSTONE, checkpoint, held))
    if any(here for _, here in tombstones):
        return _gone(checkpoint, [document for document, _ in tombstones if document is not None])
    record_bytes, record = _record(cluster, checkpoint, held)
    return _committed_row(record_bytes, record, _placement(record, held)), record.term


def _committed_row(record_bytes: bytes, record: CommitRecord, placement: bytes) -> CatalogRow:
    info = record.info
    return CatalogRow(
        info.checkpoint,
        RowState.COMMITTED,
        info.launch,
        # Lost; the launch's ranks say it when they come back.
        None,
        info.world_size,
        record_bytes,
        placement,
    )


def _settle_homes(
    cluster: str,
    image: CatalogImage,
    held: list[tuple[Source, Holdings]],
    committed: list[CheckpointId],
) -> list[Refusal]:
    """A deleted home stays as long as what refers to it; what lacks a home cannot be read."""
    refused = []
    for checkpoint in list(committed):
        row = image.rows[checkpoint]
        for home in decode_record(row.record).info.homes:
            id = home.id(checkpoint.run)
            try:
                image.rows[id] = _row_of_home(cluster, image.rows.get(id), id, held)
            except CkptError as error:
                reason = f"it refers to {id}, which does not come back: {error.message}"
                image.rows[checkpoint] = replace(row, state=RowState.DAMAGED, reason=reason)
                committed.remove(checkpoint)
                refused.append(Refusal(checkpoint, reason))
                break
    return refused


def _spare_homes(
    cluster: str,
    image: CatalogImage,
    held: list[tuple[Source, Holdings]],
    refused: list[Refusal],
) -> None:
    """What is refused may come back with targets that are away now, and is left untouched until
    then. So is a deleted home of it: what has no row is never dropped.
    """
    for refusal in refused:
        row = image.rows.get(refusal.checkpoint)
        if row is not None and row.state is RowState.DELETED:
            continue
        try:
            _, record = _record(cluster, refusal.checkpoint, held)
        except CkptError:
            continue
        for home in record.info.homes:
            id = home.id(refusal.checkpoint.run)
            if id in image.rows and image.rows[id].state is RowState.DELETED:
                del image.rows[id]


def _row_of_home(
    cluster: str, row: CatalogRow | None, id: CheckpointId, held: list[tuple[Source, Holdings]]
) -> CatalogRow:
    """Raises why there is none."""
    if row is not None and row.record:
        return row
    record_bytes, record = _record(cluster, id, held)
    deleted = _committed_row(record_bytes, record, _placement(record, held))
    return replace(deleted, state=RowState.TOMBSTONED, reason=row.reason if row is not None else "")


def _gone(checkpoint: CheckpointId, documents: list[bytes]) -> tuple[CatalogRow, int]:
    """Deleted, also when its tombstone cannot be read: that it is there says enough."""
    term, reason = 0, "its tombstone cannot be read"
    for document in documents:
        try:
            tombstone = decode_tombstone(document)
        except CkptError:
            continue
        term, reason = max(term, tombstone.term), tombstone.reason
    launch = LaunchNumber(0)
    return (
        CatalogRow(
            checkpoint,
            RowState.DELETED,
            launch,
            None,
            0,
            reason=f"tombstoned: {reason}",
        ),
        term,
    )


def _record(
    cluster: str, checkpoint: CheckpointId, held: list[tuple[Source, Holdings]]
) -> tuple[bytes, CommitRecord]:
    found: dict[bytes, CommitRecord] = {}
    here = False
    for document, present in _documents(DocumentKind.RECORD, checkpoint, held):
        here = here or present
        if document is None:
            continue
        try:
            record = decode_record(document)
        except CkptError:
            continue
        if record.cluster == cluster and record.info.checkpoint == checkpoint:
            found[document] = record
    if not here:
        raise NotFound("no commit record: it was never committed, as far as these targets know")
    if not found:
        raise Corrupt("its commit record cannot be decoded on any target")
    if len(found) > 1:
        raise Corrupt("its commit records differ between targets")
    return next(iter(found.items()))


def _placement(record: CommitRecord, held: list[tuple[Source, Holdings]]) -> bytes:
    for document, _ in _documents(DocumentKind.INDEX, record.info.checkpoint, held):
        if document is None or xxh3_128(document) != record.index_digest:
            continue
        index = decode_index(document)
        return encode_placement({payload.rank: payload.columns for payload in index.payloads})
    named = ", ".join(record.index_targets)
    raise NotFound(f"its index is on none of the targets that answered; it was put on {named}")


def _documents(
    kind: DocumentKind, checkpoint: CheckpointId, held: list[tuple[Source, Holdings]]
) -> Iterator[tuple[bytes | None, bool]]:
    """(document or None when unreadable, True) of each target that has one."""
    for source, holdings in held:
        if (kind, checkpoint) in holdings.documents:
            try:
                yield source.document(kind, checkpoint), True
            except CkptError:
                yield None, True


# --------------------------------------------------------------------------- sources


class RunningTarget:
    """A target daemon, asked over its data port."""

    def __init__(self, address: str, secret: bytes) -> None:
        self.name = address
        self._client = RpcClient(
            address, secret=secret, role=Role.ADMIN, name="rebuild", server_role=Role.TARGET
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
        return Holdings(frozenset(checkpoints), frozenset(documents), term)

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
        return Holdings(frozenset(checkpoints), frozenset(self._files), self._term())

    def document(self, kind: DocumentKind, checkpoint: CheckpointId) -> bytes:
        path, header = self._files[(kind, checkpoint)]
        content = path.read_bytes()
        for copy in range(header.copies):
            start = header.copy_offset(copy)
            document = content[start : start + header.total_bytes]
            if xxh3_128(document) == header.digest:
                return document
        raise Corrupt(f"{path} fails its checksum")

    def _term(self) -> int:
        try:
            return decode_term((self._directory / TERM_FILE).read_bytes()) or 0
        except OSError:
            return 0


def _outer_pages(path: Path) -> tuple[bytes, ...]:
    """The first and the last page of a file."""
    with path.open("rb") as file:
        first = file.read(PAGE_BYTES)
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - PAGE_BYTES))
        return first, file.read(PAGE_BYTES)
