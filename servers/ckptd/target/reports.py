"""What does a target's HTTP plane show? Nothing but its health while it waits for its cluster's id,
all of it once it serves.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ckpt.aio.clock import now_us
from ckpt.native.version import release
from ckptd.http.exposition import render
from ckptd.target.metrics import build_info, target_families

if TYPE_CHECKING:
    from ckpt.aio.disk import RealDisk
    from ckpt.aio.net.serving.server import Server
    from ckpt.aio.slots import SlotPool
    from ckptd.target.shell import TargetShell


class TargetReports:
    """I look at a shell and what it works with; I am made before they are. See http.Reports."""

    def __init__(self, disk: RealDisk, stop: asyncio.Event) -> None:
        self._disk = disk
        self._stop = stop
        self._serving: tuple[TargetShell, Server, SlotPool] | None = None

    def begin(self, shell: TargetShell, server: Server, pool: SlotPool) -> None:
        """From now on there is something to show."""
        shell.begin_probe()
        self._serving = shell, server, pool

    def why_not_ready(self) -> str:
        """One line for people."""
        return "not ready"

    def is_ready(self) -> bool:
        """Whether it is joined to the coordinator, its device takes writes, and nobody asked it to
        stop.
        """
        if self._serving is None or self._stop.is_set():
            return False
        shell, _, _ = self._serving
        return shell.machine.registered and shell.takes_writes(now_us())

    def metrics(self) -> str:
        """Prometheus text."""
        running = release()
        if self._serving is None:
            return render([build_info(running)])
        shell, server, pool = self._serving
        families = target_families(
            version=running,
            machine=shell.machine,
            statistics=server.statistics(),
            sync_s=shell.sync_s,
            pools={
                "receive": (pool.total_bytes - pool.free_bytes, pool.total_bytes),
                "read": (self._disk.pool_used_bytes, self._disk.pool_bytes),
            },
        )
        return render(families)
