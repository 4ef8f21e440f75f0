"""Catalogs in files, for tests that have no loop."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from ckptd.catalog.sqlite import SqliteCatalog


@contextmanager
def opened(directory: Path, cluster: str | None, new_cluster: str) -> Iterator[SqliteCatalog]:
    """In a term of its own; closed at the end."""
    catalog = SqliteCatalog.open(directory, cluster, new_cluster)
    try:
        yield catalog
    finally:
        asyncio.run(catalog.close())


def begin_term(directory: Path, cluster: str | None, new_cluster: str) -> None:
    """Opened and closed again."""
    with opened(directory, cluster, new_cluster):
        return


def spoil_page(catalog: Path) -> None:
    """The first page of the checkpoints' table is of no tree any more."""
    with closing(sqlite3.connect(catalog)) as connection:
        (page,) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'checkpoint'"
        ).fetchone()
        (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
    with catalog.open("r+b") as file:
        file.seek((page - 1) * page_bytes)
        file.write(b"\xff" * 8)
