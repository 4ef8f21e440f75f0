"""Connections of plain threads: the stager's sender, readers, blocking calls to the coordinator.

A `LinkLoop` belongs to one thread, which calls `poll`; it watches any number of `Link`s. Nothing
here blocks but `poll`, and no network failure raises: it comes as `LinkClosed`.

A link to the coordinator may be given several addresses, and what of them leads is found while it
is CONNECTING (link_search). What was learned of them stays with the loop.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
from contextlib import suppress
from typing import Final, Self

from ckpt.aio.clock import now_us
from ckpt.aio.lending import Borrower, Lendable, Lendables
from ckpt.aio.net.address import UnixAddress, note_answered, parse_address
from ckpt.aio.net.bulk import Bulk
from ckpt.aio.net.channel import Channel
from ckpt.aio.net.link import (
    COORDINATOR_QUEUED_BYTES_MAX,
    Link,
    LinkClosed,
    LinkDrained,
    LinkEvent,
    LinkOpened,
    LinkReceived,
    LinkState,
    Sink,
)
from ckpt.aio.net.link_search import LinkSearch, SharedRoster
from ckpt.aio.net.reaching import cannot_connect, reach
from ckpt.aio.selecting import selector_with_bell
from ckpt.base.errors import CkptError, Unavailable
from ckpt.base.units import US_PER_S
from ckpt.format.frame import FrameHead
from ckpt.format.messages import Message
from ckpt.format.messages.hello import Ping, Pong, Role
from ckpt.protocol.events import Session
from ckpt.protocol.finding import Roster
from ckpt.protocol.handshake import NONCE_BYTES, Caller, ClientHandshake, Established
from ckpt.protocol.pulse import Beat, Pulse

CONNECT_TIMEOUT_US: Final = 3 * US_PER_S


class LinkLoop:
    """See the module. Everything but `wake` belongs to one thread."""

    def __init__(self) -> None:
        """Raises Unavailable where the system gives no descriptor."""
        self.lendables = Lendables()
        """Bulks that lie here are lent to peers of this host, not sent."""
        self._selector, self._wake_fd = selector_with_bell()
        self._selector.register(self._wake_fd, selectors.EVENT_READ)
        #: Every link that is not closed, by session.
        self._links: dict[Session, Link] = {}
        #: What the next `poll` returns.
        self._events: list[LinkEvent] = []
        #: Links to coordinators that are being found, or whose list is being checked.
        self._searches: dict[Link, LinkSearch[Link]] = {}
        #: What is known of coordinators that were given as this text.
        self._roster: tuple[str, Roster] | None = None
        self.waited_us = 0
        """In all, for sockets: what `poll` was given and did not need is not in it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shut()

    @property
    def links(self) -> tuple[Link, ...]:
        """Every link that has a socket, in the order of `connect`."""
        return tuple(self._links.values())

    def connect(
        self,
        address: str,
        caller: Caller,
        *,
        sink: Sink | None = None,
        unchecked: frozenset[type] = frozenset(),
        takes_files: bool = False,
        connect_timeout_us: int = CONNECT_TIMEOUT_US,
    ) -> Link:
        """Begin to connect; LinkOpened or LinkClosed follows. Coordinators may be several, with
        commas between them. `takes_files`: from a server of this host, that is no coordinator.

        Raises Refused for a malformed address or a short secret. A host name asks the system's
        resolver, which may block: give numbers where that matters.
        """

        def reach(where: str, caller: Caller, search: LinkSearch[Link] | None) -> Link:
            deadline_us = now_us() + connect_timeout_us
            handshake = ClientHandshake(caller, os.urandom(NONCE_BYTES))
            link = Link(self.watch, where, deadline_us, sink, search)
            try:
                self._begin(link, handshake, unchecked, takes_files=takes_files)
            except Unavailable as error:
                if search is not None:
                    self.close(link)
                    raise
                self.lose(link, error)
            return link

        if caller.server_role is not Role.COORDINATOR:
            return reach(address, caller, None)
        caller.check()
        link = Link(self.watch, address, None, sink)
        link.queued_bytes_max = COORDINATOR_QUEUED_BYTES_MAX
        search = LinkSearch(self, link, self._roster_of(address), caller, reach)
        self._searches[link] = search
        search.tick()
        return link

    def _begin(
        self, link: Link, handshake: ClientHandshake, unchecked: frozenset[type], *,
        takes_files: bool,
    ) -> None:  # fmt: skip
        """Raises Refused for a malformed address, Unavailable."""
        where = parse_address(link.address)
        begun_us = now_us()
        sock, code = reach(where)
        self._excuse(link, now_us() - begun_us)
        is_near = isinstance(where, UnixAddress)
        link.channel = Channel(
            sock,
            handshake,
            self,
            unchecked=unchecked,
            borrower=Borrower(takes_memory=False) if takes_files and is_near else None,
            lendables=self.lendables if is_near else None,
            bulks=self._selector.bulks,
        )
        self._links[link.session] = link
        if code not in (0, errno.EINPROGRESS):
            raise cannot_connect(link.address, code)
        self._register(link, selectors.EVENT_WRITE)

    def _excuse(self, link: Link, held_us: int) -> None:
        """The resolver has held this thread for so long: nobody could be heard meanwhile."""
        for each in (link, *self._links.values()):
            if each.deadline_us is not None:
                each.deadline_us += held_us

    def close(self, link: Link) -> None:
        """Close a link; no event follows. Idempotent.

        It lets go of its sink: its memory must not wait for the cyclic collector, which
        a trainer may have switched off.
        """
        link.state, link.sink = LinkState.CLOSED, None
        self._events = [event for event in self._events if event.link is not link]
        search = self._searches.pop(link, None)
        if search is not None:
            search.close()
        channel = link.channel
        if channel is None or self._links.pop(link.session, None) is None:
            return
        if link.mask:
            link.mask = 0
            # A Ctrl-C inside `modify` makes selectors forget the socket.
            with suppress(KeyError):
                self._selector.unregister(channel.sock)
        channel.close()

    def adopt(self, link: Link, found: Link, peer: Established, pulse: Pulse | None) -> None:
        """A search calls this: the socket of the link that tried becomes this one's."""
        channel = found.channel
        assert channel is not None
        link.address, link.channel, link.connected = found.address, channel, True
        link.heard_us, link.mask, link.pulse = now_us(), found.mask, pulse
        found.state, found.channel = LinkState.CLOSED, None
        self._links[channel.session] = link
        self._selector.modify(channel.sock, link.mask, link)
        self._open(link, peer)

    def lose(self, link: Link, error: CkptError) -> None:
        """What arrived before the end stays in the queue of events."""
        events = self._events
        self._events = []
        self.close(link)
        self._events = events
        if link.search is None:
            self._events.append(LinkClosed(link, error))
        else:
            link.search.failed(link, error)

    def shut(self) -> None:
        """Close every link and the loop."""
        for link in (*self._searches, *self.links):
            self.close(link)
        self._selector.close()
        if self._wake_fd >= 0:
            os.close(self._wake_fd)
            self._wake_fd = -1

    def abandon(self) -> None:
        """In a forked child: let go of what is the parent's, without a word to anybody.

        The kernel's list of watched sockets is shared with the parent: nothing is taken off it.
        """
        self._selector.close()
        for link in (*self._searches, *self.links):
            link.state = LinkState.CLOSED
            if link.channel is not None:
                link.channel.sock.close()
        self._searches.clear()
        self._links.clear()
        if self._wake_fd >= 0:
            os.close(self._wake_fd)
            self._wake_fd = -1

    def withdraw(self, lendable: Lendable) -> None:
        """Lend this memory no more, and ask peers to let go of it."""
        self.lendables.remove(lendable)
        for link in self.links:
            if link.channel is not None:
                link.channel.take_back(lendable)
                self.watch(link)

    def wake(self) -> None:
        """Let a `poll` in progress, or the next one, return at once. From any thread."""
        os.eventfd_write(self._wake_fd, 1)

    def fileno(self) -> int:
        """Readable when `poll(0)` would find something: for a thread that waits for
        other things too.
        """
        return self._selector.fileno()

    def poll(self, timeout_us: int | None) -> list[LinkEvent]:
        """What happened; waits for at most `timeout_us` (None: without limit) when nothing has.

        May return an empty list before that, after `wake`.
        """
        self._expire()
        timeout_s = self._patience_s(0 if self._events else timeout_us)
        bulks, begun_us = self._selector.bulks, now_us()
        worked_us = bulks.worked_us
        ready = self._selector.select(timeout_s)
        self.waited_us += now_us() - begun_us - (bulks.worked_us - worked_us)
        for key, mask in ready:
            link = key.data
            if link is None:
                os.eventfd_read(self._wake_fd)
            elif link.state is not LinkState.CLOSED:
                self._work(link, mask)
        self._expire()
        events, self._events = self._events, []
        return events

    def watch(self, link: Link) -> None:
        """Watch the link's socket for what it wants now; links call this."""
        channel = link.channel
        if channel is None or channel.closed:
            return
        mask = selectors.EVENT_READ
        if channel.queued_bytes or not link.connected:
            mask |= selectors.EVENT_WRITE
        if mask != link.mask:
            self._selector.modify(channel.sock, mask, link)
            link.mask = mask

    # ----------------------------------------------------------------------- the channel's owner

    def established(self, channel: Channel, peer: Established) -> None:
        """A channel calls this."""
        link = self._links[channel.session]
        note_answered(link.address, channel.sock)
        if link.search is None:
            self._open(link, peer)
        else:
            link.search.proved(link, peer)

    def arrived(self, channel: Channel, request: int, message: Message, bulk: Bulk | None) -> None:
        """A channel calls this."""
        if self._roster is not None and self._roster[1].heard(message):
            return
        if not isinstance(message, Pong):
            self._events.append(LinkReceived(self._links[channel.session], request, message, bulk))

    def land(self, channel: Channel, head: FrameHead, message: Message) -> memoryview:
        """A channel calls this."""
        sink = self._links[channel.session].sink
        landing = None if sink is None else sink(head, message)
        return memoryview(bytearray(head.bulk_bytes)) if landing is None else landing

    # ----------------------------------------------------------------------- inside

    def _open(self, link: Link, peer: Established) -> None:
        link.state = LinkState.OPEN
        link.peer = peer
        link.deadline_us = None
        self._events.append(LinkOpened(link, peer))

    def _roster_of(self, address: str) -> Roster:
        if self._roster is None or self._roster[0] != address:
            self._roster = address, SharedRoster(address)
        return self._roster[1]

    def _register(self, link: Link, mask: int) -> None:
        assert link.channel is not None
        self._selector.register(link.channel.sock, mask, link)
        link.mask = mask

    def _work(self, link: Link, mask: int) -> None:
        channel = link.channel
        assert channel is not None
        before = channel.sent_bytes
        was_full = link.state is LinkState.OPEN and not link.writable_now
        try:
            if not link.connected:
                code = channel.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if code:
                    raise cannot_connect(link.address, code)
                link.connected = True
                channel.greet()
            elif mask & selectors.EVENT_WRITE:
                channel.flush()
            if mask & selectors.EVENT_READ:
                channel.receive()
                link.heard_us = now_us()
                if link.pulse is not None:
                    link.pulse.heard(link.heard_us)
            if channel.sent_bytes != before:
                link.moved_us = now_us()
                if link.pulse is not None and channel.queued_bytes:
                    # Beyond what its kernel takes: whoever reads on is not silent.
                    link.pulse.heard(link.moved_us)
                    link.pulse.asked(link.moved_us)
            if was_full and link.writable_now:
                self._events.append(LinkDrained(link))
        except CkptError as error:
            self.lose(self._links.get(channel.session, link), error)
        else:
            self.watch(link)

    def _expire(self) -> None:
        now = now_us()
        for link in self.links:
            if link.deadline_us is not None and link.deadline_us <= now:
                what = "does not answer" if link.state is LinkState.OPEN else "cannot be reached"
                self.lose(link, Unavailable(f"{link.address} {what} in time"))
            elif link.pulse is not None:
                self._feel(link, link.pulse.beat(now))
        for link, search in list(self._searches.items()):
            if search.wake_us is not None and search.wake_us <= now:
                search.tick()
            if search.is_over:
                self._searches.pop(link, None)

    def _feel(self, link: Link, beat: Beat) -> None:
        if beat is Beat.PING:
            link.try_send(0, Ping())
        elif beat is Beat.GIVE_UP:
            self.lose(link, Unavailable(f"{link.address} is silent"))

    def _patience_s(self, timeout_us: int | None) -> float | None:
        times = [link.deadline_us for link in self.links]
        times += [link.pulse.due_us for link in self.links if link.pulse is not None]
        times += [search.wake_us for search in self._searches.values()]
        due = [time for time in times if time is not None]
        if due:
            left_us = max(0, min(due) - now_us())
            timeout_us = left_us if timeout_us is None else min(timeout_us, left_us)
        return None if timeout_us is None else timeout_us / US_PER_S
