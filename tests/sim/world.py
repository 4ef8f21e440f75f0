"""One seed, one history: nodes, launches, faults, and the end in which everything
heals and is checked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from ckpt.base.ids import Domain, LaunchNumber, PayloadId, RunName, Step, TargetId
from ckpt.erasure.code import Code
from ckpt.format.messages.targets import Reserve
from ckpt.protocol.coordinator.cluster.membership import Target
from ckpt.protocol.coordinator.saving.attempts import Attempt
from ckpt.protocol.events import Send
from tests.sim.admin_node import AdminNode
from tests.sim.clockwork import Clockwork
from tests.sim.coordinator_node import CoordinatorNode
from tests.sim.network import Network, Weather
from tests.sim.operator_node import OperatorNode
from tests.sim.oracles import ALONE, Oracles, Spread, Violation
from tests.sim.payloads import Job, content
from tests.sim.rank_node import RankNode
from tests.sim.reader_node import ReaderNode
from tests.sim.struck import Struck
from tests.sim.target_node import DISK_BYTES, TargetNode
from tests.sim.windows import Aim, Windows

CODES = (Code(4, 2), Code(2, 1), Code(2, 2), Code(2, 1))
"""Each seed has one of these: those that are chosen by default, and one with three spares."""
TARGET_COUNT = 7
HOSTS = 4
"""Where two targets share one; the last has one alone."""
RANK_COUNT = 4
RUN = RunName("sim run")


@dataclass(slots=True)
class World:
    """I build the nodes of a seed and know them by name."""

    oracles_type: ClassVar[type[Oracles]] = Oracles

    seed: int
    clock: Clockwork
    network: Network
    oracles: Oracles
    coordinator: CoordinatorNode
    targets: dict[TargetId, TargetNode]
    ranks: list[RankNode]
    readers: list[ReaderNode] = field(default_factory=list)
    launches: int = 0
    replayed: int = 0
    """Commands of an earlier term that were sent again."""
    rotted: list[str] = field(default_factory=list)
    """`TARGET/FILE` of every column that a fault has harmed at rest."""
    document_rotted: str = ""
    """`TARGET/FILE` of the document of which a fault has harmed one copy; empty: of none."""
    many_steps: bool = False
    """Launches save often enough that a save may refer to an earlier one."""
    disk_bytes: int = DISK_BYTES
    """Of each disk, once faults have ended."""

    @classmethod
    def build(
        cls, seed: int, target_count: int = TARGET_COUNT, code: Code | None = None, *,
        shared_hosts: bool = False,
    ) -> World:  # fmt: skip
        """`shared_hosts`: two targets stand on each host, and hosts are what the rule counts."""
        clock = Clockwork(seed)
        network = Network(clock)
        targets: dict[TargetId, TargetNode] = {}
        world: list[World] = []
        oracles = cls.oracles_type(
            content_of=lambda payload: world[0].content_of(payload),
            disk_of=lambda id: targets[id].disk,
            is_lost=lambda id: targets[id].lost,
            is_unknown_loss=lambda id: _is_unknown_loss(coordinator, targets[id]),
            is_harmed=lambda id: targets[id].lost or targets[id].wiped,
            targets=targets.keys(),
            domain_of=lambda id: targets[id].domain,
        )
        code = code or CODES[seed % len(CODES)]
        spread = _on_hosts(code) if shared_hosts else ALONE
        coordinator = CoordinatorNode(
            clock, network, oracles, code, spread.level, spread.max_per_domain
        )
        oracles.spread = spread
        for number in range(target_count):
            node = TargetNode(clock, network, coordinator, number, seed)
            if shared_hosts:
                node.domain = Domain("power", "rack", f"host{number // 2}", f"dev{number}")
            node.windows = coordinator.windows
            targets[node.id] = node
        world.append(cls(seed, clock, network, oracles, coordinator, targets, []))
        for node in targets.values():
            node.on_synced = world[0].forget_mended
        return world[0]

    def add_target(self) -> TargetNode:
        """One more joins, on a host of its own where two share one."""
        number = len(self.targets)
        node = TargetNode(self.clock, self.network, self.coordinator, number, self.seed)
        if self.oracles.spread is not ALONE:
            node.domain = Domain("power", "rack", f"host{HOSTS + number}", f"dev{number}")
        node.windows = self.coordinator.windows
        node.disk.bytes_total = self.disk_bytes
        node.on_synced = self.forget_mended
        self.targets[node.id] = node
        node.start()
        return node

    def forget_mended(self) -> None:
        """Columns that have the right bytes again, under the same names."""
        if self.rotted:
            split = [(each, *each.split("/", 1)) for each in self.rotted]
            disks = {id: target.disk for id, target in self.targets.items()}
            self.rotted = [
                each
                for each, id, file in split
                if not (file.startswith("columns/") and disks[TargetId(id)].is_mended(file))
            ]

    def start(self) -> None:
        self.coordinator.start()
        OperatorNode(self.clock, self.network, self.coordinator).look()
        for target in self.targets.values():
            target.start()
        self.clock.run(lambda: self.live_targets == len(self.targets), 5_000_000)
        if self.live_targets != len(self.targets):
            raise Violation(f"only {self.live_targets} targets came up")

    def launch(
        self, steps: tuple[int, ...], gap_us: int, payload_bytes: int, run: RunName = RUN
    ) -> list[RankNode]:
        """All ranks of one start of the run; in every fourth seed nothing tells them of a key."""
        self.launches += 1
        job = Job(
            run,
            None if self.seed % 4 == 3 else f"key{self.launches}",
            f"L{self.launches}",
            RANK_COUNT,
            steps,
            gap_us,
            payload_bytes,
        )
        nodes = [self._rank(job, rank) for rank in range(RANK_COUNT)]
        self.ranks.extend(nodes)
        for node in nodes:
            self.clock.after(self.clock.rng.randint(0, 3000), node.start)
        return nodes

    def start_again(self, node: RankNode) -> RankNode:
        """The same rank of the same start in another process, as whoever runs the job would."""
        node.crash()
        again = self._rank(node.job, node.rank, node.starts + 1)
        self.ranks[self.ranks.index(node)] = again
        again.start()
        return again

    def _rank(self, job: Job, rank: int, starts: int = 0) -> RankNode:
        return RankNode(
            self.clock, self.network, self.oracles, self.coordinator,
            lambda id: self.targets[id], job, rank, self.seed, starts,
        )  # fmt: skip

    def read(self, step: Step | None = None) -> ReaderNode:
        """A process that loads this step, or the newest."""
        node = self._reader(len(self.readers))
        node.step = step
        self.readers.append(node)
        node.start()
        return node

    def _reader(self, number: int) -> ReaderNode:
        return ReaderNode(
            self.clock, self.network, self.oracles, self.coordinator,
            lambda id: self.targets[id], RUN, number,
        )  # fmt: skip

    def delete_one(self) -> None:
        """Somebody deletes a step, the newest rather than another."""
        here = self.oracles.kept(RUN)
        if here:
            step = self.clock.rng.choice([here[-1], *here]).step
            AdminNode(self.network, self.coordinator, RUN, step).start()

    def content_of(self, payload: PayloadId) -> bytes:
        """What the rank handed over."""
        checkpoint = payload.checkpoint
        job = self.job_of_launch(self.oracles.opened[checkpoint].launch)
        return content(job, checkpoint.step, payload.rank, self.seed)

    @property
    def windows(self) -> Windows:
        """Where a strike can be aimed, of all nodes."""
        return self.coordinator.windows

    @property
    def known_targets(self) -> list[Target]:
        """Those that are live, as the running coordinator sees them."""
        return self.coordinator.machine.members.live() if self.coordinator.up else []

    @property
    def live_targets(self) -> int:
        return len(self.known_targets)

    @property
    def attempts(self) -> list[Attempt]:
        """Attempts that have not ended, as the running coordinator sees them."""
        return self.coordinator.machine.book.open() if self.coordinator.up else []

    def job_of_launch(self, number: LaunchNumber) -> Job:
        """The job whose ranks were given this launch number."""
        job = self.oracles.jobs.get(number)
        if job is None:
            raise Violation(f"P10: nobody was ever given launch {number}")
        return job

    # ----------------------------------------------------------------------- what lives beside

    def live_beside(self) -> None:
        """The first launch has begun: what else lives in this history begins, too."""

    def end_beside(self) -> None:
        """All has healed: what lives besides the ranks comes to its end."""

    def settle_beside(self) -> None:
        """The last saves have ended: what still goes on beside them ends, too."""

    def check_beside(self) -> None:
        """All has ended: what must be true of the rest."""

    @property
    def is_rebuilding(self) -> bool:
        """What was lost is made again, at this moment."""
        return False

    @property
    def is_moving(self) -> bool:
        """What leaves its target is made elsewhere, at this moment."""
        return False

    @property
    def has_places(self) -> bool:
        """Whether a save finds one for each of its columns, among the targets that are left."""
        return True

    def rebuild_amid_faults(self) -> list[Struck]:
        """What is lost is made again while others strike; who did."""
        return []

    def aims_of_rebuilds(self) -> list[tuple[str, Aim]]:
        """Who was to be struck meanwhile between two durable steps."""
        return []

    # ----------------------------------------------------------------------- healing

    def restart_coordinator(self) -> None:
        if not self.coordinator.up:
            self.coordinator.start()

    def replay_old_commands(self) -> bool:
        """Send again what an earlier term asked of targets, on the sessions that stand now; False
        when there is nothing of the kind, or no session.
        """
        if not self.coordinator.up:
            return False
        term = self.coordinator.machine.members.term
        sessions = [t.session for t in self.coordinator.machine.members.live() if t.session]
        old = [
            command for command in self.coordinator.old_commands
            if isinstance(command.message, Reserve) and command.message.term < term
        ]  # fmt: skip
        for command in old if sessions else ():
            self.replayed += 1
            session = self.clock.rng.choice(sessions)
            self.network.send(Send(session, 1 << 60, command.message))
        return bool(old and sessions)

    def heal(self) -> None:
        """All faults end; everything that can come back does."""
        self.network.weather = Weather()
        self.network.cut_half_open()
        self.network.slow.clear()
        self.network.held.clear()
        self.network.corrupt_fragments = 0
        self.windows.clear()
        self.coordinator.stopped = False
        self.restart_coordinator()
        for target in self.targets.values():
            target.stopped, target.disk_slow = False, 1
            target.disk.faults.clear()
            target.disk.bytes_total = self.disk_bytes
            target.start()
            target.measure()  # Nobody may be refused for room that is there again.


def _on_hosts(code: Code) -> Spread:
    """A column for each host where there are enough of them, else two."""
    return Spread("host", 1 if code.n <= HOSTS else 2)


def _is_unknown_loss(coordinator: CoordinatorNode, target: TargetNode) -> bool:
    """It is gone or empty, but its old incarnation's session still stands at the coordinator."""
    if not (target.lost or target.wiped):
        return False
    known = coordinator.machine.members.targets.get(target.id)
    return known is not None and known.session is not None and known.boot == target.harmed_boot
