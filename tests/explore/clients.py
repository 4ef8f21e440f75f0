"""Who asks something of the small world: a rank that saves once, a worker that makes columns again,
a person, and a reader that holds a checkpoint.

They say what the real ones say, in the same order; what they send is known without reading it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ckpt.base.ids import (
    CheckpointId,
    ColumnId,
    ColumnNumber,
    LaunchNumber,
    PayloadId,
    Rank,
    Step,
)
from ckpt.erasure.code import Code
from ckpt.format.checksum import crc32
from ckpt.format.messages import Message
from ckpt.format.messages.hello import Failed, Role
from ckpt.format.messages.launches import JoinLaunch, LaunchJoined
from ckpt.format.messages.loading import ReleasePin, Resolve, Resolved
from ckpt.format.messages.repairs import EndRepair, LeaseRepair, RenewRepair, RepairLeased
from ckpt.format.messages.saving import (
    AttemptCommitted,
    Certify,
    OpenPayload,
    PayloadPlanned,
    Place,
    ReplicaPolicy,
)
from ckpt.format.messages.writing import (
    BeginColumn,
    ColumnAccepted,
    ColumnProof,
    ColumnSealed,
    Fragment,
    SealColumn,
)
from ckpt.protocol.events import Send, Session
from tests.explore.columns import JOB, PAYLOAD_BYTES, RUN, STEP, Columns
from tests.explore.parties import COORDINATOR, Party, Surroundings
from tests.sim.payloads import table_of


@dataclass(slots=True)
class _Stream:
    """One column on its way to a target."""

    session: Session
    column: ColumnNumber
    proof: ColumnProof | None = None


@dataclass(slots=True)
class Streams:
    """All columns of a payload on their way: each fragment, then the seal, when it was accepted."""

    party: Party
    world: Surroundings
    payload: PayloadId
    columns: Columns
    open: dict[Session, _Stream] = field(default_factory=dict)

    def begin(
        self, column: ColumnNumber, place: Place, launch: LaunchNumber, *, again: bool
    ) -> bool:
        """False: nobody is there."""
        session = self.world.dial(self.party, place.target, Role.STAGER, Role.TARGET)
        if session is None:
            return False
        layout = self.columns.layout
        begin = BeginColumn(
            ColumnId(self.payload, column), launch, place.reservation, str(layout.code),
            layout.payload_bytes, layout.cell_bytes, again=again,
        )  # fmt: skip
        self.open[session] = _Stream(session, column)
        self.world.send(self.party, Send(session, 1, begin))
        return True

    def received(self, session: Session, message: Message) -> str:
        """Why it will not be; empty while it may."""
        stream = self.open.get(session)
        if stream is None:
            return ""
        match message:
            case ColumnAccepted():
                for stripe, row in enumerate(self.columns.cells):
                    cell = row[stream.column]
                    self.world.send(
                        self.party, Send(session, 1, Fragment(stripe, crc32(cell)), cell)
                    )
                manifest = self.columns.manifest
                self.world.send(self.party, Send(session, 1, SealColumn(len(manifest)), manifest))
            case ColumnSealed(proof):
                stream.proof = proof
            case Failed():
                return message.code
        return ""

    @property
    def are_sealed(self) -> bool:
        return all(stream.proof is not None for stream in self.open.values())

    def close(self) -> None:
        """The connections were made for it."""
        streams, self.open = self.open, {}
        for session in streams:
            self.world.cut(session)


class Saver(Party):
    """One rank of a world of one. It hands its payload over once."""

    def __init__(self, index: int, world: Surroundings, step: int = STEP) -> None:
        super().__init__("saver", index, world)
        self.step = Step(step)
        self.committed: CheckpointId | None = None
        self._launch = LaunchNumber(0)
        self._session: Session | None = None
        self._streams: Streams | None = None
        self._plan: PayloadPlanned | None = None

    def start(self) -> None:
        self.up = True
        self._session = self._world.dial(self, COORDINATOR, Role.STAGER, Role.COORDINATOR)
        self._tell(1, JoinLaunch(RUN, JOB.key, Rank(0), 1, "host/saver"))

    def _tell(self, request: int, message: Message, bulk: bytes = b"") -> None:
        if self._session is not None:
            self._world.send(self, Send(self._session, request, message, bulk))

    def received(self, session: Session, request: int, message: Message, bulk: bytes) -> None:
        match message:
            case LaunchJoined():
                self._launch = message.launch
                self._tell(2, OpenPayload(
                    RUN, self.step, self._launch, Rank(0), 1, "host/saver", PAYLOAD_BYTES,
                    ReplicaPolicy.ABORT, None, 1,
                ))  # fmt: skip
            case PayloadPlanned(places=places) if places and self._streams is None:
                self._begin(message)
            case AttemptCommitted():
                self.committed = message.info.checkpoint
            case _ if self._streams is not None and session in self._streams.open:
                self._streams.received(session, message)
                if isinstance(message, ColumnSealed) and self._streams.are_sealed:
                    self._certify()

    def _begin(self, plan: PayloadPlanned) -> None:
        self._plan = plan
        columns = Columns.of(plan.payload, self._launch, Code.parse(plan.code))
        self._streams = Streams(self, self._world, plan.payload, columns)
        for number, place in enumerate(plan.places):
            self._streams.begin(ColumnNumber(number), place, self._launch, again=False)

    def _certify(self) -> None:
        assert self._plan is not None
        assert self._streams is not None
        proofs = {stream.column: stream.proof for stream in self._streams.open.values()}
        table = table_of(JOB, 0)
        self._tell(3, Certify(
            self._plan.payload, self._launch, 1,
            tuple(proof for _, proof in sorted(proofs.items()) if proof is not None),
            self._plan.code, PAYLOAD_BYTES, self._plan.cell_bytes, self._streams.columns.digest,
            PAYLOAD_BYTES - 64, 64, 5, table_bytes=len(table),
        ), table)  # fmt: skip


class Worker(Party):
    """It makes lost columns again. It reads nothing: whether k columns can be read is asked of the
    world, and what they hold is known.
    """

    def __init__(self, index: int, world: Surroundings) -> None:
        super().__init__("worker", index, world)
        self._session: Session | None = None
        self._payload: PayloadId | None = None
        self._leased: RepairLeased | None = None
        self._pin: int | None = None
        self._streams: Streams | None = None

    def start(self) -> None:
        self.up = True

    def ticked(self) -> None:
        if self._session is None:
            self._session = self._world.dial(self, COORDINATOR, Role.DRAIN, Role.COORDINATOR)
        if self._payload is None:
            self._tell(LeaseRepair("worker"))
        else:
            self._tell(RenewRepair("worker", self._payload))

    def _tell(self, message: Message) -> None:
        if self._session is not None:
            self._world.send(self, Send(self._session, 1, message))

    def closed(self, session: Session) -> None:
        if session == self._session:
            self._session = None
            self._let_go()
        elif self._streams is not None and session in self._streams.open:
            self._end("its target has left")

    def received(self, session: Session, request: int, message: Message, bulk: bytes) -> None:
        match message:
            case RepairLeased(payload=payload) if payload is not None and self._payload is None:
                self._payload, self._leased = payload, message
                only = payload.checkpoint.generation
                self._tell(Resolve(RUN, payload.checkpoint.step, only=only, for_repair=True))
            case Resolved(info=info, pin=pin) if self._payload is not None and self._pin is None:
                self._pin = pin
                self._make(LaunchNumber(info.launch), Code.parse(info.code))
            case Failed(code=code) if session == self._session:
                self._end(code)
            case _ if self._streams is not None and session in self._streams.open:
                why = self._streams.received(session, message)
                if why:
                    self._end(why)
                elif isinstance(message, ColumnSealed) and self._streams.are_sealed:
                    self._end("")

    def _make(self, launch: LaunchNumber, code: Code) -> None:
        assert self._payload is not None
        assert self._leased is not None
        columns = Columns.of(self._payload, launch, code)
        self._streams = Streams(self, self._world, self._payload, columns)
        if not self._world.can_read(self._payload, code):
            self._end("too few columns can be read")
            return
        for lost in self._leased.lost:
            if not self._streams.begin(lost.column, lost.place, launch, again=True):
                self._end("its target does not answer")
                return

    def _end(self, error: str) -> None:
        payload = self._payload
        self._let_go()
        if payload is not None:
            self._tell(EndRepair("worker", payload, error))

    def _let_go(self) -> None:
        streams, self._streams = self._streams, None
        pin, self._pin = self._pin, None
        self._payload, self._leased = None, None
        if pin is not None:
            self._tell(ReleasePin(pin))
        if streams is not None:
            streams.close()


class Person(Party):
    """Asks, and asks again as long as nobody has answered."""

    def __init__(self, index: int, world: Surroundings) -> None:
        super().__init__("person", index, world)
        self.up = True
        self.question: Message | None = None
        self.answer: Message | None = None
        self._session: Session | None = None

    @property
    def waits(self) -> bool:
        """A question is open."""
        return self.question is not None

    def ask(self, question: Message) -> None:
        self.question, self.answer = question, None
        self.ask_again()

    def ask_again(self) -> None:
        """On another session."""
        assert self.question is not None
        self.hear("asks")
        if self._session is not None:
            self._world.cut(self._session)
        self._session = self._world.dial(self, COORDINATOR, Role.ADMIN, Role.COORDINATOR)
        if self._session is not None:
            self._world.send(self, Send(self._session, 1, self.question))

    def closed(self, session: Session) -> None:
        if session == self._session:
            self._session = None

    def received(self, session: Session, request: int, message: Message, bulk: bytes) -> None:
        self.answer, self.question = message, None
