"""Rules of retention in the catalog: what people have said stays of a run, as JSON.

A table beside that of checkpoints, made when it is missing: catalogs of schema 1 may lack it, and a
version that does not know it leaves it be. Rules that cannot be read, as a later version's, count
as lost: then all stays.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from ckpt.base.errors import Corrupt
from ckpt.base.ids import RunName
from ckpt.format.messages.keeping import ALL_STAYS, Retention, decode_retention, encode_retention
from ckpt.protocol.coordinator.image import CatalogImage
from ckpt.protocol.coordinator.said import RetentionSaid

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS retention (run TEXT PRIMARY KEY, rules TEXT NOT NULL);
"""
#: Finds the table; a copy that an earlier version made, which is only read, has none.
_IS_THERE: Final = "SELECT 1 FROM sqlite_master WHERE name = 'retention'"


def store(connection: sqlite3.Connection, entry: RetentionSaid) -> None:
    """Fold one entry into the table, as `CatalogImage.apply` does."""
    if entry.retention is None:
        connection.execute("DELETE FROM retention WHERE run = ?", (entry.run,))
    else:
        rules = encode_retention(entry.retention).decode()
        connection.execute("INSERT OR REPLACE INTO retention VALUES (?, ?)", (entry.run, rules))


def load(connection: sqlite3.Connection, image: CatalogImage) -> None:
    """Into the image."""
    if not connection.execute(_IS_THERE).fetchone():
        return
    for run, rules in connection.execute("SELECT run, rules FROM retention ORDER BY run"):
        image.retentions[RunName(run)] = _read(rules)


def _read(rules: str) -> Retention:
    try:
        return decode_retention(rules.encode())
    except Corrupt:
        return ALL_STAYS
