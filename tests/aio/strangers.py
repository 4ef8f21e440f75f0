"""Peers that cost a daemon something and prove nothing: what they hold open, and how they flood."""

from __future__ import annotations

import errno
import os
import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Final, Self

from ckpt.format.frame import FrameWriter
from ckpt.format.messages.hello import ClientHello, Role
from ckpt.protocol.handshake import NONCE_BYTES
from tests.waiting import wait_until

HELLO: Final = FrameWriter().encode(ClientHello(1, Role.STAGER, b"n" * NONCE_BYTES), 0)
SAYINGS: Final = {
    "nothing": b"",
    "half a hello": HELLO[: len(HELLO) // 2],
    "a hello": HELLO,
    "noise": b"GET / HTTP/1.1\r\nHost: x\r\n",
}
"""What a stranger says before it says no more. The nonce of a whole hello is answered."""

ASK_S: Final = 15.0
"""The time limit of whoever asks beside strangers. Two seconds are promised, which make soak tries:
beside other tests a machine takes seconds for anything. Who is shut out is so for longer than this.
"""

Where = tuple[str, int] | str
"""HOST, PORT; or a Unix path."""


def begin_connecting(where: Where) -> socket.socket:
    """A socket whose connection comes about by itself, or never does."""
    sock = socket.socket(socket.AF_UNIX if isinstance(where, str) else socket.AF_INET)
    sock.setblocking(False)
    code = sock.connect_ex(where)
    if code not in (0, errno.EINPROGRESS):
        # A Unix path's listen queue is full, say.
        sock.close()
        raise OSError(code, os.strerror(code))
    return sock


class Crowd:
    """Strangers of one daemon in a thread: `count` at once. Each says its piece as soon as it is
    connected, and nothing more; with `returning`, who is cut off comes again at once.
    """

    def __init__(
        self, where: Where, count: int, saying: bytes = b"", *, dripping: bytes = b"",
        returning: bool = False,
    ) -> None:  # fmt: skip
        """`dripping`: a byte of it a second, to whoever is connected."""
        self.connected_count = 0
        """How often one of them got through to the system's listen queue, or was refused there."""
        self.cut_count = 0
        self._where, self._saying, self._returning = where, saying, returning
        self._dripping = dripping
        self._dripped = 0
        self._ended = threading.Event()
        self._selector = selectors.DefaultSelector()
        for _ in range(count):
            self._come()
        self._thread = threading.Thread(target=self._run, name="strangers")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._selector.close()

    def wait_connected(self, count: int) -> None:
        wait_until(lambda: self.connected_count >= count, f"{count} strangers are connected")

    def _come(self) -> None:
        try:
            sock = begin_connecting(self._where)
        except OSError:
            return
        self._selector.register(sock, selectors.EVENT_WRITE)

    def _run(self) -> None:
        while not self._ended.is_set():
            found = self._selector.select(1.0 if self._dripping else 0.05)
            for key, mask in found:
                assert isinstance(key.fileobj, socket.socket)
                self._work(key.fileobj, mask)
            if self._dripping and not found:
                self._drip()

    def _work(self, sock: socket.socket, mask: int) -> None:
        try:
            if mask & selectors.EVENT_WRITE:
                # It may have been sent away before it could speak.
                self.connected_count += 1
                sock.send(self._saying)
                self._selector.modify(sock, selectors.EVENT_READ)
            elif not sock.recv(4096):
                raise ConnectionResetError
        except BlockingIOError:
            return
        except OSError:
            self._selector.unregister(sock)
            sock.close()
            self.cut_count += 1
            if self._returning:
                self._come()

    def _drip(self) -> None:
        """The next byte, to everybody."""
        byte = self._dripping[self._dripped : self._dripped + 1]
        self._dripped += 1
        for key in list(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            try:
                key.fileobj.send(byte)
            except OSError:
                continue  # The next select sees why.


@contextmanager
def flood(where: Where) -> Iterator[None]:
    """Connections that come and go as fast as this thread can."""
    ended = threading.Event()

    def run() -> None:
        while not ended.is_set():
            with suppress(OSError):
                begin_connecting(where).close()

    thread = threading.Thread(target=run, name="flood")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
