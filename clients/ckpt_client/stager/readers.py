"""Who reads from this stager's memory: the listening sockets of its runs,
and readers that have not asked yet.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Collection
from contextlib import suppress
from typing import Final

from ckpt.base.errors import CkptError
from ckpt.base.ids import Rank, RunName
from ckpt_client.stager.memory import Lookup, MemoryServer, answer_reader

READER_TIMEOUT_US: Final = 2_000_000
READER_COUNT_MAX: Final = 64


class Readers:
    """I let readers in and answer each once.

    I expect `serve` whenever one of my descriptors is readable.
    """

    def __init__(self, rank: Rank, lookup: Lookup) -> None:
        self._rank = rank
        self._lookup = lookup
        self._servers: dict[RunName, MemoryServer] = {}
        #: Descriptor -> a reader that has connected and not asked yet, and when it is cut off (µs).
        self._waiting: dict[int, tuple[socket.socket, int]] = {}

    @property
    def descriptors(self) -> list[int]:
        """The descriptors to wait for."""
        return [*(one.socket.fileno() for one in self._servers.values()), *self._waiting]

    def serve_runs(self, cluster: str, runs: Collection[RunName]) -> None:
        """Listen for readers of these runs, and of no others any more.

        Without a private directory they go to the targets instead.
        """
        for run in [one for one in self._servers if one not in runs]:
            self._servers.pop(run).close()
        for run in runs:
            if run not in self._servers:
                with suppress(OSError, CkptError):
                    self._servers[run] = MemoryServer(cluster, run, self._rank)

    def serve(self, now_us: int) -> None:
        """Let new readers in, answer those who have asked, cut off those who do not."""
        for server in self._servers.values():
            peer = server.accept() if len(self._waiting) < READER_COUNT_MAX else None
            if peer is not None:
                self._waiting[peer.fileno()] = (peer, now_us + READER_TIMEOUT_US)
        for descriptor, (peer, deadline_us) in list(self._waiting.items()):
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            if poll.poll(0):
                del self._waiting[descriptor]
                answer_reader(peer, self._lookup)
            elif now_us > deadline_us:
                del self._waiting[descriptor]
                peer.close()

    def close(self) -> None:
        for server in self._servers.values():
            server.close()
        for peer, _ in self._waiting.values():
            peer.close()
