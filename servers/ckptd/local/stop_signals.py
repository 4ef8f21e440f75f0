"""A signal that stops wakes the loop that watches children."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from ckptd.local.children import Supervisor


class StopSignals:
    """While I am entered, a stop signal wakes the loop and calls `stop` with its name."""

    def __init__(self, supervisor: Supervisor, stop: Callable[[str], None]) -> None:
        self._supervisor = supervisor
        self._stop = stop
        self._pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def __enter__(self) -> None:
        self._supervisor.watch(self._pipe[0], self._drain)
        signal.set_wakeup_fd(self._pipe[1])
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda number, _frame: self._stop(signal.Signals(number).name))

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(-1)
        for descriptor in self._pipe:
            os.close(descriptor)

    def _drain(self) -> None:
        os.read(self._pipe[0], 4096)
