"""Which catalog does a coordinator work on? The one place that knows what there is to choose from:
a SQLite file in the coordinator's directory, or etcd.
"""

from __future__ import annotations

from pathlib import Path

from ckpt.aio.catalog import Catalog
from ckpt.base.errors import Refused
from ckptd.catalog.etcd.url import EtcdUrl, parse_etcd_url
from ckptd.catalog.file import keep_cluster, kept_cluster
from ckptd.catalog.sqlite import CATALOG_NAME, SqliteCatalog
from ckptd.directory import make_directory


async def open_catalog(
    directory: Path, cluster: str | None, new_cluster: str, *, url: str = ""
) -> Catalog:
    """Begin a term. `cluster` is the id that the caller insists on, `new_cluster` the one for a new
    catalog; `url` names an etcd, empty: a file in the directory. Raises as `ckpt.aio.catalog` says.
    """
    if not url:
        # It blocks: nothing else runs before there is a catalog.
        return SqliteCatalog.open(directory, cluster, new_cluster)
    return await _open_etcd(directory, cluster, new_cluster, url)


async def _open_etcd(directory: Path, cluster: str | None, new_cluster: str, url: str) -> Catalog:
    # aiohttp's client, which a coordinator with a file does without.
    from ckptd.catalog.etcd.catalog import EtcdCatalog

    etcd, cluster = etcd_place(directory, cluster, url)
    catalog = await EtcdCatalog.open(etcd, cluster, new_cluster)
    try:
        keep_cluster(directory, catalog.cluster)
    except BaseException:
        await catalog.close()
        raise
    return catalog


def etcd_place(directory: Path, cluster: str | None, url: str) -> tuple[EtcdUrl, str | None]:
    """Where it lies, and the cluster that it must be of; None when nobody knows yet. The directory
    keeps the cluster's id as beside a file: an etcd that was emptied does not make a new cluster.
    Raises Refused.
    """
    etcd = parse_etcd_url(url)
    make_directory(directory)
    if (directory / CATALOG_NAME).exists():
        raise Refused(
            f"{directory} has a catalog in SQLite, and {etcd} would be another one",
            hint="leave --catalog out, or give a directory of its own for the catalog in etcd",
        )
    return etcd, kept_cluster(directory, cluster)
