"""How does who stands by know at once what is stored, when it begins to lead? It keeps a copy of
all keys beside the leader, by a watch.

    all keys, page by page --> changes from the revision ahead of the first page on --> ...
       ^                                                |
       +---- the watch ended, or was too late for it ---+

Plan: changes are whole values, so that those which a page has already do no harm. The copy is that
of a revision when all changes up to there are in it, which one's own transaction says that has just
taken the leader's key: nobody else writes after it. The key that it wrote must be in the copy: an
etcd that was put back to a snapshot counts the same revisions once more.

A watch may fall silent without an end, as its member does. Whoever looks at the leader's key says
which revision there is by now (`expects`); a watch that does not come to it goes to another member.
"""

from __future__ import annotations

import asyncio
from typing import Final

from ckpt.aio.clock import draw
from ckpt.base.errors import CkptError, Unavailable
from ckpt.base.rests import Rests
from ckptd.catalog.etcd import keys
from ckptd.catalog.etcd.client import EtcdClient
from ckptd.catalog.etcd.fence import Fence, FencedSpace
from ckptd.catalog.etcd.opening import all_keys
from ckptd.catalog.etcd.words import KeyChange, KeyChanges, Range, RangeFound, WatchFrom, WatchKeys

READ_S: Final = 30.0
"""For all pages."""
LATE_S: Final = 1.0
"""A watch that lags for longer is begun again, with another member."""
REST_S: Final = (0.1, 2.0)


class Mirror:
    """I follow from `start` to `stop`, and may be started again."""

    def __init__(self, client: EtcdClient, space: FencedSpace) -> None:
        self.revision = 0
        """All changes up to it are here; 0: nothing is."""
        self.reads = 0
        """How often all keys were read."""
        self._client = client
        self._space = space
        self._names = keys.KeySpace(client.url.prefix)
        self._values: dict[str, bytes] = {}
        self._expected = 0
        self._turn = 0
        self._moved = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Follow from now on."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="ckptd-mirror")

    async def stop(self) -> None:
        """Follow no more, and forget all."""
        task, self._task = self._task, None
        self.revision = self._expected = 0
        self._values = {}
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def expects(self, revision: int) -> None:
        """Note that etcd has reached at least this revision; 0: nobody knows. One that was put back
        to a snapshot has fewer than before.
        """
        self._expected = revision or self._expected

    async def pairs_at(self, fence: Fence, patience_s: float) -> list[tuple[str, bytes]] | None:
        """All (name, value) as the transaction left them that took this fence, after which nobody
        wrote; None if the mirror does not come to it in time.
        """
        try:
            async with asyncio.timeout(patience_s):
                while not 0 < fence.revision <= self.revision:
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            return None
        if self._values.get(keys.LEADER) != fence.key:
            # It followed an etcd that was since put back to an older snapshot: revisions of before.
            return None
        return list(self._values.items())

    # ----------------------------------------------------------------------- following

    async def _run(self) -> None:
        rests = Rests(*REST_S, draw)
        while True:
            try:
                await self._read()
                await self._follow(rests)
            except CkptError:
                # Nobody needs the copy as long as another one leads.
                self.revision = 0
            self._turn += 1
            await asyncio.sleep(rests.next_s())

    async def _read(self) -> None:
        deadline = asyncio.get_running_loop().time() + READ_S
        ahead = Range(self._names.full(keys.META))
        found = await self._client.call("kv/range", ahead, RangeFound, deadline)
        self._values = dict(await all_keys(self._space, deadline, found.header.revision))
        self.revision = found.header.revision
        self.reads += 1

    async def _follow(self, rests: Rests) -> None:
        """Raises Unavailable when the watch ends, or is late."""
        full, since = self._names.full, self.revision + 1
        request = WatchKeys(WatchFrom(full(keys.FIRST), full(keys.LAST), since))
        late_since: float | None = None
        clock = asyncio.get_running_loop().time
        async for changes in self._client.watch(request, self._turn, LATE_S / 4):
            if changes is not None:
                self._take(changes)
                rests.begin_again()
            if self._expected <= self.revision:
                late_since = None
            else:
                late_since = late_since or clock()
                if clock() - late_since > LATE_S:
                    raise Unavailable("the watch is late")

    def _take(self, changes: KeyChanges) -> None:
        if changes.canceled:
            raise Unavailable(changes.cancel_reason or "what the watch begins with is compacted")
        for change in changes.events:
            self._apply(change)
        if changes.events:
            self.revision = max(change.kv.mod_revision for change in changes.events)
            self._moved.set()

    def _apply(self, change: KeyChange) -> None:
        name = self._names.name(change.kv.key)
        if change.type == "DELETE":
            self._values.pop(name, None)
        else:
            self._values[name] = change.kv.value
