"""How do ranks add up their gradients? Over one socket for each pair, always in rank order.

    scatter_sum   each rank sends every other its slice of the gradient, and adds up its own slice
    gather        each rank sends its slice of the parameters to every other

All transfers of a round run at once on non-blocking sockets: no order of them can deadlock.
The order of the additions is fixed, so that sums have the same bits in every run.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ckpt_client.demo.adam import Floats32

ROUND_TIMEOUT_MS: Final = 120_000
"""A peer that hangs for this long counts as dead."""
SOCKET_BUFFER_BYTES: Final = 1 << 20


class PeerGone(Exception):
    """Another rank ended in the middle of a round."""


def socket_mesh(rank_count: int) -> list[dict[int, socket.socket]]:
    """For each rank its sockets by peer. They belong to the caller."""
    ends: list[dict[int, socket.socket]] = [{} for _ in range(rank_count)]
    for low in range(rank_count):
        for high in range(low + 1, rank_count):
            ends[low][high], ends[high][low] = socket.socketpair()
    return ends


class Mesh:
    """One rank's connections to all others. I own the sockets."""

    def __init__(self, rank: int, sockets: Mapping[int, socket.socket]) -> None:
        self.rank = rank
        self.size = len(sockets) + 1
        self._sockets = dict(sorted(sockets.items()))
        for each in self._sockets.values():
            each.setblocking(False)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)

    def slice_of(self, length: int, rank: int) -> slice:
        """Which part of a vector belongs to a rank. `length` is a multiple of the rank count."""
        assert length % self.size == 0
        part = length // self.size
        return slice(rank * part, (rank + 1) * part)

    def scatter_sum(self, vector: Floats32) -> Floats32:
        """The sum over all ranks of my slice of `vector`, added in rank order."""
        part = len(vector) // self.size
        heard = np.empty((self.size, part), np.float32)
        heard[self.rank] = vector[self.slice_of(len(vector), self.rank)]
        self._exchange(
            {peer: vector[self.slice_of(len(vector), peer)] for peer in self._sockets},
            {peer: heard[peer] for peer in self._sockets},
        )
        total: Floats32 = heard[0].copy()
        for other in heard[1:]:
            total += other
        return total

    def gather(self, vector: Floats32) -> None:
        """Receive the other ranks' slices of `vector`, and send them mine."""
        mine = vector[self.slice_of(len(vector), self.rank)]
        self._exchange(
            dict.fromkeys(self._sockets, mine),
            {peer: vector[self.slice_of(len(vector), peer)] for peer in self._sockets},
        )

    def mean(self, value: float) -> float:
        """The mean over all ranks, added in rank order."""
        values = np.full((self.size, 1), value, np.float64)
        self._exchange(
            dict.fromkeys(self._sockets, values[self.rank]),
            {peer: values[peer] for peer in self._sockets},
        )
        total = 0.0
        for each in values[:, 0]:
            total += float(each)
        return total / self.size

    def close(self) -> None:
        for each in self._sockets.values():
            each.close()

    def _exchange(
        self,
        sends: Mapping[int, NDArray[np.floating]],
        receives: Mapping[int, NDArray[np.floating]],
    ) -> None:
        """Send and receive everything. Raises PeerGone."""
        peers = {self._sockets[peer].fileno(): peer for peer in self._sockets}
        outgoing = {peer: array.data.cast("B") for peer, array in sends.items()}
        incoming = {peer: array.data.cast("B") for peer, array in receives.items()}
        poll = select.poll()
        for number in peers:
            poll.register(number, select.POLLIN | select.POLLOUT)
        while outgoing or incoming:
            ready = poll.poll(ROUND_TIMEOUT_MS)
            if not ready:
                raise PeerGone(f"rank {self.rank} hears nothing from {sorted(incoming)}")
            for number, _ in ready:
                peer = peers[number]
                _send_some(self._sockets[peer], peer, outgoing)
                _receive_some(self._sockets[peer], peer, incoming)
                events = _events(peer, outgoing, incoming)
                if events:
                    poll.modify(number, events)
                else:
                    poll.unregister(number)


def _events(peer: int, outgoing: Iterable[int], incoming: Iterable[int]) -> int:
    return (select.POLLOUT if peer in outgoing else 0) | (select.POLLIN if peer in incoming else 0)


def _send_some(sock: socket.socket, peer: int, outgoing: dict[int, memoryview]) -> None:
    if peer not in outgoing:
        return
    try:
        sent = sock.send(outgoing[peer])
    except BlockingIOError:
        return
    except OSError as error:
        raise PeerGone(f"rank {peer} is gone: {error}") from None
    outgoing[peer] = outgoing[peer][sent:]
    if not outgoing[peer]:
        del outgoing[peer]


def _receive_some(sock: socket.socket, peer: int, incoming: dict[int, memoryview]) -> None:
    if peer not in incoming:
        return
    try:
        received = sock.recv_into(incoming[peer])
    except BlockingIOError:
        return
    except OSError as error:
        raise PeerGone(f"rank {peer} is gone: {error}") from None
    if not received:
        raise PeerGone(f"rank {peer} is gone")
    incoming[peer] = incoming[peer][received:]
    if not incoming[peer]:
        del incoming[peer]
