"""Brings one given column to one given target, cell by cell; for what was read, not staged.

The caller's thread does all of it and waits for credit. A save has PayloadSender, which never waits
for one of its columns.

    ColumnLinks, as long as the process has work --one connection a target--> ColumnSender, one
                                                                              stream at a time
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final, Self

from ckpt.aio.clock import now_us
from ckpt.aio.net.link import (
    Link,
    LinkClosed,
    LinkEvent,
    LinkOpened,
    LinkReceived,
    LinkState,
)
from ckpt.aio.net.link_loop import LinkLoop
from ckpt.base.errors import CkptError, PeerError, Unavailable, error_from_wire
from ckpt.base.ids import ColumnId, LaunchNumber
from ckpt.base.units import US_PER_S
from ckpt.format.layout import Layout
from ckpt.format.messages import Message
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.saving import Place
from ckpt.format.messages.writing import (
    BeginColumn,
    ColumnAccepted,
    ColumnProof,
    ColumnSealed,
    CreditGranted,
    Fragment,
    SealColumn,
)
from ckpt.protocol.events import Buffer
from ckpt.transfer.payload_job import SEAL_PART_BYTES
from ckpt.transfer.target_links import SenderOptions, TargetLinks

SILENCE_US: Final = 30 * US_PER_S
"""A target that says and takes nothing for so long is given up. One that is busy says so."""
LOOK_US: Final = 200_000
"""How soon who waits for a target notices that nobody needs the column any more."""


class ColumnLinks:
    """I keep connections to the targets that columns go to. One thread uses me, for columns one
    after the other and beside each other, of which a target gets one at a time. Close me.
    """

    def __init__(self, options: SenderOptions) -> None:
        self._loop = LinkLoop()
        self._links = TargetLinks(self._loop, options)
        #: Who sends over each link. One that is not here is idle.
        self._senders: dict[Link, ColumnSender] = {}
        self._numbers = itertools.count(1)

    def close(self) -> None:
        """End all connections. Idempotent."""
        self._loop.shut()

    def next_stream(self) -> int:
        """No other column of mine has had this number."""
        return next(self._numbers)

    def obtain(self, sender: ColumnSender) -> Link:
        """A connection to its place, which may have stood for long. Raises Refused."""
        link = self._links.obtain(sender.place)
        self._senders[link] = sender
        return link

    def leave(self, link: Link, *, cut: bool) -> None:
        """The next column may have it, unless it is cut."""
        self._senders.pop(link, None)
        if cut:
            self._links.cut(link)

    def forget(self, link: Link) -> bool:
        """As TargetLinks; the link is closed."""
        self._senders.pop(link, None)
        return self._links.forget(link)

    def poll(self, timeout_us: int) -> None:
        """Let senders hear what has happened. Raises what they do."""
        for event in self._loop.poll(timeout_us):
            sender = self._senders.get(event.link)
            if sender is not None:
                sender.take(event)
            elif isinstance(event, LinkClosed):
                self._links.forget(event.link)


class ColumnSender:
    """I open the stream at once, and send when there is credit. Close me: what is not sealed then
    is given up with its connection, and its space is the coordinator's to give back.
    """

    def __init__(
        self, column: ColumnId, launch: LaunchNumber, layout: Layout, place: Place,
        links: ColumnLinks, check: Callable[[], None],
    ) -> None:  # fmt: skip
        """`check` raises what ends the work; it is asked whenever I wait. Raises that, Refused,
        Unavailable, and what the target says.
        """
        self.place = place
        self.proof: ColumnProof | None = None
        """Of the sealed column, which may have been there already."""
        self._links = links
        self._check = check
        self._stream = links.next_stream()
        #: The connection, and whether an earlier column had it, so that it may be gone by now.
        self._link: Link | None = None
        self._inherited = False
        self._heard_us = 0
        self._credit = 0
        #: Fragments whose memory is still read.
        self._flying = 0
        self._accepted = False
        self._begin = BeginColumn(
            column, launch, place.reservation, str(layout.code), layout.payload_bytes,
            layout.cell_bytes, again=True,
        )  # fmt: skip
        try:
            self._open()
            self._until(lambda: self._accepted)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, stripe: int, cell: memoryview, crc: int) -> None:
        """One cell. It must stay as it is until `flush` has returned. Raises as the constructor."""
        if self.proof is not None:
            return
        self._until(lambda: self._credit >= cell.nbytes and self._is_writable())
        self._credit -= cell.nbytes
        self._flying += 1
        if not self._try_send(Fragment(stripe, crc), cell, self._landed):
            self._flying -= 1
            raise Unavailable(f"target {self.place.target} takes no bytes")

    def flush(self) -> None:
        """Wait until no cell's memory is read any more."""
        self._until(lambda: not self._flying)

    def seal(self, manifest: Buffer) -> ColumnProof:
        """Seal the column, whose cells are all sent; it is durable on return."""
        view = memoryview(manifest)
        for offset in range(0, view.nbytes if self.proof is None else 0, SEAL_PART_BYTES):
            self._until(self._is_writable)
            part = view[offset : offset + SEAL_PART_BYTES]
            self._try_send(SealColumn(view.nbytes, offset), part)
        self._until(lambda: self.proof is not None)
        assert self.proof is not None
        return self.proof

    def close(self) -> None:
        """Idempotent."""
        if self._link is not None:
            link, self._link = self._link, None
            self._links.leave(link, cut=self.proof is None or self._flying > 0)

    def take(self, event: LinkEvent) -> None:
        """The links call this. Raises as the constructor."""
        self._heard_us = now_us()
        match event:
            case LinkOpened():
                self._try_send(self._begin)
            case LinkReceived(_, request, message) if request == self._stream:
                self._received(message)
            case LinkClosed(link, error):
                self._lost(link, error)

    # ----------------------------------------------------------------------- inside

    def _open(self) -> None:
        self._link = link = self._links.obtain(self)
        self._inherited = link.state is LinkState.OPEN
        if self._inherited:
            self._try_send(self._begin)

    def _is_writable(self) -> bool:
        return self._link is not None and self._link.writable_now

    def _try_send(
        self, message: Message, bulk: Buffer = b"", sent: Callable[[], None] | None = None
    ) -> bool:
        link = self._link
        return link is not None and link.try_send(self._stream, message, bulk, sent=sent)

    def _landed(self) -> None:
        self._flying -= 1

    def _until(self, ready: Callable[[], bool]) -> None:
        self._heard_us = now_us()
        while not ready():
            self._check()
            self._links.poll(LOOK_US)
            if now_us() - self._heard_us >= SILENCE_US and not ready():
                raise Unavailable(f"target {self.place.target} does not answer")

    def _received(self, message: Message) -> None:
        match message:
            case ColumnAccepted():
                self._accepted, self._credit = True, message.credit_bytes
            case CreditGranted():
                self._credit += message.credit_bytes
            case ColumnSealed():
                self._accepted, self.proof = True, message.proof
            case Failed():
                raise error_from_wire(message.code, message.message, message.hint)
            case _:
                text = f"target {self.place.target} answered with a {type(message).__name__}"
                raise PeerError(text)

    def _lost(self, link: Link, error: CkptError) -> None:
        """A Unix socket that nobody answers on is no target that is gone; nor is a connection that
        ended before anything was answered over it that was asked now.
        """
        self._link = None
        again = self._links.forget(link)
        if not again and (self._accepted or not self._inherited):
            raise error
        self._open()
