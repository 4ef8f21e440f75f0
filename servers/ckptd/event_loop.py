"""Which event loop a daemon runs on, by its option `loop`."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from ckpt.aio.collector import collect_rarely
from ckpt.base.errors import Refused

LOOPS = ("asyncio", "uvloop")


def check_loop(name: str) -> None:
    """Raises Refused for one that we do not know."""
    if name not in LOOPS:
        raise Refused(f"loop {name!r}: {' or '.join(LOOPS)}")


def run(daemon: Coroutine[object, object, None], loop: str) -> None:
    """Run it to its end; uvloop is imported only where it is asked for."""
    collect_rarely()
    factory = None
    if loop == "uvloop":
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(daemon)
