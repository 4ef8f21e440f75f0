"""One connection of a plain thread, and what its owner hears of it from the loop (link_loop.py).

    CONNECTING --handshake is done: LinkOpened--> OPEN --failure, deadline: LinkClosed--> CLOSED
         +------------------- failure, deadline: LinkClosed ------------------------------->+

Sending: `try_send` queues a frame whole, without copying its bulk, and pushes what the socket
takes. A sender goes round its links and gives each that is `writable_now` its next fragment; when
none is, it polls and hears `LinkDrained` from the first that has room again. So no slow peer ever
holds up another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from ckpt.aio.clock import now_us
from ckpt.aio.lending import LENT_BYTES_MAX
from ckpt.aio.net.bulk import Bulk
from ckpt.aio.net.channel import Channel
from ckpt.aio.net.link_search import LinkSearch
from ckpt.aio.net.send_queue import Sent
from ckpt.base.errors import CkptError
from ckpt.base.ids import Epoch
from ckpt.base.limits import TABLE_BYTES_MAX
from ckpt.base.units import MiB
from ckpt.format.frame import FrameHead
from ckpt.format.messages import Message
from ckpt.format.messages.versions import check_known
from ckpt.protocol.events import Buffer, Session
from ckpt.protocol.handshake import Established
from ckpt.protocol.pulse import Pulse

LINK_QUEUED_BYTES_MAX: Final = 8 * MiB
COORDINATOR_QUEUED_BYTES_MAX: Final = 2 * TABLE_BYTES_MAX + LINK_QUEUED_BYTES_MAX
"""The same of a link to a coordinator, which hears the tables of a rank's saves: these lie in
memory anyway, and are said at once, whatever the socket takes.
"""

Sink = Callable[[FrameHead, Message], memoryview | None]
"""Where a bulk shall land: exactly `head.bulk_bytes` of writable bytes,
or None for memory of its own.
"""


class LinkState(Enum):
    """See the module."""

    CONNECTING = "connecting"
    OPEN = "open"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class LinkOpened:
    """The server proved itself; frames may be sent."""

    link: Link
    peer: Established


@dataclass(frozen=True, slots=True)
class LinkReceived:
    """A whole frame. Release the bulk when done with it."""

    link: Link
    request: int
    message: Message
    bulk: Bulk | None


@dataclass(frozen=True, slots=True)
class LinkDrained:
    """The link can be written again without waiting: `writable_now`."""

    link: Link


@dataclass(frozen=True, slots=True)
class LinkClosed:
    """The connection failed or was lost.

    Its sink is not called and its memory not written any more.
    """

    link: Link
    error: CkptError


LinkEvent = LinkOpened | LinkReceived | LinkDrained | LinkClosed


class Link:
    """One connection; made by `LinkLoop.connect`, used by the thread that polls."""

    def __init__(
        self,
        watch: Callable[[Link], None],
        address: str,
        deadline_us: int | None,
        sink: Sink | None,
        search: LinkSearch[Link] | None = None,
    ) -> None:
        self.address = address
        """Once it is open, the one of several that was found."""
        self.state = LinkState.CONNECTING
        self.peer: Established | None = None
        self.deadline_us = deadline_us
        """Past it `poll` closes the link.

        For connecting at first, then None; the owner sets it for silence.
        """
        self.heard_us = 0
        """When the last byte arrived."""
        self.moved_us = 0
        """When the socket last took bytes in `poll`, or the peer gave lent ones back, or when a
        frame was queued on an idle link."""
        self.pulse: Pulse | None = None
        """Of a coordinator that is one of several, once it is open."""
        self.epoch = Epoch(0)
        self.queued_bytes_max = LINK_QUEUED_BYTES_MAX
        """With so much queued it takes no frame more."""
        self.channel: Channel | None = None
        """The loop's business."""
        self.connected = False
        """The socket stands; the loop's business."""
        self.mask = 0
        """What is watched; the loop's business."""
        self.sink = sink
        """None also when it is closed."""
        self.search = search
        """For whom it tries one address; None for a link that somebody asked for."""
        #: The loop's: what the link has queued is to be sent.
        self._watch = watch

    @property
    def session(self) -> Session:
        """A number that no other connection of this process has or had;
        0 when it never had a socket.
        """
        return Session(0) if self.channel is None else self.channel.session

    @property
    def writable_now(self) -> bool:
        """Whether it is open, nothing is queued, and little enough is lent."""
        channel = self.channel
        if self.state is not LinkState.OPEN or channel is None or channel.queued_bytes:
            return False
        return channel.lent_bytes < LENT_BYTES_MAX

    def try_send(
        self, request: int, message: Message, bulk: Buffer = b"", *, sent: Sent | None = None
    ) -> bool:
        """Queue one frame and push what the socket takes.

        False, and nothing was queued, when the link is not open or `queued_bytes_max` are
        queued. The bulk is not copied: it must stay as it is until `sent` is called (exactly once,
        also on closing), which may be before this returns. Raises Refused for what the peer does
        not know, or no frame takes.
        """
        channel = self.channel
        if channel is not None and channel.queued_bytes >= self.queued_bytes_max:
            return False
        return self._queue(request, message, bulk, sent)

    def say(self, request: int, message: Message) -> bool:
        """As `try_send`, a word of which there are few and none may be lost: however much is
        queued. False when the link is not open.
        """
        return self._queue(request, message, b"", None)

    def _queue(self, request: int, message: Message, bulk: Buffer, sent: Sent | None) -> bool:
        channel = self.channel
        if self.state is not LinkState.OPEN or channel is None:
            return False
        if not channel.queued_bytes and not channel.lent_bytes:
            self.moved_us = now_us()
        if channel.peer is not None:
            check_known(message, channel.peer.role, channel.peer.version)
        channel.send(request, message, bulk, epoch=self.epoch, sent=sent)
        if self.pulse is not None:
            self.pulse.asked(now_us())
        self._watch(self)
        return True
