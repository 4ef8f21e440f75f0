"""How does a whole catalog get into etcd, or out of it, in one piece?

Goals: nobody leads what is not whole; what is there already is never replaced; both are as a
coordinator has them, so that none works on either meanwhile.

Plan, into a prefix without a catalog: the leader's key is taken as ever, and one transaction does
that and puts `copying`. The image's keys follow in as many transactions as they need, under that
fence. They are read back, and compared. One last transaction puts `meta`, with which the prefix is
a catalog, and the term, above which the next one begins; it ends `copying`.

A copy that ends early clears the prefix, where etcd lets it. What is left of one that was killed is
cleared by the next copy; a coordinator refuses it by name.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from ckpt.base.errors import Busy, CkptError, Corrupt, NotFound
from ckpt.protocol.coordinator.image import CatalogImage
from ckptd.catalog.etcd import keys
from ckptd.catalog.etcd.catalog import OPEN_S, EtcdCatalog
from ckptd.catalog.etcd.census import census
from ckptd.catalog.etcd.client import EtcdClient
from ckptd.catalog.etcd.fence import HELD_LEASES, LEASE_S, Fence, FencedSpace, Meta
from ckptd.catalog.etcd.folding import BYTES_MAX, WRITES_MAX, Writes
from ckptd.catalog.etcd.history import RevisionHistory
from ckptd.catalog.etcd.lease import LeaseKeeper
from ckptd.catalog.etcd.loading import load
from ckptd.catalog.etcd.opening import all_keys, ask_most
from ckptd.catalog.etcd.url import EtcdUrl
from ckptd.catalog.etcd.values import count_of, whole
from ckptd.catalog.etcd.words import encode

_LOOK_S: Final = 0.1
_CLEAR_S: Final = 5.0
"""How long the end of a failed copy waits for etcd."""
_OWN: Final = frozenset((keys.COPYING, keys.LEADER, keys.SEQUENCE, keys.TERM))


async def put_whole(url: EtcdUrl, cluster: str, image: CatalogImage, source: str) -> None:
    """A catalog where there is none; durable on return. `source` says to people whence it comes.

    Raises Refused for a prefix that has any key, but for those of a copy that was killed, and for
    what etcd does not take at once; Busy, NoSpace, Unauthorized, Unavailable.
    """
    batches = await asyncio.to_thread(lambda: list(_batches(whole(image))))
    async with _free_space(url) as space, _empty(space, source) as fence:
        for writes in batches:
            await space.write(fence, writes, _deadline())
        await _compare(space, image)
        await space.write(fence, _last(cluster, image, fence), _deadline())


async def check_free(url: EtcdUrl) -> None:
    """Raises as `put_whole` would at its begin."""
    async with _free_space(url):
        return


@asynccontextmanager
async def whole_catalog(url: EtcdUrl) -> AsyncIterator[tuple[str, CatalogImage]]:
    """(cluster id, image) of a catalog that no coordinator works on, nor can while the block lasts.
    Its term is a new one. Raises Busy naming who works on it, NotFound; as `EtcdCatalog.open`.
    """
    client = EtcdClient(url)
    try:
        await client.check_version(_deadline())
        await ask_most(client, _deadline())
        space = FencedSpace(client)
        meta = await space.meta(_deadline())
        if meta is None:
            raise NotFound(f"there is no catalog in {url}", hint="see its members and its prefix")
        fence = await space.take(_deadline())
        keeper = LeaseKeeper(space, fence, RevisionHistory())
        catalog = await EtcdCatalog.load(space, fence, meta.cluster, keeper, _deadline())
        try:
            await _check_alone(space)
            yield catalog.cluster, catalog.image
            # Nobody had it meanwhile.
            await space.write(fence, Writes(), _deadline())
        finally:
            await catalog.close()
    finally:
        await client.close()


# --------------------------------------------------------------------------- inside


@asynccontextmanager
async def _free_space(url: EtcdUrl) -> AsyncIterator[FencedSpace]:
    """Of an etcd that is good enough, and has no catalog there."""
    client = EtcdClient(url)
    try:
        await client.check_version(_deadline())
        space = FencedSpace(client)
        await space.check_free(_deadline())
        await ask_most(client, _deadline())
        await space.check_limits(_deadline())
        yield space
    finally:
        await client.close()


@asynccontextmanager
async def _empty(space: FencedSpace, source: str) -> AsyncIterator[Fence]:
    """A prefix of one's own; where the block fails, cleared again."""
    async with _held(space, source) as fence:
        found = await space.page(keys.FIRST, keys.LAST, len(_OWN) + 1, _deadline())
        if {name for name, _ in found} <= _OWN:
            yield fence
            return
        # Of one that was killed. The fence's key goes with it.
        await space.clear(fence, _deadline())
    async with _held(space, source) as fence:
        yield fence


@asynccontextmanager
async def _held(space: FencedSpace, source: str) -> AsyncIterator[Fence]:
    fence = await space.take(_deadline(), copied_from=source)
    keeper = LeaseKeeper(space, fence, RevisionHistory())
    try:
        yield fence
    except BaseException:
        with suppress(CkptError):
            await space.clear(fence, asyncio.get_running_loop().time() + _CLEAR_S)
        raise
    finally:
        await keeper.close()
        await space.free(fence)


def _batches(values: Iterable[tuple[str, bytes]]) -> Iterator[Writes]:
    """As few transactions as take them. Raises Refused for a value that none takes."""
    batch, size = Writes(), 0
    for name, value in values:
        one = Writes({name: value})
        one.check(f"the key {name!r}")
        if batch.count == WRITES_MAX or size + one.bytes > BYTES_MAX:
            yield batch
            batch, size = Writes(), 0
        batch.values[name] = value
        size += one.bytes
    yield batch


def _last(cluster: str, image: CatalogImage, fence: Fence) -> Writes:
    """With it the prefix is a catalog."""
    term = max(image.term, fence.term)
    return Writes(
        {
            keys.META: encode(Meta(keys.schema_of(image.protocol), cluster)),
            keys.TERM: str(term).encode(),
            keys.COUNT: census(term, count_of(image)),
            keys.COPYING: None,
        }
    )


async def _compare(space: FencedSpace, image: CatalogImage) -> None:
    """Raises Corrupt when not all of it is there, or more."""
    pairs = await all_keys(space, _deadline())
    if await asyncio.to_thread(load, image.term, pairs) != image:
        raise Corrupt(
            f"what was copied to {space.url} is not what was read",
            hint="keep all other programs away from the prefix, and copy again",
        )


async def _check_alone(space: FencedSpace) -> None:
    """Raises Busy naming the coordinators that stand by, once those that are gone were missed."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    start = keys.COORDINATORS
    while found := await space.page(start, start + keys.LAST, 100, _deadline()):
        if loop.time() - began > HELD_LEASES * LEASE_S:
            ids = ", ".join(keys.unquoted(name.removeprefix(start)) for name, _ in found)
            raise Busy(f"coordinators stand by on {space.url}: {ids}", hint="stop them first")
        await asyncio.sleep(_LOOK_S)


def _deadline() -> float:
    """Of what begins now: so long it waits for an etcd that does not answer."""
    return asyncio.get_running_loop().time() + OPEN_S
