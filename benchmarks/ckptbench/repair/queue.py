"""What do lost columns cost the coordinator? Its own machine, beside targets that answer at once.

Each payload has its columns on the same n targets, of which as many as the code allows come back
without anything; one target more is empty. What the machine would write is durable at once.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from ckpt.base.ids import (
    BootId,
    CheckpointId,
    ColumnId,
    ColumnNumber,
    Generation,
    LaunchNumber,
    PayloadId,
    Rank,
    RunName,
    Step,
    TargetId,
)
from ckpt.base.units import TiB
from ckpt.erasure.code import Code
from ckpt.format.layout import Layout
from ckpt.format.messages import Message
from ckpt.format.messages.hello import Role
from ckpt.format.messages.repairs import EndRepair, LeaseRepair, RepairLeased
from ckpt.format.messages.saving import CommitInfo
from ckpt.format.messages.targets import (
    HELD_COLUMN,
    Attest,
    Attested,
    HeldGeneration,
    HoldingsListed,
    HoldingsPage,
    ListHoldings,
    RegisterTarget,
    RenewLease,
    Reserve,
    Reserved,
    encode_holdings,
)
from ckpt.format.messages.writing import ColumnProof
from ckpt.protocol.coordinator.catalog import Persist, Persisted
from ckpt.protocol.coordinator.image import CatalogImage
from ckpt.protocol.coordinator.keeping.checkpoints import KeptCheckpoint
from ckpt.protocol.coordinator.keeping.placements import PlacedPayload
from ckpt.protocol.coordinator.machine import CoordinatorMachine, CoordinatorPolicy, Event
from ckpt.protocol.events import Received, Send, Session, SessionOpened, Ticked
from ckpt.protocol.proofs import holdings_mac, make_proof, proof_key
from ckptbench.repair.plan import QueueFigures

CLUSTER: Final = "bench"
SECRET: Final = b"of a machine that nobody can reach"
DIGEST: Final = b"m" * 16
RUN: Final = RunName("run")
RANKS: Final = 1000
"""Of a checkpoint, at most."""
PAYLOAD_BYTES: Final = 1 << 20
CELL_BYTES: Final = 1 << 16
LEASES_MAX: Final = 1000
"""Payloads that are made again."""
SECOND_US: Final = 1_000_000
START_US: Final = 1_000 * SECOND_US


@dataclass(slots=True)
class _Target:
    """One that does as it is asked."""

    id: TargetId
    session: Session
    boot: BootId
    held: bytes = encode_holdings(HoldingsPage((), ()))
    """The page of all that it has."""
    made: dict[ColumnId, ColumnProof] = field(default_factory=dict)
    """What workers have put there."""

    def hold(self, columns: Iterable[ColumnId]) -> None:
        """From the start."""
        generations = []
        for one in columns:
            id = one.payload.checkpoint
            packed = HELD_COLUMN.pack(one.payload.rank, one.column, DIGEST)
            generations.append(
                HeldGeneration(0, id.step, id.generation.term, id.generation.counter, packed, ())
            )
        self.held = encode_holdings(HoldingsPage((RUN,), tuple(generations)))

    @property
    def _key(self) -> bytes:
        return proof_key(SECRET, self.id, self.boot)

    def prove(self, column: ColumnId, code: Code) -> ColumnProof:
        return make_proof(
            self._key, CLUSTER, column=column, target=self.id,
            boot=self.boot, code=str(code), payload_bytes=PAYLOAD_BYTES, column_crc=7,
            manifest_digest=DIGEST,
        )  # fmt: skip

    def answer(self, message: Message) -> tuple[Message, bytes] | None:
        """And what comes with it."""
        match message:
            case ListHoldings(cursor):
                mac = holdings_mac(self._key, CLUSTER, cursor, self.held)
                return HoldingsListed(self.boot, "", mac), self.held
            case Reserve():
                return Reserved(message.reservation), b""
            case Attest(_, columns):
                return Attested(tuple(self.made[one] for one in columns if one in self.made)), b""
        return None


class _Cluster:
    """A coordinator's machine, with targets and workers that answer it, all in this process."""

    def __init__(self, code: Code, payloads: int) -> None:
        self.code = code
        self.now_us = START_US
        self.machine = CoordinatorMachine(
            CoordinatorPolicy(CLUSTER, code, cell_bytes=CELL_BYTES, level="target"),
            CatalogImage(1), secret=SECRET, wall_s=lambda: 1.0,
        )  # fmt: skip
        self._requests = 0
        self._events: deque[Event] = deque()
        #: What sessions that are no target's were sent since that was asked for.
        self._heard: list[Message] = []
        self.targets = {
            Session(number): _Target(TargetId(f"t{number}"), Session(number), BootId(number))
            for number in range(1, code.n + 2)
        }
        self._keep(payloads)
        self._hold(payloads)
        for target in self.targets.values():
            self._register(target)
        self.tick()

    def tick(self, seconds: int = 1) -> None:
        """Leases are renewed meanwhile."""
        for _ in range(seconds):
            self.now_us += SECOND_US
            for target in self.targets.values():
                self.tell(target.session, RenewLease(target.id, target.boot, TiB, 0))
            self.feed(Ticked(self.now_us))

    def open(self, role: Role, session: Session) -> None:
        self.feed(SessionOpened(self.now_us, session, role, "bench"))

    def tell(self, session: Session, message: Message) -> list[Message]:
        """Receive a message. Returns what was sent because of it to others than targets."""
        self._requests += 1
        self._heard = []
        self.feed(Received(self.now_us, session, self._requests, message, b""))
        return self._heard

    def feed(self, event: Event) -> None:
        """Handle an event, and all that follow from it."""
        self._events.append(event)
        while self._events:
            for action in self.machine.handle(self._events.popleft()):
                match action:
                    case Persist():
                        self._events.append(Persisted(self.now_us, action.ticket))
                    case Send():
                        self._take(action)

    def _take(self, send: Send) -> None:
        target = self.targets.get(send.session)
        if target is None:
            self._heard.append(send.message)
            return
        answer = target.answer(send.message)
        if answer is not None:
            received = Received(self.now_us, send.session, send.request, *answer)
            self._events.append(received)

    def _payloads(self, count: int) -> Iterator[PayloadId]:
        for number in range(count):
            step = 1 + number // RANKS
            id = CheckpointId(RUN, Step(step), Generation(1, step))
            yield PayloadId(id, Rank(number % RANKS))

    def _keep(self, count: int) -> None:
        """Committed checkpoints, each on the first n targets."""
        holders = tuple(target.id for target in self.targets.values())[: self.code.n]
        placed = PlacedPayload(holders, DIGEST, Layout(self.code, PAYLOAD_BYTES, CELL_BYTES))
        ranks: dict[CheckpointId, list[Rank]] = {}
        for payload in self._payloads(count):
            ranks.setdefault(payload.checkpoint, []).append(payload.rank)
        for id, of_step in ranks.items():
            info = CommitInfo(
                id, LaunchNumber(1), len(of_step), str(self.code), PAYLOAD_BYTES * len(of_step),
                self.code.m, self.code.m, "device", 1.0, 1, 1, Rank(0), holders[0],
            )  # fmt: skip
            placement = dict.fromkeys(of_step, placed)
            self.machine.checkpoints.add(KeptCheckpoint(info, b"", holders, frozenset(), placement))

    def _hold(self, count: int) -> None:
        """The first m targets, and the last, have nothing."""
        targets = list(self.targets.values())
        for number in range(self.code.m, self.code.n):
            column = ColumnNumber(number)
            targets[number].hold(ColumnId(payload, column) for payload in self._payloads(count))

    def _register(self, target: _Target) -> None:
        self.open(Role.TARGET, target.session)
        self.tell(
            target.session,
            RegisterTarget(
                target.id, target.boot, f"{target.id}:1", "", f"p/r/h/{target.id}",
                f"d/{target.id}", 1, TiB, TiB, 0, 0, (),
            ),
        )  # fmt: skip


def measure_queue(code: Code, columns: int) -> QueueFigures:
    """Of so many lost columns, m of each payload."""
    payloads = max(1, columns // code.m)
    cluster = _Cluster(code, payloads)
    due, wall_s, cpu_s = _look(cluster)
    assert due == payloads * code.m, f"{due} columns are due"
    worker = Session(1_000)
    cluster.open(Role.DRAIN, worker)
    begun = time.process_time()
    made = sum(_make(cluster, worker) for _ in range(min(LEASES_MAX, payloads)))
    spent_s = time.process_time() - begun
    counted = cluster.machine.repairs.counts.columns
    assert counted == made, f"{counted} of {made} columns that were made count"
    return QueueFigures(due, wall_s, cpu_s, made, spent_s)


def _look(cluster: _Cluster) -> tuple[int, float, float]:
    """Columns that are due, and the seconds and CPU seconds that it took to see it."""
    begun, begun_cpu = time.monotonic(), time.process_time()
    waiting = cluster.machine.repairs.waiting()
    spent = time.monotonic() - begun, time.process_time() - begun_cpu
    return sum(len(one.columns) for one in waiting), *spent


def _make(cluster: _Cluster, worker: Session) -> int:
    """One payload, as a worker that is done at once; how many columns count then."""
    (leased,) = cluster.tell(worker, LeaseRepair("bench"))
    assert isinstance(leased, RepairLeased)
    assert leased.payload is not None
    by_id = {target.id: target for target in cluster.targets.values()}
    for one in leased.lost:
        column = ColumnId(leased.payload, one.column)
        target = by_id[one.place.target]
        target.made[column] = target.prove(column, cluster.code)
    cluster.tell(worker, EndRepair("bench", leased.payload))
    return len(leased.lost)
