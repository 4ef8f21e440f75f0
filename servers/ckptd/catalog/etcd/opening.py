"""Before a catalog in etcd is led: may it be, by this version and for this cluster, and what is
there?
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from ckpt.aio.durable import is_there
from ckpt.base.errors import CkptError, Corrupt, NoSpace, Refused, Unavailable
from ckptd.catalog.etcd import keys
from ckptd.catalog.etcd.client import RETRY_S, EtcdClient
from ckptd.catalog.etcd.fence import FencedSpace, Meta
from ckptd.catalog.etcd.url import EtcdUrl, mending_command, parse_etcd_url
from ckptd.catalog.file import kept_cluster
from ckptd.catalog.sqlite import CATALOG_NAME
from ckptd.directory import make_directory

_PAGE: Final = 1000
"""So many keys are asked for at once: a record may have 4 KiB."""


def etcd_place(directory: Path, cluster: str | None, url: str) -> tuple[EtcdUrl, str | None]:
    """Where it lies, and the cluster that it must be of; None when nobody knows yet. The directory
    keeps the cluster's id as beside a file: an etcd that was emptied does not make a new cluster.
    Raises Refused.
    """
    etcd = parse_etcd_url(url)
    make_directory(directory)
    if is_there(directory / CATALOG_NAME):
        raise Refused(
            f"{directory} has a catalog in SQLite, and {etcd} would be another one",
            hint="leave --catalog out, or give a directory of its own for the catalog in etcd",
        )
    return etcd, kept_cluster(directory, cluster)


async def admitted(
    client: EtcdClient, space: FencedSpace, cluster: str | None, new_cluster: str, deadline: float,
    *, had_one: bool = False,
) -> Meta:  # fmt: skip
    """What the catalog is, begun where there is none, in the etcd of `ask_most`. `had_one`:
    that cluster had one, and gets no other that is empty; what it must be then. Raises Refused for
    one of another cluster or a newer version, for members of several etcds unless most are of one,
    for an etcd that is too old or takes too little at once; NoSpace for one to be begun in a full
    etcd; Corrupt, Unauthorized, Unavailable.
    """
    await client.check_version(deadline)
    await ask_most(client, deadline)
    found = await space.meta(deadline, had_one=had_one)
    _check_cluster(space, found, cluster)
    try:
        await space.check_limits(deadline)
    except NoSpace:
        # A full etcd is led no sooner than it has room; until then there is one to follow.
        if found is None:
            raise
    if found is None and had_one and cluster is not None:
        found = Meta(keys.SCHEMA_VERSION, cluster)
    elif found is None:
        found = await space.begin(Meta(keys.SCHEMA_VERSION, cluster or new_cluster), deadline)
        _check_cluster(space, found, cluster)
    client.identity.cluster = found.cluster
    return found


def _check_one(named: Mapping[str, str]) -> None:
    """`named`: a member of each etcd that answers. Raises Refused where there are several."""
    if len(named) > 1:
        raise Refused(
            f"{' and '.join(named.values())} are members of different etcds",
            hint="name the members of one etcd: they are started with one --initial-cluster",
        )


async def ask_most(client: EtcdClient, deadline: float) -> None:
    """Wait for the etcd that most members of the URL are of, or all may be, and ask that one from
    then on. Raises Refused where none comes, and others are of another one; Unavailable naming
    those that do not answer.
    """
    clock = asyncio.get_running_loop().time
    while True:
        turnout = await client.turnout()
        client.identity.follow(turnout.chosen, turnout)
        if client.identity.id:
            return
        if not turnout.etcds:
            # Each says why it does not.
            await client.one(client.identity.question.key, deadline)
        named = list(zip(client.url.members, turnout.seats, strict=True))
        silent = [member for member, seat in named if not seat.etcd]
        if clock() > deadline or 2 * turnout.most <= turnout.count:
            _check_one({seat.etcd: member for member, seat in named if seat.etcd})
            if not silent:
                raise Refused(
                    f"{', '.join(client.url.members)} have left each other by --force-new-cluster",
                    hint="name the members of one etcd, and no others",
                )
            raise Unavailable(
                f"most members of {client.url} do not answer: {', '.join(silent)}",
                hint="what answers may have an older catalog, or none: start the others, or leave"
                " those out of --catalog that are gone for good",
            )
        await asyncio.sleep(RETRY_S)


def with_remedy(error: CkptError, url: EtcdUrl) -> CkptError:
    """The same; of a catalog that cannot be read with the command that makes another one of what
    the targets hold.
    """
    if not isinstance(error, Corrupt) or error.hint:
        return error
    return Corrupt(error.message, hint=f"run: {mending_command(url.text)}")


def _check_cluster(space: FencedSpace, found: Meta | None, cluster: str | None) -> None:
    if found is not None and cluster not in (None, found.cluster):
        raise Refused(
            f"the catalog in {space.url} is of cluster {found.cluster}, not {cluster}",
            hint="name its own prefix, or leave the other cluster's id out",
        )


def check_whose(space: FencedSpace, pairs: list[tuple[str, bytes]], cluster: str) -> None:
    """Raises Refused where these are another cluster's, which came when ours had been removed."""
    for name, value in pairs:
        if name == keys.META:
            _check_cluster(space, msgspec.json.decode(value, type=Meta), cluster)


async def all_keys(space: FencedSpace, deadline: float, since: int = 0) -> list[tuple[str, bytes]]:
    """(name, value) of each, in pages, none older than that revision; the fence says whether they
    are of one moment.
    """
    found: list[tuple[str, bytes]] = []
    start = keys.FIRST
    while True:
        page = await space.page(start, keys.LAST, _PAGE, deadline, since)
        found += page
        if len(page) < _PAGE:
            return found
        start = f"{page[-1][0]}\0"
