"""A burst of many ranks on many targets, whose coordinators are several over one etcd: the leader
may be killed in its middle, or beside thousands of generations that its successor has to know.

    crowd.start()  ->  leader killed, or whatever befalls it  ->  crowd.finish()
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, cast

import msgspec

from ckpt.base.ids import TargetId
from ckpt.erasure.code import Code
from ckpt.format.frame import PREFIX_BYTES
from ckpt.format.messages import Message
from ckpt.protocol.coordinator.machine import CoordinatorPolicy
from ckpt.protocol.events import Send
from ckpt.protocol.target.core import TargetLimits
from ckptd.catalog.etcd.folding import fold
from tests.sim.coordinator_node import CLUSTER, CoordinatorNode
from tests.sim.crowd import CELL, DAEMONS, LIMITS, CountingNetwork, Crowd, Ticks
from tests.sim.leading.book import CatalogBook
from tests.sim.leading.cluster import EtcdCluster
from tests.sim.leading.past import OldTarget, Past, lay_down
from tests.sim.leading.process import CoordinatorProcess
from tests.sim.leading.roads import Roads
from tests.sim.leading.world import Several, begin_catalog, put
from tests.sim.target_node import TargetNode

COORDINATORS = 3
_META = msgspec.msgpack.Encoder()


@dataclass(slots=True)
class Traffic:
    """Of a coordinator, with everybody: frames by what they say, and all their bytes."""

    frames: Counter[type[Message]] = field(default_factory=Counter)
    frame_bytes: Counter[type[Message]] = field(default_factory=Counter)


class CountingRoads(CountingNetwork, Roads):
    """I take everybody to who leads, and count."""

    traffic: Traffic | None = None
    """Since somebody asked; None: nobody did."""

    def send(self, action: Send) -> None:
        if self.traffic is not None:
            ends = self.ends_of(action.session)
            if ends is not None and any(name.startswith("c") for name in ends):
                self._count(self.traffic, action)
        super().send(action)

    def _count(self, traffic: Traffic, action: Send) -> None:
        kind = type(action.message)
        traffic.frames[kind] += 1
        size = PREFIX_BYTES + len(_META.encode(action.message)) + len(action.bulk)
        traffic.frame_bytes[kind] += size


class LeadingCrowd(Crowd):
    """I build the nodes of one burst, with three coordinators."""

    etcd: EtcdCluster
    book: CatalogBook
    several: Several
    network: CountingRoads
    limits: ClassVar[TargetLimits] = LIMITS
    """Of each target."""

    def __init__(
        self, seed: int, ranks: int, slow: Sequence[int], code: Code, cells_per_column: int,
        steps: tuple[int, ...] = (10,), *, ticks: Ticks = DAEMONS, gap_us: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(
            seed, ranks, slow, code, cells_per_column, steps, ticks=ticks, gap_us=gap_us
        )

    def _made_network(self) -> CountingNetwork:
        return CountingRoads(self.clock)

    def _made_coordinator(self, ticks: Ticks) -> CoordinatorNode:
        self.etcd = EtcdCluster(self.clock)
        self.book = CatalogBook(self.etcd.store, self.oracles)
        self.etcd.on_done = self.book.request_done
        policy = CoordinatorPolicy(
            CLUSTER, self.code, cell_bytes=CELL, level="target", max_per_domain=1
        )
        self.several = Several(self.network, self.book, policy)
        for number in range(COORDINATORS):
            CoordinatorProcess(
                self.clock, self.network, self.oracles, self.etcd, self.book, self.several,
                number, policy, 1.0,
            )  # fmt: skip
        begin_catalog(self.etcd.store, self.clock.now_us)
        return cast(CoordinatorNode, self.several)

    def _made_target(self, number: int, seed: int, ticks: Ticks) -> TargetNode:
        return OldTarget(
            self.clock, self.network, self.coordinator, number, seed, self.limits,
            tick_us=ticks.target_us,
        )  # fmt: skip

    def remember(self, past: Past) -> None:
        """All this was committed before anything starts."""
        image = self.book.image
        entries = lay_down(past, cast(dict[TargetId, OldTarget], self.targets))
        for entry in entries:
            values = fold(image, (entry,)).values
            put(self.etcd.store, {k: v for k, v in values.items() if v is not None}, 0)

    def when(self, condition: Callable[[], bool], limit_us: int = 600_000_000) -> None:
        """Run until it is so."""
        assert self.clock.run(condition, limit_us), "it never comes"

    def kill_leader(self) -> CoordinatorProcess:
        """Who led."""
        leader = self.several.leader
        assert leader is not None
        leader.crash()
        return leader

    def end(self) -> None:
        """No coroutine stays."""
        for one in self.several.all:
            one.is_wanted = False
            one.crash()
