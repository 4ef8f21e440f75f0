"""One target of a large cluster is lost: how long until all of it is there again, beside the ideal?

The coordinator's own machine in virtual time, its real placement, hundreds of workers that go
exactly as fast as they are told. Ideal: each other target of the lost one's placement group gives
its cap from the first moment to the last, k columns are read for each that is written, and nothing
else takes time.

    .venv/bin/python -m tests.sim.wide_rebuild     what docs/performance.md shows
"""

from __future__ import annotations

import heapq
import itertools
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
from ckpt.base.units import MiB
from ckpt.erasure.code import Code
from ckpt.format.checksum import xxh3_128
from ckpt.format.documents.record import CommitRecord, encode_record
from ckpt.format.layout import Layout
from ckpt.format.messages import Message
from ckpt.format.messages.hello import Role
from ckpt.format.messages.reading import DocumentKind
from ckpt.format.messages.repairs import (
    EndRepair,
    LeaseRepair,
    RenewRepair,
    RepairLeased,
    RepairLimits,
    RepairNoted,
    RepairPace,
)
from ckpt.format.messages.saving import CommitInfo
from ckpt.format.messages.targets import RegisterTarget
from ckpt.plan.placement import place_in
from ckpt.plan.seating import Seating, group_numbers
from ckpt.protocol.coordinator.catalog import Persist, Persisted
from ckpt.protocol.coordinator.cluster.candidates import candidates_of
from ckpt.protocol.coordinator.cluster.holdings import index_summaries
from ckpt.protocol.coordinator.desk import Worked, WorkLeft
from ckpt.protocol.coordinator.image import CatalogImage
from ckpt.protocol.coordinator.keeping.checkpoints import KeptCheckpoint
from ckpt.protocol.coordinator.keeping.placements import PlacedPayload
from ckpt.protocol.coordinator.machine import CoordinatorMachine, CoordinatorPolicy, Event
from ckpt.protocol.events import Received, Send, Session, SessionClosed, SessionOpened, Ticked
from tests.protocol.coordinated_target import CLUSTER, DIGEST, SECRET, FakeTarget

RUN: Final = RunName("run")
CODE: Final = Code(4, 2)
PAYLOAD_BYTES: Final = 64 * MiB
CELL_BYTES: Final = MiB
TARGETS_OF_HOST: Final = 8
RANKS: Final = 8
"""Of a checkpoint."""
INDEX: Final = b"an index that nobody reads"
CAP_BYTES: Final = 100 * MiB
AFTER_US: Final = 2_000_000
TICK_US: Final = 50_000
RENEW_US: Final = 1_000_000
POLL_US: Final = 1_000_000
"""As `ckptd repair` asks while there is nothing to do."""
SECOND_US: Final = 1_000_000
START_US: Final = 1_000 * SECOND_US
END_US: Final = 600 * SECOND_US


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What came of it."""

    columns: int
    """That were lost, and each made again once."""
    seconds: float
    """Of virtual time, from the first lease to the last column that counts."""
    ideal_s: float
    group: int
    """Targets in the lost one's placement group, without it."""
    strangers: int
    """Columns that went to a target of another group."""
    evenness: float
    """The most columns that one target of the group got, over the mean."""

    @property
    def ratio(self) -> float:
        return self.seconds / self.ideal_s


class Hand:
    """One hand of a worker: it reads as fast as it is told, and what it makes is there at once."""

    def __init__(self, world: World, name: str) -> None:
        self._world, self._name = world, name
        self._session = world.open(Role.DRAIN, name)
        self._leased = RepairLeased()
        self._read, self._seen_us, self._pace = 0.0, 0, RepairPace()

    def work(self) -> None:
        """Now, and again when there is something to say."""
        world = self._world
        if self._leased.payload is None:
            self._lease()
            return
        self._go_on()
        if self._read >= PAYLOAD_BYTES:
            self._end(self._leased.payload)
            self._lease()
            return
        (noted,) = world.tell(
            self._session, RenewRepair(self._name, self._leased.payload, int(self._read))
        )
        assert isinstance(noted, RepairNoted)
        self._pace = noted.pace
        self._again()

    def _lease(self) -> None:
        (leased,) = self._world.tell(self._session, LeaseRepair(self._name))
        assert isinstance(leased, RepairLeased)
        self._leased, self._read, self._seen_us = leased, 0.0, self._world.now_us
        if leased.payload is None:
            self._world.after(POLL_US, self.work)
            return
        self._world.leased()
        self._pace = leased.pace
        self._again()

    def _go_on(self) -> None:
        now_us = self._world.now_us
        self._read += self._pace.bytes_per_s * (now_us - self._seen_us) / SECOND_US
        self._seen_us = now_us

    def _again(self) -> None:
        left_us = (PAYLOAD_BYTES - self._read) / self._pace.bytes_per_s * SECOND_US
        self._world.after(min(self._pace.renew_us, int(left_us) + 1), self.work)

    def _end(self, payload: PayloadId) -> None:
        for one in self._leased.lost:
            self._world.made(ColumnId(payload, one.column), one.place.target)
        (noted,) = self._world.tell(self._session, EndRepair(self._name, payload))
        assert noted == RepairNoted(len(self._leased.lost))


class World:
    """A coordinator, its targets, and time."""

    def __init__(self, targets: int) -> None:
        self.now_us = START_US
        policy = CoordinatorPolicy(
            CLUSTER, CODE, cell_bytes=CELL_BYTES, rebuild_after_us=AFTER_US,
            repair=RepairLimits(cap_bytes=CAP_BYTES),
        )  # fmt: skip
        self.machine = CoordinatorMachine(
            policy, CatalogImage(1), secret=SECRET, wall_s=lambda: self.now_us / SECOND_US
        )
        self._sessions, self._requests = itertools.count(1), itertools.count(1)
        self._turns = itertools.count()
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._events: deque[Event] = deque()
        self._heard: list[Message] = []
        self._by_session: dict[Session, FakeTarget] = {}
        self.targets: dict[TargetId, FakeTarget] = {}
        for number in range(targets):
            host = f"p/r{number // TARGETS_OF_HOST // 8}/h{number // TARGETS_OF_HOST}"
            id = TargetId(f"t{number:04}")
            self.targets[id] = FakeTarget(id, f"{host}/d{number}", BootId(number + 1))
        self.began_us = self.ended_us = 0
        """The first lease; the last column."""

    def begin(self, columns: int) -> TargetId:
        """All are there; one of them, which is returned, holds so many columns."""
        for target in self.targets.values():
            self._register(target)
        self.feed(Ticked(self.now_us))
        victim = sorted(self.targets)[len(self.targets) // 2]
        self._keep(list(self._placed(victim, columns)))
        for target in self.targets.values():
            target.reboot()
            self._register(target)
        for after_us, again in ((TICK_US, self._tick), (RENEW_US, self._renew)):
            self.after(after_us, again)
        return victim

    def _placed(self, victim: TargetId, columns: int) -> Iterator[tuple[TargetId | None, ...]]:
        """As a burst would be, payload by payload; those that have a column there."""
        known = candidates_of(self.machine.members)
        seating = Seating(CODE, known)
        numbers = group_numbers(CODE, known)
        groups, own = max(numbers.values()) + 1, numbers[victim]
        for turn in itertools.count(own, groups):
            placed = place_in(seating, PAYLOAD_BYTES // CODE.k, "host", 1, 0, turn).columns
            if victim in placed:
                yield placed
                columns -= 1
                if not columns:
                    return

    def _keep(self, payloads: list[tuple[TargetId | None, ...]]) -> None:
        layout = Layout(CODE, PAYLOAD_BYTES, CELL_BYTES)
        first = tuple(sorted(self.targets))[: CODE.m + 1]
        for number, start in enumerate(range(0, len(payloads), RANKS), start=1):
            some = payloads[start : start + RANKS]
            id = CheckpointId(RUN, Step(number), Generation(1, number))
            info = CommitInfo(
                id, LaunchNumber(1), len(some), str(CODE), PAYLOAD_BYTES * len(some),
                CODE.m, CODE.m, "host", float(number), 1, 1, Rank(0), first[0],
            )  # fmt: skip
            record = CommitRecord(CLUSTER, info, xxh3_128(INDEX), len(INDEX), first, 1)
            encoded = encode_record(record)
            for target in first:
                documents = self.targets[target].documents
                documents[DocumentKind.INDEX, id] = INDEX
                documents[DocumentKind.RECORD, id] = encoded
            placement = {
                Rank(rank): PlacedPayload(columns, DIGEST, layout)
                for rank, columns in enumerate(some)
            }
            for rank, placed in placement.items():
                for j, holder in enumerate(placed.columns):
                    assert holder is not None
                    self.made(ColumnId(PayloadId(id, rank), ColumnNumber(j)), holder)
            self.machine.checkpoints.add(
                KeptCheckpoint(info, encoded, first, index_summaries(record), placement)
            )

    def made(self, column: ColumnId, at: TargetId) -> None:
        """It lies there."""
        target = self.targets[at]
        target.reservations.clear()
        target.columns[column] = target.proof(column, str(CODE), PAYLOAD_BYTES)
        self.ended_us = self.now_us

    def leased(self) -> None:
        """A payload is in hand."""
        self.began_us = self.began_us or self.now_us

    # ----------------------------------------------------------------------- time

    def after(self, us: int, then: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now_us + us, next(self._turns), then))

    def run(self, until: Callable[[], bool]) -> None:
        end_us = self.now_us + END_US
        while not until():
            self.now_us, _, then = heapq.heappop(self._due)
            assert self.now_us < end_us, "it does not end"
            then()

    def _tick(self) -> None:
        self.feed(Ticked(self.now_us))
        self.after(TICK_US, self._tick)

    def _renew(self) -> None:
        for session, target in list(self._by_session.items()):
            self.tell(session, target.renewal)
        self.after(RENEW_US, self._renew)

    # ----------------------------------------------------------------------- messages

    def _register(self, target: FakeTarget) -> None:
        target.session = self.open(Role.TARGET, target.id)
        self._by_session[target.session] = target
        self.tell(
            target.session,
            RegisterTarget(
                target.id, target.boot, f"{target.id}:1", "", target.domain, f"d/{target.id}", 1,
                1 << 40, target.bytes_free, 0, target.term_seen,
            ),
        )  # fmt: skip

    def lose(self, id: TargetId) -> None:
        """For good."""
        target = self.targets[id]
        assert target.session is not None
        del self._by_session[target.session]
        self.feed(SessionClosed(self.now_us, target.session))

    def open(self, role: Role, name: str) -> Session:
        session = Session(next(self._sessions))
        self.feed(SessionOpened(self.now_us, session, role, name))
        return session

    def tell(self, session: Session, message: Message) -> list[Message]:
        """What is said to others than targets because of it."""
        self._heard = []
        self.feed(Received(self.now_us, session, next(self._requests), message, b""))
        return self._heard

    def feed(self, event: Event) -> None:
        self._events.append(event)
        while self._events:
            for action in self.machine.handle(self._events.popleft()):
                match action:
                    case Persist():
                        self._events.append(Persisted(self.now_us, action.ticket))
                    case WorkLeft():
                        self._events.append(Worked(self.now_us))
                    case Send():
                        self._said(action)

    def _said(self, send: Send) -> None:
        target = self._by_session.get(send.session)
        if target is None:
            self._heard.append(send.message)
            return
        answer = target.answer(send)
        if answer is not None:
            bulk = target.bulk(send)
            self._events.append(Received(self.now_us, send.session, send.request, answer, bulk))


def rebuilt(targets: int, columns: int, hands: int) -> Rebuilt:
    """One target is lost, with so many columns."""
    world = World(targets)
    victim = world.begin(columns)
    numbers = group_numbers(CODE, candidates_of(world.machine.members))
    group = {id for id, number in numbers.items() if number == numbers[victim]} - {victim}
    before = {id: set(target.columns) for id, target in world.targets.items()}
    world.lose(victim)
    for number in range(hands):
        world.after(number * SECOND_US // hands, Hand(world, f"w{number}").work)
    counts = world.machine.repairs.counts
    world.run(lambda: counts.columns >= columns)
    got = Counter(
        {id: len(set(target.columns) - before[id]) for id, target in world.targets.items()}
    )
    assert got.total() == counts.columns == columns
    assert not counts.problems
    lost = columns * PAYLOAD_BYTES // CODE.k
    ideal_s = lost * (CODE.k + 1) / (len(group) * CAP_BYTES)
    at_home = [got[id] for id in group]
    return Rebuilt(
        columns, (world.ended_us - world.began_us) / SECOND_US, ideal_s, len(group),
        columns - sum(at_home), max(at_home) * len(at_home) / max(1, sum(at_home)),
    )  # fmt: skip


if __name__ == "__main__":
    for columns, hands in ((200, 64), (200, 256), (1000, 256)):
        found = rebuilt(1024, columns, hands)
        sys.stdout.write(f"{hands} hands: {found}, {found.ratio:.2f} times the ideal\n")
