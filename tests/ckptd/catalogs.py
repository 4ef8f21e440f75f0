"""Catalogs in files, for tests that have no loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
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
