"""Moves in the catalog: which columns lie elsewhere than the index of their generation says.

A table beside that of checkpoints, of pages of ranks. Columns that did not move are not in it.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from ckpt.protocol.coordinator.catalog import CheckpointDeleted, ColumnsMoved, RowForgotten
from ckpt.protocol.coordinator.image import CatalogImage
from ckptd.catalog.checkpoint_tables import KEY, checkpoint_of, key_of

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS moved (
    run TEXT NOT NULL, step INTEGER NOT NULL, term INTEGER NOT NULL, counter INTEGER NOT NULL,
    page INTEGER NOT NULL, moves BLOB NOT NULL,
    PRIMARY KEY (run, step, term, counter, page));
"""


def store(
    connection: sqlite3.Connection, entry: ColumnsMoved | CheckpointDeleted | RowForgotten
) -> None:
    """Fold one entry into the table, as `CatalogImage.apply` does."""
    key = key_of(entry.checkpoint)
    if isinstance(entry, ColumnsMoved):
        connection.execute(
            "INSERT OR REPLACE INTO moved VALUES (?, ?, ?, ?, ?, ?)",
            (*key, entry.page, entry.moves),
        )
    else:
        connection.execute(f"DELETE FROM moved WHERE {KEY}", key)


def load(connection: sqlite3.Connection, image: CatalogImage) -> None:
    """Into the image."""
    for run, step, term, counter, page, moves in connection.execute(
        "SELECT * FROM moved ORDER BY run, step, term, counter, page"
    ):
        checkpoint = checkpoint_of(run, step, term, counter)
        image.moves.setdefault(checkpoint, {})[page] = moves
