"""Brings one given column to one given target, cell by cell; for what was read, not staged.

The caller's thread does all of it and waits for credit. A save has PayloadSender, which never waits
for one of its columns.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from ckpt.aio.clock import now_us
from ckpt.aio.net.link import Link, LinkClosed, LinkOpened, LinkReceived
from ckpt.aio.net.link_loop import LinkLoop
from ckpt.base.errors import CkptError, PeerError, Unavailable, error_from_wire
from ckpt.base.ids import ColumnId, LaunchNumber
from ckpt.base.units import US_PER_S
from ckpt.format.layout import Layout
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
_STREAM: Final = 1
"""The only one of its connection."""


class ColumnSender:
    """I open the stream at once, and send when there is credit. Close me: what is not sealed then
    is given up, and its space is the coordinator's to give back.
    """

    def __init__(
        self, column: ColumnId, launch: LaunchNumber, layout: Layout, place: Place,
        options: SenderOptions,
    ) -> None:  # fmt: skip
        """Raises Refused, Unavailable, and what the target says."""
        self.place = place
        self.proof: ColumnProof | None = None
        """Of the sealed column, which may have been there already."""
        self._loop = LinkLoop()
        self._links = TargetLinks(self._loop, options)
        self._credit = 0
        #: Fragments whose memory is still read.
        self._flying = 0
        self._accepted = False
        self._begin = BeginColumn(
            column, launch, place.reservation, str(layout.code), layout.payload_bytes,
            layout.cell_bytes, again=True,
        )  # fmt: skip
        try:
            self._link = self._links.obtain(place)
            self._until(lambda: self._accepted)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def send(self, stripe: int, cell: memoryview, crc: int) -> None:
        """One cell. It must stay as it is until `flush` has returned. Raises as the constructor."""
        if self.proof is not None:
            return
        self._until(lambda: self._credit >= cell.nbytes and self._link.writable_now)
        self._credit -= cell.nbytes
        self._flying += 1
        if not self._link.try_send(_STREAM, Fragment(stripe, crc), cell, sent=self._landed):
            self._flying -= 1
            raise Unavailable(f"target {self.place.target} takes no bytes")

    def flush(self) -> None:
        """Wait until no cell's memory is read any more."""
        self._until(lambda: not self._flying)

    def seal(self, manifest: Buffer) -> ColumnProof:
        """Seal the column, whose cells are all sent; it is durable on return."""
        view = memoryview(manifest)
        for offset in range(0, view.nbytes if self.proof is None else 0, SEAL_PART_BYTES):
            self._until(lambda: self._link.writable_now)
            part = view[offset : offset + SEAL_PART_BYTES]
            self._link.try_send(_STREAM, SealColumn(view.nbytes, offset), part)
        self._until(lambda: self.proof is not None)
        assert self.proof is not None
        return self.proof

    def close(self) -> None:
        """Idempotent."""
        self._loop.shut()

    def _landed(self) -> None:
        self._flying -= 1

    def _until(self, ready: Callable[[], bool]) -> None:
        heard_us = now_us()
        while not ready():
            events = self._loop.poll(SILENCE_US)
            for event in events:
                match event:
                    case LinkOpened(link):
                        link.try_send(_STREAM, self._begin)
                    case LinkReceived(link):
                        self._received(link, event.message)
                    case LinkClosed(link, error):
                        self._lost(link, error)
            if events:
                heard_us = now_us()
            elif now_us() - heard_us >= SILENCE_US:
                raise Unavailable(f"target {self.place.target} does not answer")

    def _received(self, link: Link, message: object) -> None:
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
        """A Unix socket that nobody answers on is no target that is gone."""
        if not self._links.forget(link):
            raise error
        self._link = self._links.obtain(self.place)
