"""The stager's end of the socket to its trainer: packets in order, never blocking; and an eye on
the trainer's process, which may live on when it has closed its store.
"""

from __future__ import annotations

import os
import select
import socket
from collections import deque
from collections.abc import Iterator
from contextlib import suppress

from ckpt_client.stager import wire


class TrainerChannel:
    """I queue what the socket does not take at once.

    I am `open` until the trainer's process or socket ends. `process_ended` may come later.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._socket.setblocking(False)
        #: Packets not yet sent, each with a descriptor that is ours to close, if any.
        self._queue: deque[tuple[bytes, int | None]] = deque()
        #: A descriptor of the trainer's process, readable when it has ended; -1 without one.
        self._process = -1
        #: The trainer takes no more; what it sent before may still lie in the socket.
        self._deaf = False
        #: The trainer's store is closed: what we send would lie in the socket, and hold memory.
        self._paused = False
        self.open = True

    def watch_process(self, pid: int) -> None:
        """Watch the trainer's process, to tell its death from a store that was closed, also when a
        forked child of it keeps the socket open. Where the kernel has no such descriptors both look
        the same.
        """
        with suppress(OSError):
            self._process = os.pidfd_open(pid)

    @property
    def descriptors(self) -> list[int]:
        """Descriptors that become readable when there is something for `receive` or
        `process_ended`.
        """
        sockets = [self._socket.fileno()] if self.open else []
        return sockets + ([self._process] if self._process >= 0 else [])

    @property
    def wants_write(self) -> bool:
        return self.open and bool(self._queue)

    def ended(self) -> bool:
        """Whether the trainer, or its socket, is gone."""
        return not self.open

    def process_ended(self) -> bool:
        """Whether the trainer's process is gone, and everything that it said was received."""
        if self.open:
            return False
        if self._died():
            self.forget_process()
        return self._process < 0

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: wire.FromStager, descriptor: int | None = None) -> None:
        """Queue a message; the descriptor is duplicated and stays the caller's."""
        if self.open and not self._deaf and not self._paused:
            copy = os.dup(descriptor) if descriptor is not None else None
            self._queue.append((wire.encode_packet(message), copy))
            self.flush()

    def pause(self) -> None:
        """Send nothing after what is queued, until `listen`."""
        self._paused = True

    def listen(self) -> None:
        """Send again: somebody reads."""
        self._paused = False

    def flush(self) -> None:
        """Push as much as the socket takes.

        A trainer that went away does not hear the rest; `receive` finds its last packets and its
        end.
        """
        while self._queue and self.open:
            packet, descriptor = self._queue[0]
            try:
                if descriptor is None:
                    self._socket.send(packet)
                else:
                    socket.send_fds(self._socket, [packet], [descriptor])
            except BlockingIOError:
                return
            except OSError:
                self._deaf = True
                self._drop_queue()
                return
            self._queue.popleft()
            if descriptor is not None:
                os.close(descriptor)

    def receive(self) -> Iterator[wire.FromTrainer]:
        """All packets that are here; closes the channel at the trainer's end. Raises PeerError."""
        # A dead trainer's last packets are still in the socket: read them before believing the
        # death.
        died = self._died()
        while self.open:
            try:
                packet, _ = wire.receive_packet(self._socket)
            except BlockingIOError:
                break
            except OSError:
                packet = b""
            if not packet:
                self.close()
                return
            yield wire.decode_from_trainer(packet)
        if died:
            self.close()

    def close(self) -> None:
        """Idempotent."""
        if not self.open:
            return
        self.open = False
        self._socket.close()
        self._drop_queue()

    def forget_process(self) -> None:
        """Stop watching it. Idempotent."""
        if self._process >= 0:
            os.close(self._process)
            self._process = -1

    def _drop_queue(self) -> None:
        for _, descriptor in self._queue:
            if descriptor is not None:
                os.close(descriptor)
        self._queue.clear()

    def _died(self) -> bool:
        if self._process < 0:
            return False
        poll = select.poll()
        poll.register(self._process, select.POLLIN)
        return bool(poll.poll(0))
