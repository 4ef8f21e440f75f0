"""Targets in the catalog: which there are, and which directory each of them is.

The directories have a table of their own, made when it is missing: catalogs of schema 1 may lack
it, and a version that does not know it leaves it be.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from ckpt.base.ids import TargetId
from ckpt.protocol.coordinator.catalog import CatalogImage, TargetSeen

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS target_directory (
    id TEXT PRIMARY KEY, incarnation BLOB NOT NULL, place TEXT NOT NULL);
"""
#: Finds the table; a copy that an earlier version made, which is only read, has none.
_IS_THERE: Final = "SELECT 1 FROM sqlite_master WHERE name = 'target_directory'"


def store(connection: sqlite3.Connection, seen: TargetSeen) -> None:
    """Fold one entry into the rows, as `CatalogImage.apply` does."""
    connection.execute(
        "INSERT OR REPLACE INTO target VALUES (?, ?, ?)", (seen.target, seen.domain, seen.directory)
    )
    connection.execute(
        "INSERT OR REPLACE INTO target_directory VALUES (?, ?, ?)",
        (seen.target, seen.incarnation, seen.place),
    )


def load(connection: sqlite3.Connection, image: CatalogImage) -> None:
    """Into the image, by id."""
    if not connection.execute(_IS_THERE).fetchone():
        connection.execute(SCHEMA.replace("TABLE", "TEMP TABLE"))
    for name, domain, directory, incarnation, place in connection.execute(
        "SELECT id, domain, directory, incarnation, place"
        " FROM target LEFT JOIN target_directory USING (id) ORDER BY id"
    ):
        id = TargetId(name)
        image.targets[id] = TargetSeen(id, domain, directory, incarnation or b"", place or "")
