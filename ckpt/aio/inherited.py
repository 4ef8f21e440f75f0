"""What a process gets from whoever starts it, and cannot live with.

- No stdin, stdout or stderr (`>&-`, some schedulers): Python has None there, and the next file or
  socket that is opened gets their number. What some library writes to stderr would go into it.
- SIGCHLD ignored, as programs do that want no zombies: then nobody hears how a child has ended.
- Signals blocked, as in a thread that leaves them to another one: then nobody can end the process.
- A stdout that nobody reads to its end (`| head`), or of a full disk: Python complains at its end.
- A stderr of a full disk: Python ends with 120 then, whatever the program said.
- A locale without a letter that is to be said, as C has no `…`: Python gives the whole line up.
"""

from __future__ import annotations

import atexit
import errno
import io
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TextIO

UNREAD: Final = 128 + signal.SIGPIPE
"""The exit code with which a shell reports SIGPIPE."""
UNWRITTEN: Final = 1
_UNWRITABLE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
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


def write_any_letter() -> None:
    """A terminal or a locale that lacks a letter still gets the line. Only a program's main calls
    this.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def keep_exit_code() -> None:
    """A stderr that takes nothing more does not change it. Only a program's main calls this."""
    atexit.register(_give_up_errors)


def _give_up_errors() -> None:
    try:
        sys.stderr.flush()
    except OSError:
        _lead_nowhere(sys.stderr)


def hear_signals() -> None:
    """Block none, and hear of children's ends. Only a program's main calls this."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def answered(program: str, run: Callable[[], int]) -> int:
    """What `run` returns, once all that it said on stdout is written; UNREAD when nobody reads it,
    and UNWRITTEN, which stderr hears of, when the disk does not take it. Only a program's main
    calls this.
    """
    try:
        try:
            return run()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        forget_output()
        return UNREAD
    except OSError as error:
        # One of a file has its name.
        if error.filename is not None or error.errno not in _UNWRITABLE:
            raise
        forget_output()
        complain(f"{program}: cannot write the answer: {error.strerror}")
        return UNWRITTEN


def complain(text: str) -> None:
    """A line on stderr, if that takes one."""
    with suppress(OSError):
        sys.stderr.write(f"{text}\n")


def forget_output() -> None:
    """What could not be written goes nowhere: Python must not complain at its end either."""
    _lead_nowhere(sys.stdout)


def _lead_nowhere(stream: TextIO) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
