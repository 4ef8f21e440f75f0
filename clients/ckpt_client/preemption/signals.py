"""Signals that ask this process to end, noted and passed on to whoever handled them before.

A handler runs between any two instructions of the main thread, also while that holds a lock: it
only puts a word into a queue that may be entered again (SimpleQueue).

A forked child (a worker of a data loader, say) has its parent's handlers. It gets back what was
there before, or its parent's SIGTERM would not end it; where that is nothing, it ignores the
others: Slurm sends SIGUSR1 to every process of a job, and means the training.
"""

from __future__ import annotations

import os
import signal
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType

from ckpt.base.errors import Refused

Handler = Callable[[int, FrameType | None], object] | int | signal.Handlers | None

#: Every watch of this process: a forked child closes them.
_watches: weakref.WeakSet[SignalWatch] = weakref.WeakSet()


class SignalWatch:
    """I call `hear` with the name of each signal that comes, in its handler. Close me."""

    def __init__(self, names: Sequence[str], hear: Callable[[str], None]) -> None:
        """Raises Refused for a name that is no signal, or one that nobody can handle, and outside
        of the main thread.
        """
        numbers = [_number(name) for name in names]
        if threading.current_thread() is not threading.main_thread():
            raise Refused(
                "signals are watched from the main thread alone",
                hint="call preemption() there, before other threads begin",
            )
        self._hear = hear
        self._closed = False
        #: Signal -> what handled it before.
        self._before: dict[int, Handler] = {}
        #: The one object that is installed: a bound method is another one each time it is asked.
        self._handler = self._handle
        for number in numbers:
            self._before[number] = signal.signal(number, self._handler)
        _watches.add(self)

    def close(self) -> None:
        """Restore the earlier handlers. If somebody has set a handler since, or from another
        thread, signals are only passed on from now on. Idempotent.
        """
        self._closed = True
        for number, before in self._before.items():
            if signal.getsignal(number) is self._handler:
                with suppress(ValueError):  # Not the main thread.
                    signal.signal(number, signal.SIG_DFL if before is None else before)

    def close_in_child(self) -> None:
        """In a forked child: the watch is its parent's."""
        for number, before in self._before.items():
            if before == signal.SIG_DFL and number != signal.SIGTERM:
                self._before[number] = signal.SIG_IGN
        self.close()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._closed:
            self._hear(signal.Signals(number).name)
        before = self._before[number]
        if callable(before):
            before(number, frame)
        elif self._closed and before == signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


def _number(name: str) -> signal.Signals:
    known = getattr(signal.Signals, name, None)
    if not isinstance(known, signal.Signals) or known in (signal.SIGKILL, signal.SIGSTOP):
        raise Refused(f"{name!r} is no signal that can be watched", hint="'SIGTERM', say")
    return known


def _close_in_child() -> None:
    for watch in list(_watches):
        watch.close_in_child()


os.register_at_fork(after_in_child=_close_in_child)
