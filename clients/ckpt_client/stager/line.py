"""The trainer's end of the socket to its stager: nothing is lost where a Ctrl-C strikes.

It strikes between two steps of Python, or ends a call that waits; never between what one call of C
does. So what may not be torn is one such call: a packet is in the socket or in my inbox, and a
message is not sent, or noted as sent.
"""

from __future__ import annotations

import array
import errno
import os
import select
import socket
import threading
from collections import deque
from contextlib import suppress
from typing import Final

from ckpt.aio.descriptors import DescriptorMark
from ckpt.base.errors import Unavailable
from ckpt.base.system_errors import system_error
from ckpt_client.stager import wire

Received = tuple[bytes, list[tuple[int, int, bytes]], int, object]
"""What `recvmsg` returns."""
_ONE_DESCRIPTOR: Final = socket.CMSG_SPACE(array.array("i").itemsize)
_END: Final[Received] = (b"", [], 0, None)


class StagerLine:
    """I am thread safe. Whoever takes a packet out of the inbox is done with it: until then it is
    there to be read again.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(None)
        self._socket = sock
        self._mark = DescriptorMark(sock.fileno())
        self.inbox: deque[Received] = deque()
        """What has come and is not noted yet, oldest first. An empty packet is the other's end."""
        #: Held to receive, so that packets stand in the inbox as they came.
        self._receiving = threading.RLock()

    @property
    def is_ours(self) -> bool:
        """False once other code of this process has closed it."""
        return self._mark.is_ours

    def send(self, message: wire.FromTrainer, sent: list[int]) -> None:
        """Send it; `sent` is empty until then, and never after. Raises OSError."""
        if not self.is_ours:
            raise OSError(errno.EBADF, "closed")
        sent.extend(map(self._socket.send, [wire.encode_packet(message)]))

    def receive(self, timeout_s: float) -> bool:
        """Have the next packet in the inbox; False when none came in time, or when another thread
        was faster.
        """
        try:
            if not self.is_ours:
                raise OSError(errno.EBADF, "closed")
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            return bool(poll.poll(timeout_s * 1000)) and self._take()
        except (OSError, ValueError):
            self.inbox.append(_END)  # Another thread closed the store.
            return True

    def shut(self) -> None:
        """Nothing more comes; wakes a thread that waits."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Idempotent."""
        if self.is_ours:
            self._socket.close()
        else:
            self._socket.detach()
        while self.inbox:
            descriptor = descriptor_of(self.inbox.popleft())
            if descriptor is not None:
                os.close(descriptor)

    def abandon(self) -> None:
        """In a forked child: the socket is the parent's."""
        self._socket.close()

    def _take(self) -> bool:
        try:
            self._receive_now()
        except ConnectionResetError:  # As in `wire.receive_packet`.
            self._receive_now()
        except BlockingIOError:
            return False
        return True

    def _receive_now(self) -> None:
        flags = socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
        with self._receiving:
            self.inbox.extend(
                map(self._socket.recvmsg, [wire.PACKET_BYTES_MAX], [_ONE_DESCRIPTOR], [flags])
            )


def line_pair() -> tuple[socket.socket, socket.socket]:
    """Both ends. Raises Unavailable where the system gives no descriptors."""
    try:
        return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as error:
        raise system_error("cannot speak with a stager", error) from None


def no_descriptor() -> Unavailable:
    """The kernel had none to give for a packet that brought memory."""
    text = "the staging memory could not be taken over: Too many open files"
    return Unavailable(text, hint="raise this process's limit of open files: ulimit -n")


def descriptor_of(received: Received) -> int | None:
    """The one that came with the packet."""
    for _, _, data in received[1]:
        return array.array("i", data)[0]
    return None
