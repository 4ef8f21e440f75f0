"""How does who leads stay the leader? A task renews the lease of its key three times in its length,
and lets etcd compact what nobody needs any more on the way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ckpt.aio.clock import now_us
from ckpt.base.errors import Unavailable
from ckpt.base.units import US_PER_S
from ckptd.catalog.etcd.client import KEEPS_PER_LEASE
from ckptd.catalog.etcd.fence import Fence, FencedSpace
from ckptd.catalog.etcd.history import RevisionHistory


class LeaseKeeper:
    """I renew a fence's lease from now on, until it has ended or I am closed."""

    def __init__(self, space: FencedSpace, fence: Fence, history: RevisionHistory) -> None:
        self.kept_us = fence.kept_us
        """When that was asked which renewed it last: it lasts at least its length from then on."""
        self._space = space
        self._fence = fence
        self._history = history
        self._task = asyncio.get_running_loop().create_task(self._keep(), name="ckptd-lease")

    @property
    def ended(self) -> bool:
        """Whether the lease has ended, or may have."""
        return self._task.done()

    def on_ended(self, call: Callable[[], None]) -> None:
        """Call `call` soon after it has ended."""
        self._task.add_done_callback(lambda _task: call())

    async def close(self) -> None:
        """Stop renewing it."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _keep(self) -> None:
        clock = asyncio.get_running_loop().time
        rest_s = self._fence.lease_s / KEEPS_PER_LEASE
        # Where etcd is slow, much of the lease has gone by.
        await asyncio.sleep(max(0.0, rest_s - (now_us() - self.kept_us) / US_PER_S))
        while True:
            asked_us = now_us()
            try:
                revision = await self._space.keep(self._fence)
            except Unavailable:
                # The next one may reach it; what is written finds out.
                revision = -1
            if not revision:
                return
            if revision > 0:
                self.kept_us = asked_us
                old = self._history.note(clock(), revision)
                if old is not None:
                    await self._space.compact(old)
            await asyncio.sleep(rest_s)
