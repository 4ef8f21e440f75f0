"""Waiting for another process or thread to get somewhere: the one place in the tests that sleeps.

A test that needs virtual time uses a fake clock instead; this is for real processes, sockets and
files, whose progress can only be asked for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

WAIT_S: Final = 30.0
"""Generous: reached only when the condition will never hold, so a slow machine fails no test."""
_POLL_S: Final = 0.01
ASKED_S: Final = 0.1
"""Between two looks at what costs a connection: asked each 10 ms it takes a core from others."""
_LONG: Final = 4
"""So much longer is the rest between two looks in the end, of a wait that lasts."""
_LATE: Final = 0.1
"""How much later than it could be a long wait may end, as a share of what it lasted."""


def wait_until(
    condition: Callable[[], bool], what: str, timeout_s: float = WAIT_S, poll_s: float = _POLL_S
) -> None:
    """Returns as soon as the condition holds; fails naming `what` was awaited."""
    begun = time.monotonic()
    while not condition():
        waited_s = time.monotonic() - begun
        assert waited_s < timeout_s, f"after {timeout_s:g} s still not: {what}"
        time.sleep(min(max(poll_s, waited_s * _LATE), poll_s * _LONG))


async def wait_until_async(
    condition: Callable[[], bool], what: str, timeout_s: float = WAIT_S
) -> None:
    """The same while the event loop runs on."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"after {timeout_s:g} s still not: {what}"
        await asyncio.sleep(_POLL_S)
