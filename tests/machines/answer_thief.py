"""A proxy before each daemon that lets a frame's sender do its work, and then loses the frame.

What is asked is executed, the answer never comes: the connection is cut in its place (F15). By the
number of the message, so that each kind is lost a few times, early and later.
"""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from ckpt.format.frame import PREFIX_BYTES
from ckpt.format.messages import MESSAGE_TYPES

HOST: Final = "127.0.0.2"
"""Daemons listen on 127.0.0.1, and say that they are to be found here, on the same port."""
TIMES: Final = 2
"""So often each kind of message is lost."""
APART_MAX: Final = 12
"""So many of its kind pass at most before the next is lost."""
READ_BYTES: Final = 1 << 18
_HEAD: Final = struct.Struct("<4sBBHII")


class AnswerThief:
    """I run a thread for each direction of each connection; nothing of me runs behind `close`."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        #: By message, how many more pass. Under the lock, as `seen` and `stolen`.
        self._until_next: dict[str, int] = {}
        self.seen: Counter[str] = Counter()
        self.stolen: Counter[str] = Counter()
        self._listeners: list[socket.socket] = []
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._closed = False

    def stand_before(self, address: str) -> str:
        """Take whoever comes there to the daemon at this address. Returns where that is."""
        port = int(address.rpartition(":")[2])
        listener = socket.create_server((HOST, port))
        self._listeners.append(listener)
        self._start(self._accept, listener, port)
        return f"{HOST}:{port}"

    def close(self) -> None:
        with self._lock:
            self._closed = True
            doomed = [*self._listeners, *self._open]
        for each in doomed:
            _cut(each)
        for thread in self._threads:
            thread.join()

    # ----------------------------------------------------------------------- threads

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        with self._lock:
            self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket, port: int) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            server = socket.socket()
            with self._lock:
                self._open |= {client, server}
                if self._closed:
                    _cut(client)
                    return
            try:
                server.connect(("127.0.0.1", port))
            except OSError:
                self._end(client, server)
                continue
            self._start(self._pass_on, client, server)
            self._start(self._pass_on, server, client)

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        """Frame by frame, until one is stolen or a side ends."""
        data = bytearray()
        with suppress(OSError):
            while part := source.recv(READ_BYTES):
                data += part
                while (size := _frame_bytes(data)) is not None and len(data) >= size:
                    if self._steals(data[5]):
                        self._end(source, sink)
                        return
                    sink.sendall(data[:size])
                    del data[:size]
        self._end(source, sink)

    def _steals(self, number: int) -> bool:
        name = MESSAGE_TYPES[number].__name__
        with self._lock:
            self.seen[name] += 1
            left = self._until_next.get(name)
            if left is None:
                left = self._random.randint(0, 1)
            if left or self.stolen[name] == TIMES:
                self._until_next[name] = max(0, left - 1)
                return False
            self.stolen[name] += 1
            self._until_next[name] = self._random.randint(1, APART_MAX)
            return True

    def _end(self, *sides: socket.socket) -> None:
        for side in sides:
            _cut(side)
        with self._lock:
            self._open.difference_update(sides)


def _frame_bytes(data: bytearray) -> int | None:
    """Of the frame that begins here; None before enough is known."""
    if len(data) < PREFIX_BYTES:
        return None
    magic, _, _, lent, meta_bytes, bulk_bytes = _HEAD.unpack_from(data)
    assert magic == b"CKPF"
    return PREFIX_BYTES + int(meta_bytes) + (0 if lent else int(bulk_bytes))


def _cut(side: socket.socket) -> None:
    with suppress(OSError):
        side.shutdown(socket.SHUT_RDWR)
    side.close()
