"""How far are the bytes of a save on their way into the arena? What a training waits for before it
changes them.

    save() ──> queued: what comes after `follow` changes nothing that is copied ──> over
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final
from weakref import WeakSet

from ckpt.base.units import check_seconds
from ckpt_client.handlers import refuse_inside

#: Of this process, until they are over.
_under_way: Final[WeakSet[Staged]] = WeakSet()


class Staged:
    """Of one save, which somebody else copies. Thread safe."""

    def __init__(self, follow: Callable[[], None] | None = None) -> None:
        """follow: called when all that the host copies is copied and all else is queued on its
        devices: what the calling thread queues from then on is done after the copies. Without it
        `Staged.follow` waits until all is copied.
        """
        self._follow = follow
        self._queued = threading.Event()
        self._over = threading.Event()
        #: Threads that wait here, or whose changes come after the copies.
        self._met: set[int] = set()
        _under_way.add(self)

    @property
    def done(self) -> bool:
        """Whether the state may be changed: it is copied, or never will be."""
        return self._over.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until the state may be changed; False when the time is over first."""
        if timeout_s is not None:
            timeout_s = check_seconds("timeout_s", timeout_s)
        refuse_inside()
        try:
            self._met.add(threading.get_ident())
            return self._over.wait(timeout_s)
        finally:
            self._met.discard(threading.get_ident())

    def follow(self) -> float:
        """From here on the calling thread may change the state. What a device copies is waited for
        by the device, in its queue, not by this call. Returns the seconds that it took.
        """
        begun_s = time.monotonic()
        if not self._over.is_set():
            self._met.add(threading.get_ident())
            self._queued.wait()
            follow = self._follow
            if follow is not None:
                follow()
            else:
                self._over.wait()
        return time.monotonic() - begun_s

    # ----------------------------------------------------------------------- for who copies

    def is_met(self, thread: threading.Thread) -> bool:
        """Whether it waits for this save, or will change the state only after the copies."""
        return thread.ident in self._met

    def note_queued(self) -> None:
        """Note that the devices know what to copy, and that the host's part is copied."""
        self._queued.set()

    def note_over(self) -> None:
        """Note that all is copied, or that nothing more will be."""
        # It would keep the state alive as long as the save.
        self._follow = None
        self._over.set()
        self._queued.set()
        _under_way.discard(self)

    def abandon(self) -> None:
        """In a forked child. Who held a lock in the parent may not be here."""
        self._queued, self._over = threading.Event(), threading.Event()
        self.note_over()


def _end_in_child() -> None:
    """The thread that copies is not in a forked child: nobody there may wait for it."""
    for staged in list(_under_way):
        staged.abandon()


os.register_at_fork(after_in_child=_end_in_child)


def staged_already() -> Staged:
    """The Staged of a save that was copied before its call returned."""
    staged = Staged()
    staged.note_over()
    return staged


def wait_for_stagings() -> None:
    """Until all that is under way is copied: ahead of a load that fills memory in place, which
    nobody counts as a change.
    """
    for staged in stagings_under_way():
        staged.wait()


def stagings_under_way() -> Iterable[Staged]:
    """All stagings of this process that are under way, in no order."""
    return list(_under_way)
