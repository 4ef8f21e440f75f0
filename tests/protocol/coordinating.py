"""A coordinator between fake targets and ranks, for tables: it persists at once or when told.

Targets answer at once, unless told to refuse or be silent. All that happened is in `log`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from ckpt.base.ids import (
    BootId,
    CheckpointId,
    ColumnId,
    ColumnNumber,
    Home,
    LaunchNumber,
    PayloadId,
    Rank,
    RunName,
    Step,
    TargetId,
)
from ckpt.erasure.code import Code
from ckpt.format.messages import Message
from ckpt.format.messages.asking import Ask
from ckpt.format.messages.hello import PROTOCOL_VERSION, Failed, Role
from ckpt.format.messages.launches import Departure, JoinLaunch, LaunchJoined, TrainerLeft
from ckpt.format.messages.saving import (
    AttemptAborted,
    AttemptCommitted,
    Certify,
    OpenPayload,
    PayloadPlanned,
    Place,
    ReplicaPolicy,
)
from ckpt.format.messages.targets import RegisterTarget
from ckpt.format.messages.writing import ColumnProof
from ckpt.format.table import Meaning, Piece, RankTable, TensorEntry, encode_table
from ckpt.protocol.coordinator.catalog import Persist, Persisted
from ckpt.protocol.coordinator.desk import Action, Worked, WorkLeft
from ckpt.protocol.coordinator.image import CatalogImage
from ckpt.protocol.coordinator.machine import CoordinatorMachine, CoordinatorPolicy, Event
from ckpt.protocol.coordinator.policy import FillMarks
from ckpt.protocol.events import (
    CloseSession,
    Received,
    Report,
    Send,
    Session,
    SessionClosed,
    SessionOpened,
    Ticked,
)
from ckpt.testing.catalog_entries import apply_all
from tests.protocol.coordinated_target import CLUSTER, DIGEST, SECRET, FakeTarget

RUN = RunName("run")
START_US = 1_000_000_000_000
"""A monotonic clock counts from the machine's boot, which is long before the process starts."""
SECOND_US = 1_000_000

Kind = TypeVar("Kind", bound=Message)


class Bench:
    """The machine, `count` live targets t0, t1, ... each a host of its own, and what was said."""

    def __init__(
        self, count: int = 4, code: str = "2+1", *, hosts: int | None = None,
        targets_live: bool = True, max_per_domain: int = 1, keep: int | None = None,
        fill: FillMarks | None = None, protocol: int = PROTOCOL_VERSION,
    ) -> None:  # fmt: skip
        self.protocol = protocol
        self.policy = CoordinatorPolicy(
            CLUSTER, Code.parse(code), max_per_domain=max_per_domain, keep=keep,
            fill=fill or FillMarks(),
        )  # fmt: skip
        self.now_us = START_US
        self.wall_s = 1.5
        """What the coordinator's clock says."""
        self.term = 1
        self.process = b""
        """Of the coordinator, as it says."""
        self.rebuilt_from = self.rebuilt_term = 0
        self.durable: list[object] = []
        self.persist_at_once = True
        self.tickets: list[Persist] = []
        """Not durable yet, oldest first."""
        self.log: list[Action] = []
        self.targets: dict[TargetId, FakeTarget] = {}
        self._sessions = 0
        self._request = 0
        self._events: deque[Event] = deque()
        self.machine = self._new_machine()
        for number in range(count):
            host = number if hosts is None else number % hosts
            id = TargetId(f"t{number}")
            made = FakeTarget(id, f"p/r/h{host}/d{number}", BootId(number + 1))
            self.targets[id] = made
            if targets_live:
                self.start(made)
        self.tick()

    # ----------------------------------------------------------------------- time and life

    def _new_machine(self) -> CoordinatorMachine:
        made = CatalogImage(self.term, protocol=self.protocol)
        image = apply_all(made, self.durable)  # type: ignore[arg-type]
        image.process, image.rebuilt_from = self.process, self.rebuilt_from
        image.rebuilt_term = self.rebuilt_term
        return CoordinatorMachine(self.policy, image, secret=SECRET, wall_s=lambda: self.wall_s)

    def tick(self, seconds: float = 0.0) -> None:
        """Time passes; live targets renew their leases meanwhile."""
        end_us = self.now_us + round(seconds * SECOND_US)
        while True:
            self.now_us = min(end_us, self.now_us + SECOND_US)
            for target in self.targets.values():
                if target.session is not None:
                    self.tell(target.session, target.renewal)
            self.feed(Ticked(self.now_us))
            if self.now_us >= end_us:
                return

    def restart(self, *targets: str) -> None:
        """The coordinator starts again from what is durable; these targets register again."""
        self.term += 1
        self.now_us += SECOND_US
        self.tickets.clear()
        for target in self.targets.values():
            target.session = None
            target.unanswered.clear()
        self.machine = self._new_machine()
        self.tick()
        for id in targets:
            self.start(self.targets[TargetId(id)])

    def session(
        self, role: Role = Role.READER, version: int = PROTOCOL_VERSION, name: str = "test"
    ) -> Session:
        self._sessions += 1
        session = Session(self._sessions)
        self.feed(SessionOpened(self.now_us, session, role, name, version))
        return session

    def close(self, session: Session) -> None:
        self.feed(SessionClosed(self.now_us, session))

    def start(self, target: FakeTarget | str) -> None:
        """The target dials and registers."""
        if isinstance(target, str):
            target = self.targets[TargetId(target)]
        target.session = self.session(Role.TARGET, target.version, target.id)
        self.tell(
            target.session,
            RegisterTarget(
                target.id, target.boot, f"{target.id}:1", "", target.domain, f"d/{target.id}", 1,
                1 << 40, target.bytes_free, 0, target.term_seen,
                tuple(sorted(target.reservations)), catalog=target.catalog,
                incarnation=target.incarnation, place=target.place,
                coordinator=target.coordinator, map=target.map_digest, protocol=target.needs,
            ),
        )  # fmt: skip

    def stop(self, *ids: str) -> None:
        """The targets' sessions end."""
        for id in ids:
            target = self.targets[TargetId(id)]
            assert target.session is not None
            session, target.session = target.session, None
            self.close(session)

    # ----------------------------------------------------------------------- saying

    def tell(self, session: Session, message: Message, bulk: bytes = b"") -> list[Message]:
        """A request; what the session got meanwhile, in order."""
        self._request += 1
        mark = len(self.log)
        self.feed(Received(self.now_us, session, self._request, message, bulk))
        return self.to(session, mark)

    def feed(self, event: Event) -> None:
        """Handle it and all that follows from it."""
        self._events.append(event)
        self._go_on()

    def _go_on(self) -> None:
        while self._events:
            for action in self.machine.handle(self._events.popleft()):
                self.log.append(action)
                self._perform(action)

    def sync(self, count: int | None = None) -> None:
        """The oldest tickets become durable."""
        for _ in self.tickets[:count]:
            self._make_durable(self.tickets.pop(0))
        self._go_on()

    def let_answer(self, id: str) -> None:
        """A silent target answers what it was asked, and speaks again."""
        target = self.targets[TargetId(id)]
        target.silent.clear()
        kept, target.unanswered = target.unanswered, []
        for send in kept:
            self._command(target, send)
        self._go_on()

    def _perform(self, action: Action) -> None:
        match action:
            case Persist() if self.persist_at_once:
                self._make_durable(action)
            case Persist():
                self.tickets.append(action)
            case WorkLeft():
                self._events.append(Worked(self.now_us))
            case Send():
                for target in self.targets.values():
                    if target.session == action.session:
                        self._command(target, action)
            case CloseSession():
                for target in self.targets.values():
                    if target.session == action.session:
                        target.session = None
                self._events.append(SessionClosed(self.now_us, action.session))

    def _make_durable(self, persist: Persist) -> None:
        self.durable.extend(persist.entries)
        self._events.append(Persisted(self.now_us, persist.ticket))

    def _command(self, target: FakeTarget, send: Send) -> None:
        if type(send.message) in target.silent:
            target.unanswered.append(send)
            return
        answer = target.answer(send)
        if answer is not None:
            bulk = target.bulk(send)
            self._events.append(Received(self.now_us, send.session, send.request, answer, bulk))

    # ----------------------------------------------------------------------- reading

    def mark(self) -> int:
        return len(self.log)

    def to(self, session: Session, mark: int = 0) -> list[Message]:
        """What a session was sent since the mark."""
        sends = [a for a in self.log[mark:] if isinstance(a, Send)]
        return [send.message for send in sends if send.session == session]

    def sent(self, kind: type[Kind], mark: int = 0) -> list[Kind]:
        """Messages of a type to anybody."""
        sends = [a.message for a in self.log[mark:] if isinstance(a, Send)]
        return [message for message in sends if isinstance(message, kind)]

    def story(self, mark: int, *kinds: type[object]) -> list[object]:
        """Messages and catalog entries of these types, in the order of the actions."""
        told: list[object] = []
        for action in self.log[mark:]:
            match action:
                case Send() if isinstance(action.message, kinds):
                    told.append(action.message)
                case Persist():
                    told.extend(entry for entry in action.entries if isinstance(entry, kinds))
        return told

    def reports(self, mark: int = 0) -> list[Report]:
        return [a for a in self.log[mark:] if isinstance(a, Report)]

    def asked(self, id: str, kind: type[Kind], mark: int = 0) -> list[Kind]:
        """Commands of a type to one target."""
        session = self.targets[TargetId(id)].session
        assert session is not None
        return [message for message in self.to(session, mark) if isinstance(message, kind)]

    def ask(self, what: str, run: str | None = None, step: int | None = None) -> object:
        """The JSON of a question, decoded."""
        self._request += 1
        session, mark = self.session(), self.mark()
        named = None if run is None else RunName(run)
        question = Ask(what, named, None if step is None else Step(step))
        self.tell(session, question)
        (send,) = [a for a in self.log[mark:] if isinstance(a, Send) and a.session == session]
        if isinstance(send.message, Failed):
            return send.message
        return msgspec.json.decode(send.bulk)

    def states(self) -> dict[str, str]:
        """Every row of the durable catalog."""
        image = apply_all(CatalogImage(self.term), self.durable)  # type: ignore[arg-type]
        return {str(id): row.state.value for id, row in sorted(image.rows.items())}

    # ----------------------------------------------------------------------- whole saves

    def save(
        self, step: int, *, run: str = RUN, world_size: int = 1, key: str | None = "k"
    ) -> CheckpointId:
        """A committed checkpoint."""
        self._sessions += 1  # Each save is of processes of its own.
        ranks = [
            RankFake(self, r, world_size, key=key, run=run, process=f"h/{self._sessions}/{r}")
            for r in range(world_size)
        ]
        for rank in ranks:
            rank.open(step)
        for rank in ranks:
            rank.seal_all()
            rank.certify()
        assert rank.commits(), rank.heard
        for rank in ranks:
            self.close(rank.session)
        return rank.commits()[-1].info.checkpoint


class RankFake:
    """One rank's stager."""

    def __init__(
        self,
        bench: Bench,
        rank: int = 0,
        world_size: int = 1,
        *,
        key: str | None = "k",
        run: str = RUN,
        process: str | None = None,
        payload_bytes: int = 10_000,
        role: Role = Role.STAGER,
    ) -> None:
        self.bench = bench
        self.run = RunName(run)
        self.rank = Rank(rank)
        self.world_size = world_size
        self.key = key
        self.process = process or f"host/{rank}/{key}"
        self.payload_bytes = payload_bytes
        self.launch = LaunchNumber(0)
        self.came_us = 0
        self.last: tuple[int, int] | None = None
        """The step that it handed over last, and when."""
        self.saves = 0
        self.plan: PayloadPlanned | None = None
        self.proofs: dict[ColumnNumber, ColumnProof] = {}
        self.entries: tuple[TensorEntry, ...] = (own_entry(payload_bytes - 100),)
        self.replicas = ReplicaPolicy.ABORT
        self.homes: tuple[Home, ...] = ()
        self.metrics: dict[str, float] = {}
        self.session = bench.session(role)
        self.join()

    @property
    def heard(self) -> list[Message]:
        return self.bench.to(self.session)

    def commits(self) -> list[AttemptCommitted]:
        return [message for message in self.heard if isinstance(message, AttemptCommitted)]

    def aborts(self) -> list[AttemptAborted]:
        return [message for message in self.heard if isinstance(message, AttemptAborted)]

    def join(self) -> list[Message]:
        answer = self.bench.tell(self.session, self.joining())
        if answer and isinstance(answer[-1], LaunchJoined):
            if self.launch != answer[-1].launch:
                self.came_us = self.bench.now_us
            self.launch = answer[-1].launch
        return answer

    def joining(self) -> JoinLaunch:
        """With what a stager remembers of a launch that it has joined before."""
        join = JoinLaunch(self.run, self.key, self.rank, self.world_size, self.process)
        if not self.launch:
            return join
        now_us = self.bench.now_us
        join = replace(join, launch=self.launch, came_ago_us=now_us - self.came_us)
        if self.last is None:
            return join
        step, at_us = self.last
        return replace(join, saved_step=Step(step), saved_ago_us=now_us - at_us)

    def reconnect(self, *, join: bool = True) -> None:
        """A new session of the same process."""
        self.session = self.bench.session(Role.STAGER)
        if join:
            self.join()

    def leave(self, how: Departure = Departure.ENDED) -> None:
        """It says how its trainer left."""
        told = TrainerLeft(self.run, self.launch, self.rank, self.process, how)
        self.bench.tell(self.session, told)

    def question(self, step: int) -> OpenPayload:
        """As for the newest save."""
        return OpenPayload(
            self.run, Step(step), self.launch, self.rank, self.world_size, self.process,
            self.payload_bytes, self.replicas, None, self.saves, homes=self.homes,
            metrics=self.metrics,
        )  # fmt: skip

    def open(self, step: int) -> list[Message]:
        """The next save."""
        self.saves += 1
        self.plan, self.proofs = None, {}
        self.last = step, self.bench.now_us
        return self.ask(self.question(step))

    def ask(self, question: OpenPayload) -> list[Message]:
        answer = self.bench.tell(self.session, question)
        self.take_plan()
        return answer

    def resume(self, step: int, checkpoint: CheckpointId) -> list[Message]:
        return self.bench.tell(self.session, replace(self.question(step), resume=checkpoint))

    def take_plan(self) -> None:
        """The newest plan that was sent."""
        plans = [message for message in self.heard if isinstance(message, PayloadPlanned)]
        if plans and plans[-1].places:
            self.plan = plans[-1]

    @property
    def payload(self) -> PayloadId:
        assert self.plan is not None
        return self.plan.payload

    def places(self) -> dict[ColumnNumber, Place]:
        """By column."""
        assert self.plan is not None
        numbers = [j for j in range(Code.parse(self.plan.code).n) if j not in self.plan.absent]
        return {ColumnNumber(j): p for j, p in zip(numbers, self.plan.places, strict=True)}

    def seal_all(self) -> None:
        for column, place in self.places().items():
            self.seal(column, place)

    def seal(self, column: int, place: Place) -> None:
        """One column ends on its target."""
        assert self.plan is not None
        id = ColumnId(self.payload, ColumnNumber(column))
        target = self.bench.targets[place.target]
        target.seal(id, place, self.plan, self.payload_bytes)
        self.proofs[id.column] = target.columns[id]

    def certificate(self) -> Certify:
        proofs = tuple(proof for _, proof in sorted(self.proofs.items()))
        assert self.plan is not None
        return Certify(
            self.payload, self.launch, self.world_size, proofs, self.plan.code, self.payload_bytes,
            self.plan.cell_bytes, DIGEST, self.payload_bytes - 100, 100, 5 + self.rank,
            slowest_target=TargetId(f"t{self.rank}"), slowest_us=self.rank,
        )  # fmt: skip

    def table(self) -> bytes:
        return encode_table(RankTable(self.rank, self.world_size, self.entries))

    def certify(self, certificate: Certify | None = None) -> list[Message]:
        table = self.table()
        message = replace(certificate or self.certificate(), table_bytes=len(table))
        return self.bench.tell(self.session, message, table)


def own_entry(size: int, name: str = "a") -> TensorEntry:
    return TensorEntry(name, Meaning.OWN, "|u1", (size,), (0,), (size,), (Piece(0, 0, size),))


def shard_entry(
    offset: int, length: int, total: int, fingerprint: bytes = b"", name: str = "m"
) -> TensorEntry:
    """Rows [offset, offset + length) of a vector of `total` bytes, at the payload's begin."""
    pieces = (Piece(0, 0, length),)
    return TensorEntry(
        name, Meaning.SHARD, "|u1", (total,), (offset,), (length,), pieces, fingerprint
    )


def replica_entry(size: int, stored: Sequence[Piece], fingerprint: bytes) -> TensorEntry:
    return TensorEntry(
        "w", Meaning.REPLICATED, "|u1", (size,), (0,), (size,), tuple(stored), fingerprint
    )


def team(bench: Bench, world_size: int, *, key: str | None = "k") -> list[RankFake]:
    return [RankFake(bench, rank, world_size, key=key) for rank in range(world_size)]


def every(ranks: Sequence[RankFake], act: Callable[[RankFake], object]) -> None:
    for rank in ranks:
        act(rank)


def ready(bench: Bench, world_size: int = 1) -> list[RankFake]:
    """All ranks of step 1 have sealed all columns."""
    ranks = team(bench, world_size)
    every(ranks, lambda rank: rank.open(1))
    every(ranks, lambda rank: rank.seal_all())
    return ranks
