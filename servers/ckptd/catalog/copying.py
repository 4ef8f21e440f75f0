"""A catalog goes from a file into etcd, or back: for `ckpt catalog copy`.

Nobody works on either meanwhile, and what it is copied to has none before. The copy is the whole
image: the next coordinator on it begins a term above. So would one on the source, which stays as it
is: whichever is used first makes the other one old, and targets say so (decision 16).
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ckpt.aio.durable import is_there
from ckpt.base.errors import Refused
from ckpt.protocol.coordinator.catalog import RowState
from ckpt.protocol.coordinator.image import CatalogImage
from ckptd import config as options
from ckptd.catalog.etcd.url import SCHEME, EtcdUrl, parse_etcd_url
from ckptd.catalog.file import keep_cluster, kept_cluster
from ckptd.catalog.sqlite import CATALOG_NAME, create_catalog, image_at_rest


@dataclass(frozen=True, slots=True)
class CopyConfig:
    """Options of `ckptd copy-catalog`."""

    source: Annotated[str, "DIR|URL"]
    """Directory of a coordinator that does not run, or etcd://... of one."""
    destination: Annotated[str, "DIR|URL"]
    """The other of the two; it has no catalog yet."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What was copied."""

    cluster: str
    image: CatalogImage


async def copy_to_etcd(directory: Path, url: EtcdUrl) -> Copied:
    """Raises NotFound, Busy, Refused, Corrupt, NoSpace, Unauthorized, Unavailable."""
    # aiohttp's client, which a coordinator with a file does without.
    from ckptd.catalog.etcd.copying import put_whole

    with image_at_rest(directory) as (cluster, image):
        kept_cluster(directory, cluster)
        await put_whole(url, cluster, image, str(directory))
        # Where the file is moved away, the directory still says whose catalog it takes.
        keep_cluster(directory, cluster)
    return Copied(cluster, image)


async def copy_from_etcd(url: EtcdUrl, directory: Path) -> Copied:
    """Likewise."""
    from ckptd.catalog.etcd.copying import whole_catalog

    _check_free(directory)
    made: Path | None = None
    try:
        async with whole_catalog(url) as (cluster, image):
            kept_cluster(directory, cluster)
            # Not on the loop: while it stood still the lease would run out.
            made = await asyncio.to_thread(create_catalog, directory, cluster, image)
    except BaseException:
        # Somebody else may have written there meanwhile.
        if made is not None:
            made.unlink()
        raise
    return Copied(cluster, image)


def _check_free(directory: Path) -> None:
    if is_there(directory / CATALOG_NAME):
        raise Refused(
            f"there is a catalog in {directory}",
            hint=f"name another directory, or move {directory / CATALOG_NAME} away first",
        )


def main(argv: Sequence[str]) -> int:
    """`ckptd copy-catalog ...`: copies, prints what, and what to do next, as JSON."""
    loaded = options.load(
        CopyConfig,
        program="copy-catalog",
        description="Copy a catalog from a file into etcd, or back. No coordinator may run on it.",
        example="ckptd copy-catalog --source /var/lib/ckpt"
        " --destination 'etcd://e1:2379,e2:2379/ckpt/prod?ca=/etc/ckpt/etcd-ca.pem'",
        argv=argv,
    )
    source, destination = loaded.config.source, loaded.config.destination
    match source.startswith(SCHEME), destination.startswith(SCHEME):
        case False, True:
            directory, url = Path(source).absolute(), destination
            copied = asyncio.run(copy_to_etcd(directory, parse_etcd_url(url)))
            then = _then_etcd(directory, url)
        case True, False:
            directory, url = Path(destination).absolute(), source
            copied = asyncio.run(copy_from_etcd(parse_etcd_url(url), directory))
            then = _then_file(directory)
        case _:
            raise Refused(
                f"{source} and {destination}: a catalog goes from a directory into etcd, or back",
                hint=f"one of both begins with {SCHEME}",
            )
    os.write(sys.stdout.fileno(), _document(source, destination, copied, then))
    return 0


def _document(source: str, destination: str, copied: Copied, then: list[str]) -> bytes:
    rows = copied.image.rows.values()
    document = {
        "source": source,
        "destination": destination,
        "cluster": copied.cluster,
        "term": copied.image.term,
        "committed": sum(row.state is RowState.COMMITTED for row in rows),
        "outdated": copied.image.outdated,
        "next": then,
    }
    return json.dumps(document, indent=2).encode() + b"\n"


def _then_etcd(directory: Path, url: str) -> list[str]:
    return [
        f"move {directory / CATALOG_NAME} away, or give the coordinators other directories",
        f"start them with --catalog {shlex.quote(url)}",
    ]


def _then_file(directory: Path) -> list[str]:
    where = shlex.quote(str(directory))
    return [f"start the one coordinator with --directory {where}, without --catalog"]
