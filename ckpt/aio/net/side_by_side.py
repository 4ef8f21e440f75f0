"""Who answers first of several that are asked the same? One after the other begins: the next one as
soon as the one before it has failed, or was slow, and then beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import TypeVar

_Found = TypeVar("_Found")


async def first_found(
    tries: Sequence[Callable[[], Coroutine[None, None, _Found | None]]], beside_s: float | None
) -> _Found | None:
    """What the first of these finds that finds something; None when none does. The next one begins
    after `beside_s` at the latest; None: only when the one before it has failed. Nothing of them
    runs on return. Raises what one of them raises.
    """
    left = list(tries)
    # In the order in which they began: a set would have another one in each process.
    begun: list[asyncio.Task[_Found | None]] = []
    try:
        while left or begun:
            if left:
                begun.append(asyncio.create_task(left.pop(0)()))
            patience_s = beside_s if left else None
            await asyncio.wait(begun, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
            for task in [each for each in begun if each.done()]:
                begun.remove(task)
                found = task.result()
                if found is not None:
                    return found
        return None
    finally:
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)
