"""How does who leads stay the leader? A task renews the lease of its key three times in its length,
and lets etcd compact what nobody needs any more on the way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from ckpt.aio.clock import now_us
from ckpt.base.errors import Unavailable
from ckptd.catalog.etcd.fence import Fence, FencedSpace
from ckptd.catalog.etcd.history import RevisionHistory

KEEPS_PER_LEASE: Final = 3


class LeaseKeeper:
    """I renew a fence's lease from now on, until it has ended or I am closed."""

    def __init__(
        self, space: FencedSpace, fence: Fence, history: RevisionHistory, granted_us: int
    ) -> None:
        """granted_us: it was asked for then."""
        self.kept_us = granted_us
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
        while True:
            await asyncio.sleep(self._fence.lease_s / KEEPS_PER_LEASE)
            asked_us = now_us()
            try:
                revision = await self._space.keep(self._fence)
            except Unavailable:
                # The next one may reach it; what is written finds out.
                continue
            if not revision:
                return
            self.kept_us = asked_us
            old = self._history.note(clock(), revision)
            if old is not None:
                await self._space.compact(old)
