"""SIGTERM and SIGINT ask a stager to end: it stays for its trainer, and a bounded time for its
saves.

Slurm and systemd send the first to every process of a job while the last save is still to come. A
terminal's Ctrl-C reaches no stager, which leads a session of its own: who sends it SIGINT means it.
"""

from __future__ import annotations

import signal
from types import FrameType
from typing import Final

_ENDING: Final = (signal.SIGTERM, signal.SIGINT)


def hold_signals() -> None:
    """Until `EndSignals.listen`: what comes while this process starts is heard then. A terminal
    that closes is the trainer's business.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)


class EndSignals:
    """I note that one came, for the loop to ask."""

    def __init__(self) -> None:
        self._asked = False

    def listen(self) -> None:
        """In the main thread."""
        for number in _ENDING:
            signal.signal(number, self._note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)

    def take(self) -> bool:
        """Whether one has come since I was asked last."""
        asked, self._asked = self._asked, False
        return asked

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self._asked = True
