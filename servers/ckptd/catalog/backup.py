"""A copy of the catalog: how it is made, and what of it counts beside what the targets hold.

A copy is outdated by the catalog's next entry, so it is never put back as it is: a restore is a
rebuild from the targets that takes from the copy what no target knows

    object stores, their policies and what they hold      as the copy has them
    checkpoints whose record is on no target that answers  when columns of them are there
    deletions and proved damage                           they hold for ever
    aborted and deleted generations                       so that what is left of them goes

and nothing else. A checkpoint of which no target that answered has anything was deleted since, or
comes back with the targets that are away.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from ckpt.aio.durable import is_there
from ckpt.base.errors import Corrupt, NotFound, Refused
from ckpt.base.ids import CatalogPosition, CheckpointId
from ckpt.protocol.coordinator.catalog import RowState
from ckpt.protocol.coordinator.image import CatalogImage
from ckptd import config as options
from ckptd.catalog.file import DAMAGED, connect, copy_catalog, lock_directory, unusable
from ckptd.catalog.sqlite import CATALOG_NAME, load_image, read_image
from ckptd.directory import check_open

FOLDER: Final = "backups"
"""In the coordinator's directory, for copies that nobody gave another place."""

#: States that a generation never comes back from.
_FACTS: Final = (RowState.TOMBSTONED, RowState.DELETED, RowState.ABORTED, RowState.DAMAGED)
_READ: Final = (RowState.COMMITTED, RowState.TOMBSTONED, RowState.DAMAGED)


@dataclass(frozen=True, slots=True)
class BackupConfig:
    """Options of `ckptd backup-catalog`."""

    directory: Path
    """The coordinator's, which does not run."""
    to: Annotated[str, "FILE"] = ""
    """The copy's file; empty for one in DIR/backups."""


def backup_path(directory: Path, position: CatalogPosition) -> Path:
    """Where the copy of a catalog at this position is put."""
    return directory / FOLDER / f"catalog-{position}.sqlite"


def main(argv: Sequence[str]) -> int:
    """`ckptd backup-catalog …`: copies a catalog at rest, prints where as JSON."""
    loaded = options.load(
        BackupConfig,
        program="backup-catalog",
        description="Copy the catalog of a coordinator that does not run.",
        example="ckptd backup-catalog --directory /scratch/burst --to /backup/catalog.sqlite",
        argv=argv,
    )
    directory, to = loaded.config.directory, loaded.config.to
    check_open(directory)
    if not is_there(directory / CATALOG_NAME):
        raise NotFound(f"there is no catalog in {directory}")
    cluster, image = read_image(directory)
    if image.outdated:
        raise Corrupt(f"the catalog in {directory} is older than its targets: {image.outdated}")
    path = Path(to) if to else backup_path(directory, image.position)
    lock = lock_directory(directory)
    try:
        connection = connect(directory / CATALOG_NAME)
        try:
            copy_catalog(connection, path)
        finally:
            connection.close()
    finally:
        os.close(lock)
    told = {"path": str(path.absolute()), "cluster": cluster, "bytes": path.stat().st_size}
    os.write(sys.stdout.fileno(), json.dumps(told).encode() + b"\n")
    return 0


def read_backup(path: Path, cluster: str) -> CatalogImage:
    """The contents of a copy. Raises Refused for another cluster's, Corrupt, Unavailable."""
    if not path.is_file():
        raise Refused(f"there is no file {path}")
    try:
        # Nothing is written beside it: a copy may lie where nothing can be.
        connection = sqlite3.connect(f"file:{path.absolute()}?mode=ro&immutable=1", uri=True)
        try:
            found, image = load_image(connection)
        finally:
            connection.close()
    except DAMAGED as error:
        raise unusable(path.parent, error, what=str(path)) from error
    if found != cluster:
        raise Refused(f"{path} is of cluster {found}, the targets are of {cluster}")
    return image


def take_from(backup: CatalogImage, image: CatalogImage, seen: Set[CheckpointId]) -> None:
    """Add to a rebuilt image, before homes are looked for, what only the copy knows. `seen` are all
    generations of which targets hold anything.
    """
    for id, row in backup.rows.items():
        known = image.rows.get(id)
        if row.state in _FACTS and (known is None or known.state is RowState.COMMITTED):
            if id in seen or row.state not in _READ:
                image.rows[id] = row
        elif row.state is RowState.COMMITTED and known is None and id in seen:
            image.rows[id] = row
    image.protocol = max(image.protocol, backup.protocol)
    image.stores.update(backup.stores)
    image.term = max(image.term, backup.term)
