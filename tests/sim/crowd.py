"""A burst of many ranks on few targets, every device serving one write after another: the machines,
streams and messages of the world, without a fault.

Times are those of real devices under real crowds, seconds of queue for each column; sizes are not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ckpt.aio.net.link_loop import CONNECT_TIMEOUT_US
from ckpt.base.ids import RunName, TargetId
from ckpt.base.units import align_up
from ckpt.erasure.code import Code
from ckpt.format.layout import Layout
from ckpt.format.messages import Message
from ckpt.format.messages.hello import Role
from ckpt.format.messages.saving import RequestSpares
from ckpt.format.messages.writing import AbandonColumn, ColumnAccepted, Fragment
from ckpt.protocol.events import Send, Session
from ckpt.protocol.stager.events import SaveCommitted
from ckpt.protocol.target.core import TargetLimits
from ckpt.protocol.writer.column import ColumnState
from ckpt.transfer.payload_sender import TICK_US as SENDER_TICK_US
from tests.sim.clockwork import Clockwork
from tests.sim.coordinator_node import TICK_US, CoordinatorNode
from tests.sim.network import Network, Node
from tests.sim.oracles import Oracles
from tests.sim.payloads import Job, content
from tests.sim.rank_node import TICK_US as RANK_TICK_US
from tests.sim.rank_node import RankNode
from tests.sim.target_node import TargetNode

CELL = 4096
RUN = RunName("crowd")
STEPS_MAX = 20_000_000
LIMITS = TargetLimits(
    stream_credit_bytes=4 * CELL,
    credit_pool_bytes=24 * CELL,
    read_piece_bytes=CELL,
    read_window_bytes=2 * CELL,
    read_pool_bytes=4 * CELL,
    read_crowd_bytes=2 * CELL,
    read_keep_bytes=2 * CELL,
)
"""In cells as the daemon's defaults: four for a stream, two dozen for all."""


class CountingNetwork(Network):
    """I count what stagers ask, what they send, and which sessions end."""

    def __init__(self, clock: Clockwork) -> None:
        super().__init__(clock)
        self.sent: Counter[type[Message]] = Counter()
        self.fragment_bytes = 0
        self.cut_sessions = 0
        """By a process that ended them, or by the death of one."""

    def cut(self, session: Session) -> None:
        self.cut_sessions += 1
        super().cut(session)

    def dial(
        self, client: Node, server: Node, role: Role, server_role: Role,
        failed: Callable[[], None], opened: Callable[[Session], None],
    ) -> None:  # fmt: skip
        """A stopped process does not refuse: its kernel connects, and nobody says a word."""
        if server.stopped:
            self.clock.after(CONNECT_TIMEOUT_US, failed)
        else:
            super().dial(client, server, role, server_role, failed, opened)

    def send(self, action: Send) -> None:
        self.sent[type(action.message)] += 1
        if isinstance(action.message, Fragment):
            self.fragment_bytes += len(action.bulk)
        super().send(action)


@dataclass(frozen=True, slots=True)
class Ticks:
    """How often each process looks at its deadlines."""

    rank_us: int = RANK_TICK_US
    target_us: int = TICK_US
    coordinator_us: int = TICK_US


DAEMONS = Ticks(rank_us=SENDER_TICK_US, target_us=100_000, coordinator_us=50_000)
"""As the real ones do. What lasts for seconds is simulated with fewer."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a burst came to."""

    columns_missing: int
    targets_survivable: int
    fragment_bytes: int
    planned_bytes: int
    """Of all fragments, each sent once."""
    spares_asked: int
    abandoned: int
    """Columns that left a target."""
    seconds: float
    """Of virtual time, from the first open to the durable record."""


class Crowd:
    """I build the nodes of one burst. `slow[i]` is how many times slower target i's device is."""

    def __init__(
        self, seed: int, ranks: int, slow: Sequence[int], code: Code, cells_per_column: int,
        steps: tuple[int, ...] = (10,), *, ticks: Ticks = Ticks(), gap_us: int = 0,
    ) -> None:  # fmt: skip
        self.clock = Clockwork(seed, STEPS_MAX)
        self.network = self._made_network()
        self.targets: dict[TargetId, TargetNode] = {}
        self.code = code
        payload_bytes = cells_per_column * code.k * CELL - 100
        self.job = Job(RUN, "key", "L1", ranks, steps, gap_us, payload_bytes)
        self.oracles = oracles = Oracles(
            content_of=lambda payload: content(
                self.job, payload.checkpoint.step, payload.rank, seed
            ),
            disk_of=lambda id: self.targets[id].disk,
            is_lost=lambda _id: False,
            is_unknown_loss=lambda _id: False,
            is_harmed=lambda _id: False,
        )
        self.coordinator = self._made_coordinator(ticks)
        for number, times in enumerate(slow):
            node = self._made_target(number, seed, ticks)
            node.disk.bytes_total = 1 << 34
            node.disk_slow, node.one_at_a_time = times, True
            self.targets[node.id] = node
        self.ranks = [
            RankNode(
                self.clock, self.network, oracles, self.coordinator,
                self.targets.__getitem__, self.job, rank, seed, tick_us=ticks.rank_us,
            )
            for rank in range(ranks)
        ]  # fmt: skip
        for node in self.ranks:
            node.half_bytes = align_up(payload_bytes, CELL * code.k)

    def _made_network(self) -> CountingNetwork:
        return CountingNetwork(self.clock)

    def _made_coordinator(self, ticks: Ticks) -> CoordinatorNode:
        return CoordinatorNode(
            self.clock, self.network, self.oracles, self.code, tick_us=ticks.coordinator_us
        )

    def _made_target(self, number: int, seed: int, ticks: Ticks) -> TargetNode:
        return TargetNode(
            self.clock, self.network, self.coordinator, number, seed, LIMITS,
            tick_us=ticks.target_us,
        )  # fmt: skip

    def burst(self, harm: Callable[[], None] = lambda: None) -> Outcome:
        """Every rank saves its steps at once; `harm` is done when the first columns stream."""
        self.start()
        harm()
        return self.finish()

    def start(self) -> None:
        """Up to the first columns that stream. Before one is accepted no rank is looked at."""
        self.begin()
        streaming = (ColumnState.STREAMING, ColumnState.SEALING)
        self.clock.run(
            lambda: (
                bool(self.network.sent[ColumnAccepted])
                and any(c.state in streaming for node in self.ranks for c in node.columns)
            ),
            60_000_000,
        )

    def begin(self) -> None:
        """All targets are there, and the first rank comes."""
        self.coordinator.start()
        for target in self.targets.values():
            target.start()
        assert self.clock.run(lambda: self.live_targets == len(self.targets), 60_000_000)
        for node in self.ranks:
            self.clock.after(self.clock.between(0, 3000), node.start)

    @property
    def live_targets(self) -> int:
        """As who leads sees them."""
        return len(self.coordinator.machine.members.live()) if self.coordinator.up else 0

    def finish(self) -> Outcome:
        """Until every rank has heard of its saves."""
        count = len(self.job.steps)
        ended = self.clock.run(
            lambda: all(len(node.outcomes) == count for node in self.ranks), 3_600_000_000
        )
        assert ended, "the burst does not end"
        return self._outcome()

    def _outcome(self) -> Outcome:
        layout = Layout(self.code, self.job.payload_bytes, CELL)
        ends = [end for node in self.ranks for end in node.outcomes.values()]
        failed = [end for end in ends if not isinstance(end, SaveCommitted)]
        assert not failed, failed[0]
        infos = [end.info for end in ends if isinstance(end, SaveCommitted)]
        return Outcome(
            columns_missing=max(info.columns_missing for info in infos),
            targets_survivable=min(info.targets_survivable for info in infos),
            fragment_bytes=self.network.fragment_bytes,
            planned_bytes=len(ends) * self.code.n * align_up(layout.column_bytes, 1),
            spares_asked=self.network.sent[RequestSpares],
            abandoned=self.network.sent[AbandonColumn],
            seconds=max(info.commit_us for info in infos) / 1e6,
        )
