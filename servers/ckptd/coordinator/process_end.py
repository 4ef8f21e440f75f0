"""When and why does the process end? One object that its parts share."""

from __future__ import annotations

import asyncio
import signal

from ckpt.base.errors import CkptError


class ProcessEnd:
    """`stop` is set when the process should end; `failure` says why, None for a clean stop."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.failure: CkptError | None = None

    def fail(self, error: CkptError) -> None:
        """End the process because of this error; only the first one counts."""
        self.failure = self.failure or error
        self.stop.set()

    def on_signals(self) -> None:
        """SIGTERM and SIGINT set `stop` from now on."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop.set)
