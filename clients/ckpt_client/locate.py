"""Where the coordinator is now: a fixed address, or what a local cluster's ready file says."""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ckpt.aio.clock import draw
from ckpt.aio.durable import is_there
from ckpt.base.errors import Unavailable
from ckpt.base.rests import shortened
from ckpt.base.system_errors import system_error
from ckpt.base.units import US_PER_S

READY_NAME = "ready.json"
DIAL_S = 0.4
"""The longest that a stager rests after a failed dial."""


class ReadyFile(msgspec.Struct, frozen=True):
    """What the local supervisor says while it serves; it writes more than is needed here."""

    address: str
    pid: int
    cluster: str
    boot: str


_ready_decoder = msgspec.json.Decoder(ReadyFile)


@dataclass(frozen=True, slots=True)
class Locator:
    """I know where to look. Empty `directory` means that `address` is fixed."""

    directory: str
    address_fixed: str

    @property
    def is_gone(self) -> bool:
        """Whether there is surely no such directory; one that cannot be asked now may come back."""
        try:
            return bool(self.directory) and not is_there(Path(self.directory))
        except OSError:
            return False

    def address(self) -> str:
        """HOST:PORT, of several coordinators with commas between them. Raises Unavailable when the
        local cluster does not serve now, Scarce where nobody can look.
        """
        if not self.directory:
            return self.address_fixed
        ready = read_ready(Path(self.directory))
        if ready is None:
            raise Unavailable(f"the cluster in {self.directory} is not running")
        return ready.address


def read_ready(directory: Path) -> ReadyFile | None:
    """The ready file, or None when there is none (or none that parses:
    it is replaced atomically). Raises Scarce where nothing can be opened now.
    """
    path = directory / READY_NAME
    try:
        return _ready_decoder.decode(path.read_bytes())
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise system_error(f"cannot read {path}", error) from None
        return None
    except msgspec.MsgspecError:
        return None


def dial_us() -> int:
    """This process's rest after a failed dial; the processes of a crowd that lost its leader rest
    for different times.
    """
    return int(shortened(DIAL_S, draw) * US_PER_S)


def client_name() -> str:
    """`HOST:PID` of this process, for people."""
    return f"{socket.gethostname()}:{os.getpid()}"
