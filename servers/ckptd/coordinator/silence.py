"""Does etcd answer? As long as it renews the lease of who leads, a majority of it does."""

from __future__ import annotations

import asyncio
from math import inf

from ckpt.aio.clock import now_us
from ckpt.base.errors import Unavailable
from ckpt.base.units import US_PER_S
from ckptd.catalog.etcd.fence import FencedSpace
from ckptd.catalog.etcd.lease import LeaseKeeper
from ckptd.catalog.etcd.times import SILENT_S


class EtcdSilence:
    """I know why etcd does not answer one coordinator."""

    def __init__(self, space: FencedSpace) -> None:
        self._space = space
        self._why = ""
        #: etcd spoke then, by the loop's clock.
        self._heard_s = asyncio.get_running_loop().time()

    @property
    def why(self) -> str:
        """Empty while it answers, and stores what my term writes."""
        return self._why or self._space.times.unanswered

    def note(self, error: Unavailable | None, keeper: LeaseKeeper | None) -> None:
        """How a look at the leader's key ended; None: it was answered. `keeper`: of my term."""
        clock = asyncio.get_running_loop().time
        unkept_s = inf if keeper is None else (now_us() - keeper.kept_us) / US_PER_S
        if error is None:
            self._heard_s, self._why = clock(), ""
        elif min(clock() - self._heard_s, unkept_s) >= SILENT_S:
            self._why = error.message
