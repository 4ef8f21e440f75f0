"""How many descriptors may this process have, and what does it do when none is left?

A daemon's connections and files are descriptors. The system's soft limit (often 1,024) is made for
programs that use `select`; we do not, so a daemon takes the hard one at its start.

Other code of a trainer's process may close descriptors that it does not know: a DescriptorMark
notices.

The DescriptorReserve keeps a few of them back. Without it, a daemon that has none left could not
even tell a peer so: it would not be able to accept the connection.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from typing import Final

from ckpt.base.errors import Refused

RESERVE_COUNT: Final = 16
SHORTAGES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""What `accept` says when a connection is there and something to hold it is not."""
RAISED_MAX: Final = 1 << 20
"""Nobody needs more, and a hard limit may be infinite."""


def limit() -> int:
    """Descriptors that this process may have now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return RAISED_MAX if soft == resource.RLIM_INFINITY else soft


def raise_limit() -> int:
    """Raise the limit to the hard one, as far as the system allows; returns what is allowed now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = RAISED_MAX if hard == resource.RLIM_INFINITY else min(hard, RAISED_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return limit()


class DescriptorMark:
    """I know which file a descriptor leads to. When other code has closed it, its number leads
    nowhere, or to a file of that code's: nothing may be written to it, and it is not closed.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._file = _file_of(descriptor)

    @property
    def is_ours(self) -> bool:
        return _file_of(self._descriptor) == self._file


def _file_of(descriptor: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def closed_outside() -> Refused:
    """What to say where a mark's descriptor is not ours any more."""
    return Refused(
        "other code of this process has closed the store's connections, as os.closerange and"
        " libraries that make daemons do",
        hint="open the store after that",
    )


class DescriptorReserve:
    """I hold descriptors of /dev/null. `give` closes one, so that an `accept` finds it free."""

    def __init__(self, count: int = RESERVE_COUNT) -> None:
        self._count = min(count, max(1, limit() // 16))
        self._held: list[int] = []
        self.refill()

    @property
    def is_full(self) -> bool:
        """False if the process ran out of descriptors and has had none to spare since."""
        return len(self._held) == self._count

    @property
    def is_low(self) -> bool:
        """Half of it, or more, is in use."""
        return 2 * len(self._held) <= self._count

    def give(self) -> bool:
        """Let one descriptor go; False when none is left."""
        if not self._held:
            return False
        os.close(self._held.pop())
        return True

    def refill(self) -> bool:
        """Take back what is free now; True when it is full again."""
        with contextlib.suppress(OSError):
            while not self.is_full:
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        return self.is_full

    def close(self) -> None:
        """Let all go, for good."""
        self._count = 0
        while self.give():
            continue
