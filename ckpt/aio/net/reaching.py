"""The first step of a link: a socket that begins to connect."""

from __future__ import annotations

import errno
import os
import socket
from typing import Final

from ckpt.aio.net.address import Address, endpoint_by_resolver
from ckpt.aio.net.sockets import tune
from ckpt.base.errors import Unavailable
from ckpt.base.system_errors import Scarce, system_error

_DISCARD_PORT: Final = 9


def reach(where: Address) -> tuple[socket.socket, int]:
    """A tuned socket, not blocking, that is on its way; and 0, EINPROGRESS, or the errno with which
    it has failed already. A host name asks the system's resolver, which may block. Raises
    Unavailable.
    """
    try:
        endpoint = endpoint_by_resolver(where)
        sock = socket.socket(endpoint.family, socket.SOCK_STREAM)
    except Unavailable as error:
        raise Unavailable(f"cannot connect to {where}: {error}") from None
    except OSError as error:
        found = system_error(f"cannot connect to {where}", error)
        if isinstance(found, Scarce):
            raise found from None
        raise Unavailable(found.message, hint=found.hint) from None
    try:
        tune(sock)
        return sock, sock.connect_ex(endpoint.sockaddr)
    except OSError as error:
        return sock, error.errno or errno.EIO


def check_loopback() -> None:
    """Raises Unavailable where this process's network has no loopback, over which all that runs on
    one host speaks: a new network namespace has it, but down.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        code = probe.connect_ex(("127.0.0.1", _DISCARD_PORT))  # Nothing is sent.
    if code:
        raise Unavailable(
            f"this host's loopback interface is down: 127.0.0.1: {os.strerror(code)}",
            hint="ip link set lo up, in the same network namespace",
        )


def cannot_connect(address: str, code: int) -> Unavailable:
    """Why a connection failed, by errno."""
    return Unavailable(f"cannot connect to {address}: {os.strerror(code)}")
