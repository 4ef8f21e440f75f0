"""One payload under way: carries out what PayloadWriter wants over the links, without ever waiting.

The hot loop gives each column that may go its next fragment, most bytes left first, one a round. A
column goes when it has credit, its cell is encoded and its link has nothing queued; else the next
one is asked. A data cell is sent in place from the arena, a parity cell from its ring slot.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ckpt.aio.net.link import Link, LinkState
from ckpt.base.errors import CkptError
from ckpt.base.ids import ColumnId, ColumnNumber, TargetId
from ckpt.base.units import US_PER_S
from ckpt.format.messages import Message
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.saving import Place
from ckpt.format.messages.writing import (
    AbandonColumn,
    AskPace,
    BeginColumn,
    ColumnAccepted,
    ColumnProof,
    ColumnSealed,
    CreditGranted,
    Fragment,
    SealColumn,
)
from ckpt.protocol.events import Ticked
from ckpt.protocol.stager.events import (
    PayloadFailed,
    PayloadSealed,
    PayloadStopped,
    SparesWanted,
    StartPayload,
)
from ckpt.protocol.writer import payload_events as w
from ckpt.protocol.writer.payload_writer import PayloadWriter
from ckpt.transfer.encoder import Cell, PayloadEncoder
from ckpt.transfer.target_links import TargetLinks

SenderResult = PayloadSealed | SparesWanted | PayloadFailed | PayloadStopped

DETACH_US: Final = 50_000
DETACH_SHARE: Final = 10
"""The head pass may wait for parity columns, while others could go,
for 50 ms and a tenth of the time.
"""
SEAL_PART_BYTES: Final = 4 << 20


@dataclass(slots=True)
class LinkStream:
    """One stream on its link."""

    column: ColumnNumber
    place: Place
    link: Link
    opened_us: int
    begun: bool = False
    """BeginColumn was queued."""
    blocked: bool = False
    """The writer knows that the socket is full."""
    moved_us: int = 0
    seal_offset: int | None = None
    """Manifest bytes queued so far; None before the seal."""
    sent_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """How one column went at last."""

    column: ColumnNumber
    target: TargetId
    seconds: float
    """From the stream's beginning to the proof."""


@dataclass(frozen=True, slots=True)
class PayloadStatistics:
    """What one payload cost."""

    bytes_sent: int
    """Fragment bytes on the wire, repeated ones included."""
    bytes_resent: int
    columns: tuple[ColumnStatistics, ...]

    @property
    def column_us(self) -> int | None:
        """What a column took, the median; None when none was sealed."""
        took = sorted(column.seconds for column in self.columns)
        return round(took[len(took) // 2] * US_PER_S) if took else None


class PayloadJob:
    """The send thread alone calls me. I report through `emit` and cut links through `cut`."""

    def __init__(
        self,
        start: StartPayload,
        encoder: PayloadEncoder,
        writer: PayloadWriter,
        links: TargetLinks,
        emit: Callable[[SenderResult], None],
        cut: Callable[[Link], None],
    ) -> None:
        self.payload = start.plan.payload
        self.encoder = encoder
        self.writer = writer
        self.starving_us = 0
        """Time in which columns that could go waited for the head pass."""
        self.stopping_since_us: int | None = None
        self._start = start
        self._links = links
        self._emit = emit
        self._cut = cut
        #: By number: live streams, as the writer has them, and those of sealed columns, whose
        #: targets may be asked whether they live.
        self._streams: dict[int, LinkStream] = {}
        #: How many fragments' bytes each link still reads: the arena is in use while one does.
        self._flying: Counter[Link] = Counter()
        #: Columns that were opened before: the next time they start again.
        self._opened: set[ColumnNumber] = set()
        #: Columns that could have sent in the last `pump`, had the head pass come so far.
        self._hungry: set[int] = set()
        self._looked_us = self._begun_us = _now_us()
        self._manifest_told = False
        self._bytes_sent = self._bytes_resent = 0
        self._columns: dict[ColumnNumber, ColumnStatistics] = {}

    def begin(self) -> None:
        self._perform(self.writer.begin())

    # ----------------------------------------------------------------------- sending

    def pump(self) -> bool:
        """Send what can go now; True when something went."""
        if self.writer.done:
            return False
        self._tell_manifest()
        moved, any_moved = True, False
        while moved:
            moved = False
            self._hungry.clear()
            for column in self.writer.send_order():
                moved = self._send_next(column.number, column.stream) or moved
            any_moved = any_moved or moved
        return any_moved

    def _send_next(self, number: ColumnNumber, stream: int) -> bool:
        stripe = self.writer.next_stripe(number)
        if stripe is None:
            return False
        state = self._streams[stream]
        link = state.link
        if self._is_blocked(stream, state):
            return False
        cell = self.encoder.take(stripe, number)
        if cell is None:
            if stripe >= self.encoder.head:
                self._hungry.add(number)
            return False
        size = cell.view.nbytes
        self._flying[link] += 1
        if not link.try_send(
            stream, Fragment(stripe, cell.crc), cell.view, sent=self._landed(link, cell)
        ):
            self._flying[link] -= 1
            self.encoder.put_back(stripe, number, cell)
            return False
        state.sent_bytes += size
        self._bytes_sent += size
        self._perform(self.writer.handle(w.FragmentSent(_now_us(), stream, stripe)))
        if stream in self._streams:
            self._is_blocked(stream, state)
        return True

    def _landed(self, link: Link, cell: Cell) -> Callable[[], None]:
        def landed() -> None:
            cell.release()
            self._flying[link] -= 1

        return landed

    def _is_blocked(self, stream: int, state: LinkStream) -> bool:
        """Whether its link takes nothing now; the writer hears of it once."""
        if state.link.writable_now:
            return False
        if not state.blocked:
            state.blocked, state.moved_us = True, state.link.moved_us
            self._perform(self.writer.handle(w.SendBlocked(_now_us(), stream)))
        return True

    def _tell_manifest(self) -> None:
        manifest = self.encoder.manifest
        if manifest is not None and not self._manifest_told:
            self._manifest_told = True
            event = w.ManifestReady(_now_us(), manifest.digest, manifest.column_crcs)
            self._perform(self.writer.handle(event))

    def _push_seal(self, stream: int, state: LinkStream) -> None:
        """The manifest in parts, as far as the link takes them now."""
        manifest = self.encoder.manifest
        assert manifest is not None
        total = len(manifest.document)
        while state.seal_offset is not None and state.seal_offset < total:
            part = memoryview(manifest.document)[state.seal_offset :][:SEAL_PART_BYTES]
            if not state.link.try_send(stream, SealColumn(total, state.seal_offset), part):
                return
            state.seal_offset += part.nbytes

    # ----------------------------------------------------------------------- writer's actions

    def _perform(self, actions: list[w.WriterAction]) -> None:
        for action in actions:
            match action:
                case w.OpenStream(column, stream, place):
                    self._open(column, stream, place)
                case w.SealStream(_, stream):
                    state = self._streams[stream]
                    state.seal_offset = 0
                    self._push_seal(stream, state)
                case w.AskTarget(_, stream):
                    self._streams[stream].link.say(stream, AskPace())
                case w.AbandonStream(_, stream, _, reason):
                    self._abandon(stream, reason)
                case w.AskSpares(column, failed, held, stays):
                    wanted = SparesWanted(_now_us(), self.payload, column, failed, held, stays)
                    self._emit(wanted)
                case w.CertifyPayload(proofs, slow):
                    manifest = self.encoder.manifest
                    assert manifest is not None
                    self._emit(
                        PayloadSealed(
                            _now_us(),
                            self.payload,
                            proofs,
                            manifest.digest,
                            *self.writer.slowest(),
                            slow,
                            manifest.document,
                        )
                    )
                case w.FailPayload(code, message, hint):
                    self.encoder.stop()
                    self._emit(PayloadFailed(_now_us(), self.payload, code, message, hint))

    def _open(self, column: ColumnNumber, stream: int, place: Place) -> None:
        if column in self._opened and column >= self.writer.layout.code.k:
            self.encoder.detach(column)
        self._opened.add(column)
        try:
            link = self._links.obtain(place)
        except CkptError as error:
            self._perform(self.writer.handle(w.StreamLost(_now_us(), stream, str(error))))
            return
        state = self._streams[stream] = LinkStream(column, place, link, _now_us())
        if link.state is LinkState.OPEN:
            self._begin_column(stream, state)

    def _begin_column(self, stream: int, state: LinkStream) -> None:
        layout = self.writer.layout
        state.begun = state.link.try_send(
            stream,
            BeginColumn(
                column=ColumnId(self.payload, state.column),
                launch=self._start.launch,
                reservation=state.place.reservation,
                code=str(layout.code),
                payload_bytes=layout.payload_bytes,
                cell_bytes=layout.cell_bytes,
            ),
        )

    def _abandon(self, stream: int, reason: w.AbandonReason) -> None:
        state = self._streams.pop(stream, None)
        if state is None:
            return
        if reason is not w.AbandonReason.STOPPED:
            self._bytes_resent += state.sent_bytes
        if reason is w.AbandonReason.STALLED:
            self._cut(state.link)
        elif state.begun:
            state.link.say(stream, AbandonColumn())

    # ----------------------------------------------------------------------- links' events

    def received(self, stream: int, link: Link, message: Message) -> bool:
        """True when the frame belonged to a live stream of mine."""
        state = self._streams.get(stream)
        if state is None or state.link is not link:
            return False
        now_us = _now_us()
        match message:
            case ColumnAccepted(credit_bytes, pace, answers):
                accepted = w.StreamAccepted(now_us, stream, credit_bytes, pace, answers)
                actions = self.writer.handle(accepted)
            case CreditGranted(credit_bytes, pace):
                actions = self.writer.handle(w.StreamCredited(now_us, stream, credit_bytes, pace))
            case ColumnSealed(proof):
                actions = self._sealed(stream, state, proof, now_us)
            case Failed(code, text):
                actions = self.writer.handle(w.StreamRefused(now_us, stream, code, text))
            case _:
                text = f"unexpected {type(message).__name__}"
                actions = self.writer.handle(w.StreamRefused(now_us, stream, "peer", text))
        self._perform(actions)
        return True

    def _sealed(
        self, stream: int, state: LinkStream, proof: ColumnProof, now_us: int
    ) -> list[w.WriterAction]:
        if self.writer.column_of(stream) is None:
            return []
        actions = self.writer.handle(w.StreamSealed(now_us, stream, proof))
        if self.writer.column_of(stream) is None and self.writer.columns[state.column].proof:
            seconds = (now_us - state.opened_us) / US_PER_S
            done = ColumnStatistics(state.column, state.place.target, seconds)
            self._columns[state.column] = done
        return actions

    def link_opened(self, link: Link) -> None:
        for stream, state in list(self._streams.items()):
            if state.link is link and not state.begun:
                self._begin_column(stream, state)

    def link_drained(self, link: Link) -> None:
        for stream, state in list(self._streams.items()):
            if state.link is link:
                if not state.begun:
                    self._begin_column(stream, state)
                if state.blocked:
                    state.blocked = False
                    self._perform(self.writer.handle(w.SendMoved(_now_us(), stream)))
                if state.seal_offset is not None:
                    self._push_seal(stream, state)

    def link_lost(self, link: Link, reason: str, by_tcp: bool) -> None:
        """`by_tcp`: a Unix socket that nobody answered on; the same place is tried again."""
        for stream, state in list(self._streams.items()):
            if state.link is not link or stream not in self._streams:
                continue
            if by_tcp and not state.begun:
                self._open(state.column, stream, state.place)
            else:
                lost = w.StreamLost(_now_us(), stream, reason)
                self._perform(self.writer.handle(lost))

    # ----------------------------------------------------------------------- orders and time

    def tell(self, event: w.SparesGiven | w.ColumnsReopened) -> None:
        self._perform(self.writer.handle(event))

    def tick(self, now_us: int) -> None:
        """Deadlines; and whether full sockets still move."""
        for stream, state in list(self._streams.items()):
            if state.blocked and state.link.moved_us > state.moved_us:
                state.moved_us = state.link.moved_us
                self._perform(self.writer.handle(w.SendMoved(now_us, stream)))
                self._perform(self.writer.handle(w.SendBlocked(now_us, stream)))
        self._perform(self.writer.handle(Ticked(now_us)))

    def is_starved(self, now_us: int) -> bool:
        """Whether the head pass has waited too long for lagging parity columns while others could
        go.
        """
        since, self._looked_us = self._looked_us, now_us
        starved = self.encoder.starved_since_us
        if starved is None or not self._hungry or self.writer.done:
            return False
        self.starving_us += now_us - max(since, starved)
        if any(self.writer.columns[number].place is None for number in self._laggards()):
            return True
        if self.starving_us < DETACH_US + (now_us - self._begun_us) // DETACH_SHARE:
            return False
        self.starving_us = 0
        return True

    def detach_laggards(self) -> None:
        """Let the head pass go on without the parity columns that hold it up."""
        for number in self._laggards():
            self.encoder.detach(number)

    def _laggards(self) -> list[int]:
        """Parity columns that hold ring slots and cannot go."""
        code = self.writer.layout.code
        parity = range(code.k, code.n)
        return [j for j in parity if j not in self._hungry and self.encoder.holds(j)]

    def fail(self, error: CkptError) -> None:
        """The payload's own bytes cannot be sent."""
        if not self.writer.done:
            self._perform(self.writer.handle(w.WriterStopped(_now_us())))
            self._emit(
                PayloadFailed(_now_us(), self.payload, error.code, error.message, error.hint)
            )
        self.encoder.stop()

    def stop(self) -> None:
        """End all streams; `is_stopped` tells when nothing reads the arena."""
        if self.stopping_since_us is None:
            self.stopping_since_us = _now_us()
            self._perform(self.writer.handle(w.WriterStopped(_now_us())))
            self.encoder.stop()

    @property
    def is_stopped(self) -> bool:
        flying = sum(self._flying.values())
        return self.stopping_since_us is not None and self.encoder.quiet and not flying

    def flying_links(self) -> list[Link]:
        """Links that still read this payload's bytes."""
        return [link for link, count in self._flying.items() if count > 0]

    def statistics(self) -> PayloadStatistics:
        return PayloadStatistics(
            bytes_sent=self._bytes_sent,
            bytes_resent=self._bytes_resent,
            columns=tuple(self._columns[number] for number in sorted(self._columns)),
        )


def _now_us() -> int:
    return time.monotonic_ns() // 1000
