"""A world with several coordinators, and what must be true of all of them together: the same as of
one, since they share a catalog.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, cast

from ckpt.base.ids import CheckpointId, TargetId
from ckpt.format.messages.hello import PROTOCOL_VERSION
from ckpt.protocol.coordinator.catalog import CatalogEntry, RowState
from ckpt.protocol.coordinator.image import CatalogImage
from ckpt.protocol.coordinator.machine import CoordinatorMachine, CoordinatorPolicy
from ckptd.catalog.etcd import keys
from ckptd.catalog.etcd.fence import Meta
from ckptd.catalog.etcd.words import Operation, Put, Transaction, encode
from tests.sim.clockwork import Clockwork
from tests.sim.coordinator_node import CLUSTER, SECRET
from tests.sim.label_nodes import LabelOracles
from tests.sim.leading.book import SPACE, CatalogBook, Sent, takes_the_key
from tests.sim.leading.cluster import EtcdCluster, Request
from tests.sim.leading.process import CoordinatorProcess
from tests.sim.leading.roads import Coordinators, Roads
from tests.sim.leading.store import EtcdStore
from tests.sim.load_nodes import LoadingRank
from tests.sim.operator_node import OperatorNode
from tests.sim.oracles import Oracles, Violation
from tests.sim.reader_node import ReaderNode
from tests.sim.target_node import TargetNode
from tests.sim.two_world import CarefulReader
from tests.sim.windows import Windows
from tests.sim.world import CODES, RUN, TARGET_COUNT, World

STEPS_MAX = 2_000_000
SKEW = 0.05
"""Two clocks run so much apart from true time, each to its own side."""
START_US = 60_000_000
"""Where answers are lost from the beginning on."""


class Several(Coordinators):
    """All coordinators of a world; for who asks about "the coordinator" I am the one in force."""

    def __init__(self, network: Roads, book: CatalogBook, policy: CoordinatorPolicy) -> None:
        super().__init__()
        self.book, self.machine_policy = book, policy
        self.windows = Windows(network)
        self._machine: CoordinatorMachine | None = None

    @property
    def all(self) -> tuple[CoordinatorProcess, ...]:
        return tuple(cast(dict[str, CoordinatorProcess], self.listening).values())

    @property
    def leader(self) -> CoordinatorProcess | None:
        """Who leads, as it thinks: the newest."""
        return max((one for one in self.all if one.leads), key=lambda one: one.term, default=None)

    # ----------------------------------------------------------------------- as one coordinator

    @property
    def up(self) -> bool:
        return self.leader is not None

    @property
    def stopped(self) -> bool:
        return False

    @stopped.setter
    def stopped(self, value: bool) -> None:
        assert not value
        for one in self.all:
            if one.stopped:
                one.loop.go_on()

    @property
    def machine(self) -> CoordinatorMachine:
        """Of who leads now, or led last."""
        if self.leader is not None:
            self._machine = self.leader.machine
        assert self._machine is not None
        return self._machine

    @property
    def durable(self) -> list[CatalogEntry]:
        return self.book.entries

    @property
    def is_writing(self) -> bool:
        leader = self.leader
        return leader is not None and bool(leader.front._shell and leader.front._shell._tickets)

    def start(self) -> None:
        for one in self.all:
            one.start()

    def image(self) -> CatalogImage:
        """As another term would find it."""
        image = deepcopy(self.book.image)
        image.term = self.machine.members.term + 1
        return image

    def machine_from(self, image: CatalogImage) -> CoordinatorMachine:
        return CoordinatorMachine(self.machine_policy, image, secret=SECRET, wall_s=lambda: 0.0)


@dataclass(frozen=True, slots=True)
class Times:
    """How long things last that befall somebody."""

    away_us: tuple[int, int, int]
    """Paused, cut off, without quorum."""
    down_us: tuple[int, int, int]
    """Killed, until it is started again."""

    @property
    def longest_us(self) -> int:
        return max(*self.away_us, *self.down_us)


USUAL = Times((300_000, 2_500_000, 6_000_000), (20_000, 1_000_000, 4_000_000))
"""Shorter than a lease, a little longer, and much."""
LONG = Times((8_000_000, 15_000_000, 20_000_000), (4_000_000, 8_000_000, 15_000_000))
LONG_IN = (13, 7)
"""Of so many seeds one is of these, that with this remainder."""


@dataclass(slots=True)
class LeadingWorld(World):
    """`coordinator` is whoever leads."""

    oracles_type: ClassVar[type[Oracles]] = LabelOracles

    several: Several = field(default=None)  # type: ignore[assignment]
    etcd: EtcdCluster = field(default=None)  # type: ignore[assignment]
    book: CatalogBook = field(default=None)  # type: ignore[assignment]
    loaders: list[LoadingRank] = field(default_factory=list)
    """Of a job that loads."""
    aims: dict[str, int] = field(default_factory=dict)
    """What was aimed at a transaction and struck."""

    times: Times = USUAL
    is_healed: bool = False
    """Nothing befalls anybody any more."""

    @classmethod
    def policy_of(cls, seed: int) -> CoordinatorPolicy:
        """Of all its coordinators."""
        return CoordinatorPolicy(
            CLUSTER, CODES[seed % len(CODES)], cell_bytes=4096, level="target", max_per_domain=1,
            orphan_grace_us=1_000_000,
        )  # fmt: skip

    @classmethod
    def made(cls, seed: int) -> Self:
        clock = Clockwork(seed, steps_max=STEPS_MAX)
        network = Roads(clock)
        targets: dict[TargetId, TargetNode] = {}
        world: list[Self] = []
        oracles = cls.oracles_type(
            content_of=lambda payload: world[0].content_of(payload),
            disk_of=lambda id: targets[id].disk,
            is_lost=lambda id: targets[id].lost,
            is_unknown_loss=lambda _: False,
            is_harmed=lambda id: targets[id].lost or targets[id].wiped,
            targets=targets.keys(),
            domain_of=lambda id: targets[id].domain,
        )
        etcd = EtcdCluster(clock)
        book = CatalogBook(etcd.store, oracles)
        etcd.on_done = book.request_done
        policy = cls.policy_of(seed)
        several = Several(network, book, policy)
        rng = random.Random(f"coordinators of {seed}")
        for number in range(rng.choice([2, 3, 3])):
            rate = 1 + rng.choice([-SKEW, 0, SKEW])
            CoordinatorProcess(
                clock, network, oracles, etcd, book, several, number, policy, rate
            )  # fmt: skip
        for number in range(TARGET_COUNT):
            node = TargetNode(clock, network, several, number, seed)  # type: ignore[arg-type]
            node.windows = several.windows
            targets[node.id] = node
        made = cls(seed, clock, network, oracles, several, targets, [])  # type: ignore[arg-type]
        made.several, made.etcd, made.book = several, etcd, book
        made.times = LONG if seed % LONG_IN[0] == LONG_IN[1] else USUAL
        world.append(made)
        begin_catalog(etcd.store, clock.now_us)
        return made

    def start(self) -> None:
        self.coordinator.start()
        OperatorNode(self.clock, self.network, self.coordinator).look()
        for target in self.targets.values():
            target.start()
        self.clock.run(lambda: self.live_targets == len(self.targets), START_US)
        if self.live_targets != len(self.targets):
            raise Violation(f"only {self.live_targets} targets came up")

    def heal(self) -> None:
        self.is_healed = True
        self.etcd.heal()
        self.etcd.store.is_full = False
        self.etcd.before = self.etcd.after = lambda _request: False
        World.heal(self)

    def restart_coordinator(self) -> None:
        self.coordinator.start()

    def end(self) -> None:
        """Nothing runs any more: no coroutine stays behind."""
        for one in self.several.all:
            one.is_wanted = False
            one.crash()

    # ----------------------------------------------------------------------- who reads

    def _reader(self, number: int) -> ReaderNode:
        node = CarefulReader(
            self.clock, self.network, self.oracles, self.coordinator,
            lambda id: self.targets[id], RUN, number,
        )  # fmt: skip
        node.world = self  # type: ignore[assignment]
        return node

    @property
    def gone(self) -> set[CheckpointId]:
        """Nobody is asked whether these are deleted."""
        return set()

    def is_going(self, id: CheckpointId) -> bool:
        known = self.coordinator.machine.checkpoints.get(id)
        going = known is not None and known.state is RowState.TOMBSTONED
        return (
            going
            or id in self.oracles.deleted
            or (id.run, id.step) in self.several.book.asked_to_go
        )

    def check_answer(self, who: str, newest: CheckpointId | None, gone: Any, got: Any) -> None:
        """Of the newest step: what had been announced before the question, or newer."""
        if newest is not None and got < newest and not self.is_going(newest):
            raise Violation(f"P2: {who} is given {got}, {newest} was announced before it asked")


def begin_catalog(store: EtcdStore, now_us: int) -> None:
    """As an operator has, ahead of the first coordinator."""
    meta = encode(Meta(keys.SCHEMA_VERSION, CLUSTER))
    needs = str(PROTOCOL_VERSION).encode()
    put(store, {keys.META: meta, keys.PROTOCOL: needs}, now_us)


def put(store: EtcdStore, values: Mapping[str, bytes], now_us: int) -> None:
    """Keys of the catalog, by their names."""
    puts = tuple(Operation(Put(SPACE.full(name), value)) for name, value in values.items())
    store.execute("/v3/kv/txn", Transaction((), puts), now_us)


TAKING = "the key"
"""In the place of an entry's kind: the transaction that takes the leader's key."""


def is_of(request: Request, kind: str) -> bool:
    """A transaction that stores an entry of that kind."""
    if kind == TAKING:
        return takes_the_key(request)
    return isinstance(request.mark, Sent) and kind in request.mark.kinds
