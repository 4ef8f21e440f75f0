"""What a process gets from whoever starts it, and cannot live with.

- No stdin, stdout or stderr (`>&-`, some schedulers): Python has None there, and the next file or
  socket that is opened gets their number. What some library writes to stderr would go into it.
- SIGCHLD ignored, as programs do that want no zombies: then nobody hears how a child has ended.
- Signals blocked, as in a thread that leaves them to another one: then nobody can end the process.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import Final

_STREAMS: Final = {"stdin": "r", "stdout": "w", "stderr": "w"}


def hold_standard_numbers() -> None:
    """Let the numbers of missing standard streams lead nowhere, also for children. Call it before
    anything else is opened.
    """
    with suppress(OSError):  # Of descriptors there are none left, so these are taken as well.
        # Each time the lowest number that is free.
        while (descriptor := os.open(os.devnull, os.O_RDWR)) < len(_STREAMS):
            os.set_inheritable(descriptor, True)
        os.close(descriptor)


def open_missing_streams() -> None:
    """The same, and Python has them as well. Only a program's main calls this."""
    hold_standard_numbers()
    for number, (name, mode) in enumerate(_STREAMS.items()):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode))


def hear_signals() -> None:
    """Block none, and hear of children's ends. Only a program's main calls this."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
