"""Labels in the catalog: the names and pins of committed checkpoints.

A table beside that of checkpoints, made when it is missing: catalogs of schema 1 may lack it, and a
version that does not know it leaves it be. An empty document: nothing is said. Not settled: its
targets may have another one.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from ckpt.protocol.coordinator.catalog import (
    CheckpointLabeled,
    CheckpointTombstoned,
    LabelsSent,
    RowForgotten,
)
from ckpt.protocol.coordinator.image import CatalogImage
from ckptd.catalog.checkpoint_tables import KEY, checkpoint_of, key_of

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS label (
    run TEXT NOT NULL, step INTEGER NOT NULL, term INTEGER NOT NULL, counter INTEGER NOT NULL,
    document BLOB NOT NULL, settled INTEGER NOT NULL,
    PRIMARY KEY (run, step, term, counter));
"""
#: Finds the table; a copy that an earlier version made, which is only read, has none.
_IS_THERE: Final = "SELECT 1 FROM sqlite_master WHERE name = 'label'"


def store(
    connection: sqlite3.Connection,
    entry: LabelsSent | CheckpointLabeled | CheckpointTombstoned | RowForgotten,
) -> None:
    """Fold one entry into the table, as `CatalogImage.apply` does."""
    key = key_of(entry.checkpoint)
    match entry:
        case LabelsSent():
            connection.execute(
                "INSERT INTO label VALUES (?, ?, ?, ?, x'', 0)"
                " ON CONFLICT DO UPDATE SET settled = 0",
                key,
            )
        case CheckpointLabeled(_, document) if document:
            connection.execute(
                "INSERT OR REPLACE INTO label VALUES (?, ?, ?, ?, ?, 1)", (*key, document)
            )
        case _:
            connection.execute(f"DELETE FROM label WHERE {KEY}", key)


def load(connection: sqlite3.Connection, image: CatalogImage) -> None:
    """Into the image."""
    if not connection.execute(_IS_THERE).fetchone():
        return
    for run, step, term, counter, document, settled in connection.execute(
        "SELECT * FROM label ORDER BY run, step, term, counter"
    ):
        checkpoint = checkpoint_of(run, step, term, counter)
        if document:
            image.labels[checkpoint] = document
        if not settled:
            image.unsettled.add(checkpoint)
