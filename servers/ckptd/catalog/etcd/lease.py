"""How does who leads stay the leader? A task renews the lease of its key three times in its length,
and lets etcd compact what nobody needs any more on the way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from ckpt.aio.clock import now_us
from ckpt.base.errors import CkptError, Unavailable
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
        self._over = asyncio.Event()
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
        """Each renewal in its time, also while those before it have no answer yet."""
        rest_s = self._fence.lease_s / KEEPS_PER_LEASE
        # Where etcd is slow, much of the lease has gone by.
        await asyncio.sleep(max(0.0, rest_s - (now_us() - self.kept_us) / US_PER_S))
        renewals: list[asyncio.Task[None]] = []
        try:
            while not self._over.is_set():
                renewals = [each for each in renewals if not each.done()]
                renewals.append(asyncio.create_task(self._renew()))
                with suppress(TimeoutError):
                    async with asyncio.timeout(rest_s):
                        await self._over.wait()
        finally:
            for each in renewals:
                each.cancel()
            await asyncio.gather(*renewals, return_exceptions=True)

    async def _renew(self) -> None:
        asked_us = now_us()
        try:
            revision = await self._space.keep(self._fence)
        except Unavailable:
            # The next one may reach it; what is written finds out.
            return
        except CkptError:
            revision = 0
        if not revision:
            self._over.set()
            return
        self.kept_us = max(self.kept_us, asked_us)
        old = self._history.note(asyncio.get_running_loop().time(), revision)
        if old is not None:
            await self._space.compact(old)
