"""Targets in the catalog: which there are, and which directory each of them is.

Directories, and what people have said of targets, have tables of their own, made when they are
missing: catalogs of schema 1 may lack them, and a version that does not know them leaves them be.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from ckpt.base.ids import Domain, TargetId
from ckpt.protocol.coordinator.catalog import TargetSeen, TargetStanding
from ckpt.protocol.coordinator.image import CatalogImage

_TABLES: Final = {
    "target_directory": "id TEXT PRIMARY KEY, incarnation BLOB NOT NULL, place TEXT NOT NULL",
    "target_standing": "id TEXT PRIMARY KEY, standing TEXT NOT NULL",
}
SCHEMA: Final = "".join(
    f"CREATE TABLE IF NOT EXISTS {name} ({columns});\n" for name, columns in _TABLES.items()
)
#: Finds a table; a copy that an earlier version made, which is only read, has none.
_IS_THERE: Final = "SELECT 1 FROM sqlite_master WHERE name = ?"


def store(connection: sqlite3.Connection, seen: TargetSeen) -> None:
    """Fold one entry into the rows, as `CatalogImage.apply` does."""
    connection.execute(
        "INSERT OR REPLACE INTO target VALUES (?, ?, ?)", (seen.target, seen.domain, seen.directory)
    )
    connection.execute(
        "INSERT OR REPLACE INTO target_directory VALUES (?, ?, ?)",
        (seen.target, seen.incarnation, seen.place),
    )
    connection.execute(
        "INSERT OR REPLACE INTO target_standing VALUES (?, ?)", (seen.target, seen.standing.value)
    )


def load(connection: sqlite3.Connection, image: CatalogImage) -> None:
    """Into the image, by id. Raises Refused for a domain that cannot be."""
    for name, columns in _TABLES.items():
        if not connection.execute(_IS_THERE, (name,)).fetchone():
            connection.execute(f"CREATE TEMP TABLE {name} ({columns})")
    for name, domain, directory, incarnation, place, standing in connection.execute(
        "SELECT id, domain, directory, incarnation, place, standing FROM target"
        " LEFT JOIN target_directory USING (id) LEFT JOIN target_standing USING (id) ORDER BY id"
    ):
        id, stands = TargetId(name), TargetStanding(standing or TargetStanding.IN.value)
        Domain.parse(domain)
        image.targets[id] = TargetSeen(
            id, domain, directory, incarnation or b"", place or "", stands
        )
