"""What waits for sockets: a selector and an event loop on it. Bulks land and leave meanwhile."""

from __future__ import annotations

import asyncio
import os
import selectors
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from select import EPOLLIN, EPOLLOUT

from ckpt.base.system_errors import system_error
from ckpt.native.polling import BulkPoll


class BulkSelector(selectors.EpollSelector):
    """A socket at which a bulk lands or leaves is found when that is whole, or broken, and now and
    then.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bulks = BulkPoll(self.fileno())
        """Those that are under way now: channels say so."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """As every selector's; while bulks are under way it may return early, and with nothing."""
        if not self.bulks:
            return super().select(timeout)
        keys = self.get_map()
        found: list[tuple[selectors.SelectorKey, int]] = []
        for descriptor, events in self.bulks.wait(timeout):
            key = keys.get(descriptor)
            if key is not None:
                reads = selectors.EVENT_READ if events & ~EPOLLOUT else 0
                writes = selectors.EVENT_WRITE if events & ~EPOLLIN else 0
                found.append((key, (reads | writes) & key.events))
        return found


class BulkLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop on a `BulkSelector`."""

    def __init__(self, selector: BulkSelector | None = None) -> None:
        selector = BulkSelector() if selector is None else selector
        self.bulks = selector.bulks
        """See there."""
        super().__init__(selector)


def bulk_loop() -> BulkLoop:
    """One that nobody made room for. Raises Scarce where the system gives no descriptors."""
    with _descriptors():
        selector = BulkSelector()
        try:
            # A loop of asyncio's takes two more, and complains when it goes half made.
            for end in socket.socketpair():
                end.close()
            return BulkLoop(selector)
        except OSError:
            selector.close()
            raise


def bulks_of(loop: asyncio.AbstractEventLoop) -> BulkPoll | None:
    """Of a `BulkLoop`; None: channels on this one take each part of a bulk themselves."""
    return loop.bulks if isinstance(loop, BulkLoop) else None


def bell() -> int:
    """An eventfd for another thread to ring. Raises Scarce."""
    with _descriptors():
        return os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)


def selector_with_bell() -> tuple[BulkSelector, int]:
    """And its bell. Raises Scarce where the system gives no descriptors."""
    with _descriptors():
        made = bell()
        try:
            return BulkSelector(), made
        except OSError:
            os.close(made)
            raise


@contextmanager
def _descriptors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise system_error("no connection can be made", error) from None
