"""A worker that makes lost columns again: it reads with the reader's real machine, and writes to
real targets. It may be killed at any moment, and comes again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from ckpt.base.errors import CkptError
from ckpt.base.ids import CheckpointId, ColumnId, PayloadId, TargetId
from ckpt.format.checksum import crc32
from ckpt.format.layout import Layout
from ckpt.format.messages import Message
from ckpt.format.messages.hello import Failed, Role
from ckpt.format.messages.repairs import (
    EndRepair,
    LeaseRepair,
    LostColumn,
    RenewRepair,
    RepairLeased,
    RepairNoted,
)
from ckpt.format.messages.writing import (
    BeginColumn,
    ColumnAccepted,
    ColumnSealed,
    CreditGranted,
    Fragment,
    SealColumn,
)
from ckpt.protocol.events import Send, Session
from tests.sim.clockwork import Clockwork
from tests.sim.drain_reader import Tally, TierReader
from tests.sim.network import Network, Node
from tests.sim.oracles import Oracles
from tests.sim.payloads import Cells, encode_cells, manifest_of

POLL_US = 300_000
RENEW_US = 1_000_000


@dataclass(slots=True)
class _Stream:
    """One column on its way."""

    lost: LostColumn
    session: Session | None = None
    credit: int = 0
    sent: int = 0
    sealing: bool = False
    done: bool = False


class RepairNode:
    """I lease one payload after the other."""

    def __init__(
        self, clock: Clockwork, network: Network, oracles: Oracles, coordinator: Node,
        target_of: Callable[[TargetId], Node], number: int,
    ) -> None:  # fmt: skip
        self.name = f"repair{number}"
        self.up = True
        self.stopped = False
        self.made = 0
        """Columns that were sealed."""
        self.on_work: Callable[[], None] | None = None
        self._clock, self._network, self._oracles = clock, network, oracles
        self._coordinator, self._target_of = coordinator, target_of
        self._requests = itertools.count(1)
        self._session: Session | None = None
        self._dialing = False
        self._reader: TierReader | None = None
        self._payload: PayloadId | None = None
        self._streams: dict[int, _Stream] = {}
        self._cells: Cells = ()
        self._manifest = b""

    @property
    def has_work(self) -> bool:
        """A payload is in hand."""
        return self._payload is not None

    @property
    def payload(self) -> PayloadId | None:
        """What is in hand."""
        return self._payload

    @property
    def in_hand(self) -> dict[ColumnId, TargetId]:
        """Where each column of the payload is to go."""
        if self._payload is None:
            return {}
        lost = (stream.lost for stream in self._streams.values())
        return {ColumnId(self._payload, one.column): one.place.target for one in lost}

    def start(self) -> None:
        self._poll()
        self._renew()

    def crash(self) -> None:
        """The process dies."""
        if self.up:
            self._let_go()
            self.up, self._clock.changed = False, True
            self._network.died(self)

    # ----------------------------------------------------------------------- the coordinator

    def _poll(self) -> None:
        if not self.up:
            return
        if self.stopped:
            self._clock.after(POLL_US, self._poll)
            return
        if self._session is None and not self._dialing:
            self._dialing = True
            self._network.dial(
                self, self._coordinator, Role.DRAIN, Role.COORDINATOR,
                failed=self._not_dialed, opened=self._dialed,
            )  # fmt: skip
        elif self._payload is None:
            self._tell(LeaseRepair(self.name))
        self._clock.after(POLL_US, self._poll)

    def _renew(self) -> None:
        if self.up:
            if self._payload is not None and not self.stopped:
                self._tell(RenewRepair(self.name, self._payload))
            self._clock.after(RENEW_US, self._renew)

    def _not_dialed(self) -> None:
        self._dialing = False

    def _dialed(self, session: Session) -> None:
        self._dialing, self._session = False, session

    def _tell(self, message: Message) -> None:
        if self._session is not None:
            self._network.send(Send(self._session, next(self._requests), message))

    def session_opened(self, session: Session, role: Role, name: str) -> None:
        """Dials carry their own continuations."""

    def session_closed(self, session: Session) -> None:
        if session == self._session:
            self._session = None
            self._let_go()
        for stream in list(self._streams.values()):
            if stream.session == session and not stream.done:
                self._end("its target has left")
                return

    def received(self, session: Session, request: int, message: Message, bulk: bytes) -> None:
        match message:
            case RepairLeased(payload, lost) if payload is not None and self._payload is None:
                self._begin(payload, lost)
            case RepairNoted() | RepairLeased():
                return
            case Failed() if session == self._session:
                self._let_go()
            case _ if request in self._streams:
                self._streamed(request, self._streams[request], message)

    # ----------------------------------------------------------------------- one payload

    def _begin(self, payload: PayloadId, lost: tuple[LostColumn, ...]) -> None:
        self._payload = payload
        if self.on_work is not None:
            self.on_work()
        self._streams = {next(self._requests): _Stream(one) for one in lost}
        self._reader = TierReader(
            self._clock, self._network, self._oracles, self._coordinator, self._target_of, self,
            payload.checkpoint, Tally(), for_repair=True,
        )  # fmt: skip
        self._reader.start()

    def pinned(self, id: CheckpointId) -> None:
        """It is held, and its index is read."""
        if self._payload is not None and self._reader is not None:
            self._reader.fetch({self._payload.rank}, self._send_all)

    def not_pinned(self, error: CkptError) -> None:
        self._end(error.message)

    def _send_all(self) -> None:
        payload, reader = self._payload, self._reader
        if payload is None or reader is None or payload.checkpoint != reader.id:
            return
        entry, record = reader.entry(payload.rank), reader.record
        layout = Layout(entry.code, entry.payload_bytes, entry.cell_bytes)
        memory = reader.payloads[payload.rank].ljust(layout.padded_bytes, bytes(1))
        self._cells = encode_cells(layout, memory)
        self._manifest, _ = manifest_of(payload, record.info.launch, layout, self._cells)
        for request, stream in self._streams.items():
            begin = BeginColumn(
                ColumnId(payload, stream.lost.column), record.info.launch,
                stream.lost.place.reservation, str(layout.code), layout.payload_bytes,
                layout.cell_bytes, again=True,
            )  # fmt: skip
            self._dial(request, stream, begin)

    def _dial(self, request: int, stream: _Stream, begin: BeginColumn) -> None:
        def opened(session: Session) -> None:
            if self._streams.get(request) is stream:
                stream.session = session
                self._network.send(Send(session, request, begin))

        def failed() -> None:
            if self._streams.get(request) is stream:
                self._end("its target does not answer")

        self._network.dial(
            self, self._target_of(stream.lost.place.target), Role.DRAIN, Role.TARGET,
            failed=failed, opened=opened,
        )  # fmt: skip

    def _streamed(self, request: int, stream: _Stream, message: Message) -> None:
        match message:
            case ColumnAccepted(credit) | CreditGranted(credit):
                stream.credit += credit
                self._push(request, stream)
            case ColumnSealed():
                stream.done = True
                self.made += 1
                if all(one.done for one in self._streams.values()):
                    self._end("")
            case Failed(code):
                self._end(code)

    def _push(self, request: int, stream: _Stream) -> None:
        assert stream.session is not None
        while stream.sent < len(self._cells):
            cell = self._cells[stream.sent][stream.lost.column]
            if stream.credit < len(cell):
                return
            self._network.send(
                Send(stream.session, request, Fragment(stream.sent, crc32(cell)), cell)
            )
            stream.credit -= len(cell)
            stream.sent += 1
        if not stream.sealing:
            stream.sealing = True
            seal = SealColumn(len(self._manifest))
            self._network.send(Send(stream.session, request, seal, self._manifest))

    def _end(self, error: str) -> None:
        payload = self._payload
        self._let_go()
        if payload is not None:
            self._tell(EndRepair(self.name, payload, error))

    def _let_go(self) -> None:
        """Of what was under way; a connection to a target that was made for it ends."""
        reader, self._reader, self._payload = self._reader, None, None
        streams, self._streams = self._streams, {}
        if reader is not None and reader.up:
            reader.close()
        for stream in streams.values():
            if stream.session is not None:
                self._network.cut(stream.session)
