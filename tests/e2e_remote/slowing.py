"""A TCP proxy in front of each target: one of them becomes slow in the middle of a column."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Final

MARK_BYTES: Final = 1 << 20
"""Forwarded on one connection: it is in the middle of a column."""
TIMES_SLOWER: Final = 32
"""Than all others together, for as long as these move."""
PAUSE_S: Final = 0.06
"""And before each part: when the others are done, a few MB/s, and never silent for long."""
_READ_BYTES: Final = 256 << 10


class Victim:
    """Which target is slow: the first whose proxy claims it. All proxies share me."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.id = ""
        self.parts = 0
        """That went on slowly."""
        self.others_bytes = 0
        """What went on to all other targets."""

    def claim(self, id: str) -> bool:
        """Whether it is this one."""
        with self._lock:
            self.id = self.id or id
            return self.id == id

    def count(self, size: int) -> None:
        """Another target was given so much."""
        with self._lock:
            self.others_bytes += size

    def hold_back(self, passed: int, closing: threading.Event) -> None:
        """Returns when the next part may go on."""
        self.parts += 1
        seen = -1
        while not closing.wait(PAUSE_S):
            before, seen = seen, self.others_bytes
            if passed - MARK_BYTES <= seen // TIMES_SLOWER or before == seen:
                return


class Proxy:
    """I listen on `host` at the target's own port until closed."""

    def __init__(self, id: str, host: str, port: int, victim: Victim) -> None:
        self._id, self._victim = id, victim
        self._behind = ("127.0.0.1", port)
        self._closing = threading.Event()
        #: Everything that is open, so that it can be cut.
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server((host, port))
        self._start(self._accept)

    def close(self) -> None:
        """Nothing of me is left on return."""
        self._closing.set()
        for one in (self._listener, *self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join()

    # ----------------------------------------------------------------------- inside

    def _start(self, work: object, *arguments: object) -> None:
        assert callable(work)
        thread = threading.Thread(target=work, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._behind)
            except OSError:
                return
            self._sockets += (near, far)
            self._start(self._forward, near, far, True)
            self._start(self._forward, far, near, False)

    def _forward(self, source: socket.socket, sink: socket.socket, to_target: bool) -> None:
        """One direction, until either end is gone."""
        passed, victim = 0, self._victim
        with suppress(OSError):
            while part := source.recv(_READ_BYTES):
                sink.sendall(part)
                passed += len(part)
                if to_target and passed > MARK_BYTES:
                    if victim.claim(self._id):
                        victim.hold_back(passed, self._closing)
                    else:
                        victim.count(len(part))
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
