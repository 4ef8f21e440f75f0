"""How a daemon's coroutine runs to its end: on asyncio's own loop (decision 27)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from ckpt.aio.collector import collect_rarely
from ckpt.aio.selecting import BulkLoop


def run(daemon: Coroutine[object, object, None]) -> None:
    """Run it to its end; cyclic garbage is looked for rarely."""
    collect_rarely()
    with asyncio.Runner(loop_factory=BulkLoop) as runner:
        runner.run(daemon)
