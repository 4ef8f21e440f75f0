"""The catalog in etcd: what a coordinator writes, any host can go on with.

Goals: an acknowledged ticket is on a majority of etcd's members; one transaction serves every
ticket that waits; who was deposed stores nothing more (`fence`).

Plan: the keys hold the folded image, whole values (`values`). One task of the coordinator's loop
folds all tickets that have gathered, as far as one transaction takes them, writes, acknowledges
them, and goes on. While etcd does not answer, or is full, they wait: nothing fails but a start, and
`close`. In a full one whether a transaction was stored is looked up, and it is repeated as it was.
A keeper renews the lease, and compacts what is old (`lease`).

Invariants
- One transaction at a time is on its way. Tickets are acknowledged in order.
- After an error nothing more is: which tickets are stored is found by opening it again.
- The writer's image has no ticket that is not on its way, but for one that is folded and waits for
  room in the next transaction.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ckpt.aio.clock import draw
from ckpt.base.errors import CkptError, NoSpace, Refused, Unavailable
from ckpt.base.rests import Rests
from ckpt.protocol.coordinator.catalog import Persist
from ckpt.protocol.coordinator.image import CatalogImage
from ckpt.protocol.coordinator.stores import CHANGED_PAGES_MAX
from ckptd.catalog.etcd import keys
from ckptd.catalog.etcd.census import census, lacking
from ckptd.catalog.etcd.client import EtcdClient
from ckptd.catalog.etcd.fence import Fence, FencedSpace, Meta
from ckptd.catalog.etcd.folding import Writes, fold
from ckptd.catalog.etcd.history import RevisionHistory
from ckptd.catalog.etcd.lease import LeaseKeeper
from ckptd.catalog.etcd.loading import images_of
from ckptd.catalog.etcd.opening import admitted, all_keys, check_whose
from ckptd.catalog.etcd.url import EtcdUrl
from ckptd.catalog.etcd.values import Values, count_of, whole
from ckptd.catalog.etcd.words import encode
from ckptd.catalog.sqlite import write_copy

OPEN_S: Final = 30.0
"""How long a start waits for an etcd that does not answer."""
CLOSE_S: Final = 10.0
"""How long an end waits for an etcd that does not answer."""
ROOM_S: Final = (0.1, 1.0)
"""First and longest rest between two tries of an etcd that is full."""
TICKETS_WAITING_MAX: Final = 1 << 20
"""With more waiting, etcd has stood still for minutes: better to stop than to grow."""

Copied = Callable[[CkptError | None], None]


@dataclass(slots=True)
class Batch:
    """Whole tickets that one transaction stores."""

    tickets: list[int] = field(default_factory=list)
    writes: Writes = field(default_factory=Writes)


class EtcdCatalog:
    """I am a `ckpt.aio.catalog.Catalog` in etcd, open on the loop that calls me. For another
    coordinator it is Busy while my lease lives; one that comes when it has run out takes it over.
    """

    def __init__(
        self, space: FencedSpace, fence: Fence, cluster: str,
        images: tuple[CatalogImage, CatalogImage], keeper: LeaseKeeper,
    ) -> None:  # fmt: skip
        """`images`: the caller's and the writer's, alike."""
        self.cluster = cluster
        self.image, folded = images
        self.keeper = keeper
        """Of the fence's lease."""
        self.full: NoSpace | None = None
        """What etcd says while tickets wait for room."""
        #: What is mine alone, and ends with me.
        self._client: EtcdClient | None = None
        self._space = space
        self._fence = fence
        #: What is stored, and what is on its way.
        self._folded = folded
        #: Of the keys that are stored, or on their way.
        self._count = count_of(folded)
        #: Tickets and copies that wait, in order.
        self._waiting: deque[Persist | tuple[Path, Copied]] = deque()
        #: A ticket that is folded, and did not fit.
        self._next: tuple[int, Writes] | None = None
        #: Why the ticket after those that are folded cannot be stored.
        self._unfit: CkptError | None = None
        self._changed = asyncio.Event()
        self._closing = False
        self._failure: CkptError | None = None
        self._writer: asyncio.Task[None] | None = None
        keeper.on_ended(self._changed.set)

    @classmethod
    async def open(
        cls, url: EtcdUrl, cluster: str | None, new_cluster: str, *,
        patience_s: float = OPEN_S, history: RevisionHistory | None = None,
    ) -> EtcdCatalog:  # fmt: skip
        """Begin a term, and load what there is. `cluster` is the id that the caller insists on,
        `new_cluster` the one for a new catalog. Raises as `ckpt.aio.catalog` says, Unauthorized
        when etcd does not let this user in; Unavailable after `patience_s` without an answer.
        `history` says what is compacted.
        """
        client = EtcdClient(url)
        space = FencedSpace(client)
        try:
            deadline = asyncio.get_running_loop().time() + patience_s
            meta = await admitted(client, space, cluster, new_cluster, deadline)
            fence = await space.take(deadline)
            keeper = LeaseKeeper(space, fence, history or RevisionHistory())
            catalog = await cls.load(space, fence, meta.cluster, keeper, deadline)
        except BaseException:
            await client.close()
            raise
        catalog._client = client
        return catalog

    @classmethod
    async def load(
        cls, space: FencedSpace, fence: Fence, cluster: str, keeper: LeaseKeeper, deadline: float,
        known: list[tuple[str, bytes]] | None = None,
    ) -> EtcdCatalog:  # fmt: skip
        """What there is, under a fence that was taken and is kept. `known`: all keys as the fence's
        own transaction left them; None: they are read. When it raises, the keeper is closed and the
        leader's key free. Raises Busy when the fence is lost, Refused for another cluster's,
        Corrupt, Unavailable.
        """
        try:
            pairs = known
            if pairs is None:
                pairs = await all_keys(space, deadline, fence.revision)
            check_whose(space, pairs, cluster)
            # Not on the loop: while it stood still the lease would run out.
            images = await asyncio.to_thread(_images, fence.term, pairs)
            for part in _lists_in_pages(pairs, images[0]):
                await space.write(fence, part, deadline)
            # Whoever took it over meanwhile may have written between two pages.
            await space.write(fence, _first(images[0]), deadline)
        except BaseException:
            await keeper.close()
            await space.free(fence)
            raise
        return cls(space, fence, cluster, images, keeper)

    def start(
        self, on_durable: Callable[[int], None], on_failed: Callable[[CkptError], None]
    ) -> None:
        """Begin to write. The callbacks come from the loop, in turns of their own."""
        assert self._writer is None
        self._writer = asyncio.create_task(self._write_all(on_durable, on_failed))
        self._writer.add_done_callback(_show_defect)

    def submit(self, persist: Persist) -> None:
        """Queue one ticket; returns at once. Raises the error that ended the writer."""
        self._queue(persist)

    def copy_to(self, path: Path, done: Copied) -> None:
        """Copy all that is durable; tickets wait meanwhile. Raises what ended the writer."""
        self._queue((path, done))

    async def close(self) -> None:
        """Write what waits, end the writer, and free the leader's key. If etcd does not answer,
        whoever waits gets Unavailable.
        """
        self._closing = True
        self._changed.set()
        if self._writer is not None:
            await asyncio.gather(self._writer, return_exceptions=True)
        await self.keeper.close()
        await self._space.free(self._fence)
        if self._client is not None:
            await self._client.close()

    async def abandon(self) -> None:
        """Used instead of `close` when the fence is lost, or may be: nothing more is sent, and
        whoever waits hears nothing. What is on its way may still be stored.
        """
        self._closing = True
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.gather(self._writer, return_exceptions=True)
        await self.keeper.close()

    def _queue(self, work: Persist | tuple[Path, Copied]) -> None:
        assert not self._closing
        if self._failure is not None:
            raise self._failure
        if len(self._waiting) >= TICKETS_WAITING_MAX:
            raise Unavailable(f"{self._space.url} does not answer")
        self._waiting.append(work)
        self._changed.set()

    # ----------------------------------------------------------------------- the writer

    async def _write_all(
        self, on_durable: Callable[[int], None], on_failed: Callable[[CkptError], None]
    ) -> None:
        try:
            while await self._has_work():
                batch = self._gather()
                if batch.tickets:
                    await self._store(batch.writes)
                    for ticket in batch.tickets:
                        on_durable(ticket)
                else:
                    await self._copy()
        except CkptError as error:
            self._failure = error
            self._waiting.clear()
            on_failed(error)

    async def _has_work(self) -> bool:
        """Waits for some. False at the end. Raises Busy once the lease has run out."""
        while not (self._waiting or self._next or self._unfit or self._closing):
            self._changed.clear()
            if self.keeper.ended:
                # Only etcd knows whether the key went with it.
                await self._store(Writes())
            await self._changed.wait()
        return bool(self._waiting or self._next or self._unfit)

    def _gather(self) -> Batch:
        """As many tickets as one transaction takes; none when a copy is next. Raises why a ticket
        cannot be stored, once all before it are.
        """
        batch = Batch()
        while True:
            self._next = self._next or self._fold_next()
            if self._next is None:
                if self._unfit is not None and not batch.tickets:
                    raise self._unfit
                return self._counted(batch)
            ticket, writes = self._next
            merged = batch.writes.merged(writes)
            if merged is None or (batch.tickets and not merged.fits):
                return self._counted(batch)
            batch.tickets.append(ticket)
            batch.writes = merged
            self._next = None

    def _counted(self, batch: Batch) -> Batch:
        """With the number of keys, where it changes that."""
        if batch.writes.added:
            self._count += batch.writes.added
            batch.writes.values[keys.COUNT] = census(self._fence.term, self._count)
        return batch

    def _fold_next(self) -> tuple[int, Writes] | None:
        """The next ticket with what it writes; None when a copy is next, or nothing, or what cannot
        be stored.
        """
        if self._unfit is not None or not self._waiting:
            return None
        persist = self._waiting[0]
        if not isinstance(persist, Persist):
            return None
        self._waiting.popleft()
        try:
            writes = fold(self._folded, persist.entries)
            if keys.PROTOCOL in writes.values:
                # An earlier version looks there whether it may lead.
                meta = Meta(keys.schema_of(self._folded.protocol), self.cluster)
                writes.values[keys.META] = encode(meta)
            writes.check(f"a ticket of {len(persist.entries)} entries")
        except KeyError as error:
            self._unfit = CkptError(f"the catalog cannot be written: {error} is not there")
        except Refused as error:
            self._unfit = error
        else:
            return persist.ticket, writes
        return None

    async def _store(self, writes: Writes) -> None:
        """Durable on return. Waits for etcd; at the end not for ever, and for room not at all."""
        task = asyncio.ensure_future(self._insist(writes))
        closing = asyncio.ensure_future(self._wait_closing())
        try:
            await asyncio.wait((task, closing), return_when=asyncio.FIRST_COMPLETED)
            if not task.done() and self.full is None:
                await asyncio.wait((task,), timeout=CLOSE_S)
            if not task.done():
                raise self.full or Unavailable(
                    f"{self._space.url} does not answer: what waits may not be stored",
                    hint="the next start finds what is",
                )
            task.result()
        finally:
            for each in (task, closing):
                each.cancel()
            await asyncio.gather(task, closing, return_exceptions=True)

    async def _insist(self, writes: Writes) -> None:
        rests = Rests(*ROOM_S, draw)
        while True:
            try:
                await self._space.write(self._fence, writes, math.inf)
            except NoSpace as error:
                self.full = error
            else:
                self.full = None
                return
            await asyncio.sleep(rests.next_s())

    async def _wait_closing(self) -> None:
        while not self._closing:
            self._changed.clear()
            await self._changed.wait()

    async def _copy(self) -> None:
        """What is durable, which is all that is folded, into the next copy's file."""
        work = self._waiting.popleft()
        assert isinstance(work, tuple)
        path, done = work
        failure: CkptError | None = None
        try:
            await asyncio.to_thread(write_copy, path, self.cluster, self._folded)
        except CkptError as error:
            failure = error
        done(failure)


def _images(term: int, pairs: list[tuple[str, bytes]]) -> tuple[CatalogImage, CatalogImage]:
    """One that lacks keys is old for good: who loads it next would not miss them."""
    images = images_of(term, pairs)
    why = images[0].outdated or lacking(pairs, images[0])
    for image in images:
        image.outdated = why
    return images


def _lists_in_pages(pairs: list[tuple[str, bytes]], image: CatalogImage) -> Iterator[Writes]:
    """An earlier version kept all that a store has of a run in one key: its pages, and then that
    key without its list, so that each of these leaves all of it there.
    """
    lists = {name for name, value in pairs if value and keys.is_of_stored_run(name)}
    paged = dict(whole(image)) if lists else {}
    for own in sorted(lists):
        below = [name for name in paged if name.startswith(f"{own}/")]
        for start in range(0, len(below), CHANGED_PAGES_MAX):
            names = below[start : start + CHANGED_PAGES_MAX]
            yield Writes({name: paged[name] for name in names})
        yield Writes({own: paged[own]})


def _first(image: CatalogImage) -> Writes:
    """What a term begins with."""
    values: Values = {keys.COUNT: census(image.term, count_of(image))}
    if image.outdated:
        values[keys.OUTDATED] = image.outdated.encode()
    return Writes(values)


def _show_defect(writer: asyncio.Task[None]) -> None:
    """To the loop's handler, which ends a daemon: else its tickets would wait for ever."""
    if not writer.cancelled():
        writer.result()
