"""Which addresses has a host name? A name that was looked up once is answered at once, from memory.

The system's resolver may take seconds to answer, or to say that nobody answers it; whoever dials
serves all its other links on the same thread. So only the first look waits for it. Later ones get
what it said last, and if that is not quite new it is asked again meanwhile, on a thread of its own:
a name that has moved is dialed at its old address once more, then at the new one.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from dataclasses import dataclass
from typing import Final

from ckpt.base.errors import Unavailable

FRESH_S: Final = 1.0
"""What was said so lately is not asked again."""

SocketAddress = tuple[str, int] | tuple[str, int, int, int]
_Name = tuple[str, int]


@dataclass(slots=True)
class _Said:
    """What the resolver said of a name."""

    found: tuple[tuple[socket.AddressFamily, SocketAddress], ...]
    why_not: str
    at_s: float
    asked_by: int = 0
    """The process that asks again: a child that was forked meanwhile has no such thread."""


#: Of the hosts of a cluster: few. All threads look; two that ask at once do no harm.
_said: Final[dict[_Name, _Said]] = {}


def looked_up(host: str, port: int) -> tuple[tuple[socket.AddressFamily, SocketAddress], ...]:
    """Family and address of each. May block the first time. Raises Unavailable."""
    name = host, port
    said = _said.get(name)
    if said is None:
        said = _said[name] = _ask(name)
    elif time.monotonic() - said.at_s > FRESH_S and said.asked_by != os.getpid():
        said.asked_by = os.getpid()
        asks = threading.Thread(target=_ask_again, args=(name,), name="ckpt-names", daemon=True)
        try:
            asks.start()
        except RuntimeError:
            said.asked_by = 0  # There are no more threads to be had now.
    if not said.found:
        raise Unavailable(f"no address for host {host!r}: {said.why_not}")
    return said.found


def _ask_again(name: _Name) -> None:
    said, before = _ask(name), _said.get(name)
    if not said.found and before is not None and before.found:
        # As while no name server answers: where it was is where it is.
        said.found = before.found
    _said[name] = said


def _ask(name: _Name) -> _Said:
    host, port = name
    found: list[tuple[socket.AddressFamily, SocketAddress]] = []
    why_not = ""
    try:
        for family, _, _, _, where in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            assert not isinstance(where[0], int)
            found.append((family, where))
    except (OSError, UnicodeError) as error:
        why_not = str(error)
    return _Said(tuple(dict.fromkeys(found)), why_not, time.monotonic())
