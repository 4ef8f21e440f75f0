"""Which catalog does a coordinator work on? The one place that knows what there is to choose from:
today a SQLite file in the coordinator's directory.
"""

from __future__ import annotations

from pathlib import Path

from ckpt.aio.catalog import Catalog
from ckptd.catalog.sqlite import SqliteCatalog


async def open_catalog(directory: Path, cluster: str | None, new_cluster: str) -> Catalog:
    """Begin a term. `cluster` is the id that the caller insists on, `new_cluster` the one for a new
    catalog. Raises as `ckpt.aio.catalog` says.
    """
    # It blocks: nothing else runs before there is a catalog.
    return SqliteCatalog.open(directory, cluster, new_cluster)
