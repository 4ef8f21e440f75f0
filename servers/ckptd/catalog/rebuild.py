"""The catalog is lost: what do the targets alone say? For `ckpt catalog rebuild`.

What people have said stays of a run (`ckpt keep`) is on no target, and a copy of the catalog may be
older than it: of every run that is found all stays until it is said again.

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

Which targets there are, and how each stands, say the maps on them (ckptd.catalog.members): one that
is away is named, and nothing that may lie on it is proved lost.

The new catalog's term is far above the highest seen in records, generations, tombstones and the
targets' own term files, so that no target that is away now has obeyed it. When one comes that
holds a record or a tombstone that was not found here, the coordinator serves nobody any more, and
this is to be done again, with that target (ckpt/protocol/coordinator/cluster/vouching.py). What is
refused is noted in the catalog: it proves nothing against it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final

from msgspec import structs

from ckpt.aio.durable import is_there
from ckpt.aio.local_targets import TARGETS_FOLDER, target_ids
from ckpt.aio.secret import read_secret
from ckpt.base.errors import CkptError, Corrupt, Degraded, NotFound, Refused
from ckpt.base.ids import CatalogPosition, CheckpointId, LaunchNumber, RunName, TargetId
from ckpt.format.checksum import xxh3_128
from ckpt.format.documents.labels import Labels, decode_labels, encode_labels
from ckpt.format.documents.record import CommitRecord, decode_record, decode_tombstone
from ckpt.format.index.reader import decode_index
from ckpt.format.messages.keeping import ALL_STAYS
from ckpt.format.messages.reading import DocumentKind
from ckpt.protocol.coordinator.catalog import RowState, TargetSeen, TargetStanding
from ckpt.protocol.coordinator.image import CatalogImage, CatalogRow
from ckptd import config as options
from ckptd.catalog.backup import read_backup, take_from
from ckptd.catalog.etcd.url import EtcdUrl, parse_etcd_url
from ckptd.catalog.file import kept_cluster
from ckptd.catalog.members import at_rest, hear
from ckptd.catalog.sources import Holdings, RestingTarget, RunningTarget, TargetSource, check_own
from ckptd.catalog.sqlite import CATALOG_NAME, create_catalog, read_image
from ckptd.directory import CLUSTER_FILE_NAME
from ckptd.local.cluster_file import device_of, read_cluster
from ckptd.target.identity import incarnation_of

#: A generation that has one of these and gets no row is passed over: later it proves nothing.
_PROOFS: Final = (DocumentKind.RECORD, DocumentKind.TOMBSTONE)
TERM_SKIP: Final = 1000
"""More starts than a coordinator makes while a target is away."""


@dataclass(frozen=True, slots=True)
class RebuildConfig:
    """Options of `ckptd rebuild-catalog`."""

    directory: Annotated[str, "DIR"] = ""
    """The coordinator's; without --targets, that of a local cluster that does not run."""
    catalog: Annotated[str, "URL"] = ""
    """Instead of the directory: the coordinators' etcd://..., which has no catalog yet."""
    targets: Annotated[str, "ADDRESSES"] = ""
    """HOST:PORT of each running target, separated by spaces."""
    backup: Annotated[str, "FILE"] = ""
    """A copy of the catalog, for what no target knows; empty for none."""

    def __post_init__(self) -> None:
        if bool(self.directory) is bool(self.catalog):
            raise Refused("a catalog is in a directory or in etcd: name one of both")
        if self.catalog and not self.targets:
            raise Refused("a catalog in etcd is made from running targets", hint="name them")


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
    left_out: tuple[str, ...] = ()
    """Those that answered and do not count, each with the reason."""


def rebuild(
    cluster: str, sources: Sequence[TargetSource], backup: CatalogImage | None = None
) -> Rebuilt:
    """Ask every source; decide about every generation. Writes nothing.

    A backup adds what no source knows (ckptd.catalog.backup).

    Raises Unavailable when no source answers.
    """
    heard = hear(cluster, sources, backup)
    held = heard.held
    # One target that has heard of it is enough: what has moved is found again, and nobody comes
    # who undoes that.
    needs = max(holdings.protocol for _, holdings in held)
    term = max(holdings.term for _, holdings in held)
    image = CatalogImage(term, targets=heard.known, groups=heard.groups, protocol=needs)
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
    _label(cluster, image, held, backup)
    image.retentions = {id.run: ALL_STAYS for id in sorted(seen | image.rows.keys())}
    proved = {id for _, each in held for kind, id in each.documents if kind in _PROOFS}
    image.passed_over = proved - image.rows.keys()
    removed = [seen for seen in image.targets.values() if seen.standing is TargetStanding.REMOVED]
    # Some are named by two of their addresses.
    here = {holdings.target or source.name for source, holdings in held}
    image.rebuilt_from = len(here) + len(heard.unreachable) + len(removed)
    image.rebuilt_term, image.term = image.term, image.term + TERM_SKIP
    image.position = CatalogPosition(image.term, 0)
    return Rebuilt(
        cluster, image, tuple(committed), tuple(refused), tuple(heard.unreachable),
        tuple(heard.left_out),
    )  # fmt: skip


def rebuild_directory(directory: Path, backup: Path | None = None) -> tuple[Rebuilt, Path]:
    """Rebuild a local cluster's catalog, at rest, from its target directories; (found, new file).

    An old catalog is kept beside it as `catalog.sqlite.N`. Raises Busy while the cluster runs.
    """
    local = read_cluster(directory / CLUSTER_FILE_NAME)
    ids = target_ids(directory, local.targets)
    folders = [directory / TARGETS_FOLDER / id for id in ids]
    check_own(directory / CLUSTER_FILE_NAME, local.cluster, folders)
    sources = [RestingTarget(folder, local.cluster) for folder in folders]
    kept = None if backup is None else read_backup(backup, local.cluster)
    found = rebuild(local.cluster, sources, kept)
    for id, folder in zip(ids, folders, strict=True):
        domain = local.domain(id, device_of(directory if id in local.first_ids else folder))
        seen = TargetSeen(TargetId(id), domain, str(folder), incarnation_of(folder))
        found.image.targets[seen.target] = at_rest(found.image.targets.get(seen.target), seen)
    return found, write_rebuilt(directory, found)


def rebuild_running(
    directory: Path, addresses: Sequence[str], secret: bytes, backup: Path | None = None
) -> tuple[Rebuilt, Path]:
    """Rebuild the catalog in `directory` from running targets at HOST:PORT; as above. Raises
    Refused where the catalog of another cluster lies, and writes nothing then; one that has never
    known a target is nobody's: a coordinator that lost its directory began it.
    """
    found = _rebuild_of_running(addresses, secret, backup)
    _check_own(directory, found.cluster)
    return found, write_rebuilt(directory, found)


def _check_own(directory: Path, cluster: str) -> None:
    stands, image = _catalog_there(directory)
    try:
        kept = kept_cluster(directory, None)
    except Corrupt:
        kept = stands
    is_blank = image is not None and not image.targets and not image.rows
    if kept not in (None, cluster) and not is_blank:
        raise Refused(
            f"{directory} is of cluster {kept}, and these targets are of {cluster}",
            hint=f"name the directory of {cluster}'s coordinator, or an empty one",
        )


def _catalog_there(directory: Path) -> tuple[str | None, CatalogImage | None]:
    """Its cluster and contents. What cannot be read may have been anything."""
    try:
        return read_image(directory)
    except CkptError:
        return None, None


def rebuild_into_etcd(
    url: EtcdUrl, addresses: Sequence[str], secret: bytes, backup: Path | None = None
) -> Rebuilt:
    """Likewise, below a prefix that has no key. Raises as `ckptd.catalog.etcd.copying.put_whole`,
    before a target is asked where it can.
    """
    # aiohttp's client, which a catalog in a file does without.
    from ckptd.catalog.etcd.copying import check_free, put_whole

    asyncio.run(check_free(url))
    found = _rebuild_of_running(addresses, secret, backup)
    asyncio.run(put_whole(url, found.cluster, found.image, "what its targets hold"))
    return found


def _rebuild_of_running(addresses: Sequence[str], secret: bytes, backup: Path | None) -> Rebuilt:
    """Writes nothing."""
    sources = [RunningTarget(address, secret) for address in addresses]
    try:
        clusters = {source.cluster() for source in sources}
        if len(clusters) != 1:
            raise Corrupt(
                f"these targets belong to several clusters: {', '.join(sorted(clusters))}"
            )
        cluster = clusters.pop()
        kept = None if backup is None else read_backup(backup, cluster)
        return rebuild(cluster, sources, kept)
    finally:
        for source in sources:
            source.close()


def write_rebuilt(directory: Path, found: Rebuilt) -> Path:
    """Put the new catalog in its place; an old one is moved beside it, never deleted."""
    path = directory / CATALOG_NAME
    return create_catalog(directory, found.cluster, found.image, keep_old=is_there(path))


def main(argv: Sequence[str]) -> int:
    """`ckptd rebuild-catalog …`: writes a new catalog, prints what it found as JSON."""
    loaded = options.load(
        RebuildConfig,
        program="rebuild-catalog",
        description="Make a lost catalog again from the targets alone. No coordinator may run.",
        example="ckptd rebuild-catalog --directory /scratch/burst",
        argv=argv,
    )
    found, made = _rebuilt(loaded)
    document = {
        "catalog": made,
        "cluster": found.cluster,
        "term": found.image.term,
        "committed": [str(checkpoint) for checkpoint in found.committed],
        "refused": [
            {"checkpoint": str(each.checkpoint), "reason": each.reason} for each in found.refused
        ],
        "unreachable": list(found.unreachable),
        "left_out": list(found.left_out),
        "retention_unsaid": list(found.image.retentions),
    }
    os.write(sys.stdout.fileno(), json.dumps(document, indent=2).encode() + b"\n")
    return Degraded.exit_code if found.unreachable else 0


def _rebuilt(loaded: options.Loaded[RebuildConfig]) -> tuple[Rebuilt, str]:
    """What was found, and where it is now."""
    config, addresses = loaded.config, [*dict.fromkeys(loaded.config.targets.split())]
    backup = Path(config.backup) if config.backup else None
    if config.catalog:
        etcd = parse_etcd_url(config.catalog)
        secret = read_secret(loaded.secret_file)
        return rebuild_into_etcd(etcd, addresses, secret, backup), str(etcd)
    directory = Path(config.directory)
    if addresses:
        secret = read_secret(loaded.secret_file)
        found, path = rebuild_running(directory, addresses, secret, backup)
    else:
        found, path = rebuild_directory(directory, backup)
    return found, str(path)


# --------------------------------------------------------------------------- deciding


def _row(
    cluster: str, checkpoint: CheckpointId, held: list[tuple[TargetSource, Holdings]]
) -> tuple[CatalogRow, int]:
    """(the generation's row, the highest term in its documents). Raises why it is refused."""
    tombstones = list(_documents(DocumentKind.TOMBSTONE, checkpoint, held))
    if any(here for _, here in tombstones):
        return _gone(checkpoint, [document for document, _ in tombstones if document is not None])
    record_bytes, record = _record(cluster, checkpoint, held)
    _check_index(record, held)
    return _committed_row(record_bytes, record), record.term


def _committed_row(record_bytes: bytes, record: CommitRecord) -> CatalogRow:
    info = record.info
    return CatalogRow(
        info.checkpoint,
        RowState.COMMITTED,
        info.launch,
        # Lost; the launch's ranks say it when they come back.
        None,
        info.world_size,
        record_bytes,
    )


def _settle_homes(
    cluster: str,
    image: CatalogImage,
    held: list[tuple[TargetSource, Holdings]],
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
    held: list[tuple[TargetSource, Holdings]],
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
    cluster: str,
    row: CatalogRow | None,
    id: CheckpointId,
    held: list[tuple[TargetSource, Holdings]],
) -> CatalogRow:
    """Raises why there is none."""
    if row is not None and row.record:
        return row
    record_bytes, record = _record(cluster, id, held)
    _check_index(record, held)
    deleted = _committed_row(record_bytes, record)
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
    cluster: str, checkpoint: CheckpointId, held: list[tuple[TargetSource, Holdings]]
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


def _check_index(record: CommitRecord, held: list[tuple[TargetSource, Holdings]]) -> None:
    """It says where the columns are. Raises NotFound where nobody has it whole, Corrupt where it
    cannot be read, as a later version's.
    """
    for document, _ in _documents(DocumentKind.INDEX, record.info.checkpoint, held):
        if document is None or xxh3_128(document) != record.index_digest:
            continue
        decode_index(document)
        return
    named = ", ".join(record.index_targets)
    raise NotFound(f"its index is on none of the targets that answered; it was put on {named}")


def _documents(
    kind: DocumentKind, checkpoint: CheckpointId, held: list[tuple[TargetSource, Holdings]]
) -> Iterator[tuple[bytes | None, bool]]:
    """(document or None when unreadable, True) of each target that has one."""
    for source, holdings in held:
        if (kind, checkpoint) in holdings.documents:
            try:
                yield source.document(kind, checkpoint), True
            except CkptError:
                yield None, True


def _label(
    cluster: str,
    image: CatalogImage,
    held: list[tuple[TargetSource, Holdings]],
    backup: CatalogImage | None,
) -> None:
    """What was said last of each checkpoint; a name that two of a run have is the later one's. All
    of it is put on targets again: what was found may be on too few, and be no answer's.
    """
    found: list[Labels] = []
    for id, row in image.rows.items():
        if row.state in (RowState.COMMITTED, RowState.DAMAGED):
            documents = [one for one, _ in _documents(DocumentKind.LABELS, id, held)]
            if backup is not None and id in backup.labels:
                documents.append(backup.labels[id])
            found += _last_said(cluster, id, documents)
            if documents:
                image.unsettled.add(id)
    taken: set[tuple[RunName, str]] = set()
    for labels in sorted(found, key=lambda one: one.version, reverse=True):
        run = labels.checkpoint.run
        names = tuple(name for name in labels.names if (run, name) not in taken)
        taken.update((run, name) for name in names)
        own = structs.replace(labels, names=names)
        if own.keeps:
            image.labels[own.checkpoint] = encode_labels(own)


def _last_said(cluster: str, id: CheckpointId, documents: list[bytes | None]) -> list[Labels]:
    """One, or none that can be read."""
    readable = []
    for document in documents:
        try:
            labels = decode_labels(document) if document is not None else None
        except CkptError:
            continue
        if labels is not None and (labels.cluster, labels.checkpoint) == (cluster, id):
            readable.append(labels)
    return [max(readable, key=lambda one: one.version)] if readable else []
