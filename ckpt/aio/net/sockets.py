"""How connected sockets are set up, whichever loop watches them; and what their errors mean."""

from __future__ import annotations

import errno
import socket
from typing import Final

from ckpt.base.errors import Unavailable
from ckpt.base.units import MiB

UNIX_BUFFER_BYTES: Final = 4 * MiB
"""TCP is left to its own tuning; fixed sizes are slower there."""
_SO_SNDBUFFORCE: Final = 32
_SO_RCVBUFFORCE: Final = 33
_TCP_USER_TIMEOUT_MS: Final = 30_000


def tune(sock: socket.socket) -> None:
    """Non-blocking; no delay and keepalive on TCP, large buffers on Unix."""
    sock.setblocking(False)
    if sock.family == socket.AF_UNIX:
        for forced, plain in (
            (_SO_SNDBUFFORCE, socket.SO_SNDBUF),
            (_SO_RCVBUFFORCE, socket.SO_RCVBUF),
        ):
            try:
                sock.setsockopt(socket.SOL_SOCKET, forced, UNIX_BUFFER_BYTES)
            except OSError:
                # Only the system's administrator may pass the system's limit.
                sock.setsockopt(socket.SOL_SOCKET, plain, UNIX_BUFFER_BYTES)
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _TCP_USER_TIMEOUT_MS)


def peer_closed() -> Unavailable:
    """What to raise when a socket has ended."""
    return Unavailable("the peer closed the connection")


def connection_failed(error: OSError) -> Unavailable:
    """What to raise for what a connected socket says."""
    if error.errno in (errno.EPIPE, errno.ECONNRESET):
        return peer_closed()
    return Unavailable(f"the connection failed: {error.strerror}")
