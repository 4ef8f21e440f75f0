"""A world in which a second coordinator rises while the old one lives, and what must be true of
both together: one record for a generation, nothing given twice, nobody told less than was said.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ckpt.base.ids import CheckpointId, LaunchNumber, Step, TargetId
from ckpt.format.messages import Message
from ckpt.format.messages.asking import DeleteStep, StepDeleted
from ckpt.format.messages.hello import Role
from ckpt.format.messages.saving import CommitInfo
from ckpt.protocol.coordinator import catalog
from ckpt.protocol.coordinator.catalog import CatalogEntry, RowState
from ckpt.protocol.coordinator.cluster.vouching import CatalogStanding
from ckpt.protocol.coordinator.image import CatalogImage
from ckpt.protocol.events import Send, Session, StoodStill
from ckpt.protocol.stager.events import Outcome, SaveCommitted
from tests.sim.clockwork import Clockwork
from tests.sim.coordinator_node import CoordinatorNode
from tests.sim.drain_world import DrainOracles, DrainWorld
from tests.sim.network import Network, Node
from tests.sim.oracles import Violation
from tests.sim.payloads import Job
from tests.sim.rank_node import RankNode
from tests.sim.reader_node import ReaderNode
from tests.sim.repair_node import RepairNode
from tests.sim.world import RUN

RETRY_US = 200_000
OLD, NEW = 0, 1
"""Which of the two; whoever is made of the targets afterwards is a new one again."""


class TwoOracles(DrainOracles):
    """Two catalogs are written; `side` says by whom."""

    world: TwoWorld
    side: int = OLD

    def __init__(self, **of_the_world: Any) -> None:
        super().__init__(**of_the_world)
        self.given: dict[int, CheckpointId] = {}
        """The newest generation that each side has opened."""
        self.begun_by: dict[int, LaunchNumber] = {}
        self.decisions: dict[tuple[int, CheckpointId], catalog.AttemptDecided] = {}
        self.aborted_by: dict[CheckpointId, set[int]] = {}

    def coordinator_started(self, image: CatalogImage) -> None:
        """A copy may lack what was announced: then it may say nothing that shows it."""

    def catalog_wrote(self, entries: tuple[CatalogEntry, ...]) -> None:
        for entry in entries:
            match entry:
                case catalog.AttemptDecided(id):
                    self._keep_decision(entry)
                case catalog.RowAborted(id):
                    self.aborted_by.setdefault(id, set()).add(self.side)
                    if (self.side, id) in self.decisions:
                        raise Violation(f"P2: {id} was decided and then aborted")
        super().catalog_wrote(
            tuple(
                entry
                for entry in entries
                if not isinstance(entry, catalog.AttemptDecided | catalog.RowAborted)
                and not (self.world.risen and isinstance(entry, catalog.ColumnsMoved))
            )
        )

    def _keep_decision(self, entry: catalog.AttemptDecided) -> None:
        """Before anybody hears of it, a decision stands in one catalog alone; what is announced
        has one record.
        """
        self.decisions[self.side, entry.checkpoint] = entry
        if entry.checkpoint not in self.announced:
            self.decided[entry.checkpoint] = entry
        elif self.decided[entry.checkpoint].record != entry.record:
            raise Violation(f"P2: {entry.checkpoint} is announced, and decided anew, differently")

    def _opened(self, entry: catalog.AttemptOpened) -> None:
        id, side = entry.checkpoint, self.side
        if id.generation in {known.generation for known in self.opened}:
            raise Violation(f"P10: generation {id} is given out twice")
        last = self.given.get(side)
        if last is not None and id.generation <= last.generation:
            raise Violation(f"P10: generation {id} does not grow")
        if entry.launch < self.begun_by.get(side, LaunchNumber(0)):
            raise Violation(f"P10: fenced launch {entry.launch} opened {id}")
        self.given[side], self.begun_by[side], self.opened[id] = id, entry.launch, entry

    def _announce(self, info: CommitInfo) -> None:
        id = info.checkpoint
        if id not in self.announced and max(self.aborted_by.get(id, {-1})) >= self.side:
            raise Violation(f"P2: {id} is announced, and was aborted by who is in force")
        if id not in self.announced and (self.side, id) in self.decisions:
            self.decided[id] = self.decisions[self.side, id]
        super()._announce(info)

    def half_granted(self, node: RankNode, half: int, save: int, read: set[int]) -> None:
        """Nor does a rank that was told so by who is deposed hold its half any longer: what was
        sealed of it is what the other commits.
        """
        if not self.world.risen:
            super().half_granted(node, half, save, read)

    def trainer_told(self, node: RankNode, step: int, outcome: Outcome) -> None:
        """Who is deposed may call a save failed that the other commits, never the other way."""
        if isinstance(outcome, SaveCommitted) or not self.world.risen:
            super().trainer_told(node, step, outcome)


class _Side:
    """The oracles as one of the coordinators meets them."""

    def __init__(self, oracles: TwoOracles, side: int) -> None:
        self._oracles, self._side = oracles, side

    def __getattr__(self, name: str) -> object:
        self._oracles.side = self._side
        return getattr(self._oracles, name)


class CarefulReader(ReaderNode):
    """I know what had been announced when I asked."""

    world: TwoWorld
    newest: CheckpointId | None = None
    gone: frozenset[CheckpointId] = frozenset()

    def _ask_coordinator(self, session: Session) -> None:
        oracles = self.world.oracles
        kept = [id for id in oracles.announced if not self.world.is_going(id)]
        self.newest, self.gone = max(kept, default=None), frozenset(self.world.gone)
        super()._ask_coordinator(session)

    def _resolved(self, info: CommitInfo, record: bytes) -> None:
        known = self.world.oracles.decided[info.checkpoint]
        if record != known.record:
            raise Violation(f"P2: {info.checkpoint} is read with another record than was announced")
        self.world.check_answer(self.name, self.newest, self.gone, info.checkpoint)
        super()._resolved(info, record)


class CarefulRank(RankNode):
    """The world knows every number that I was given."""

    world: TwoWorld

    def received(self, session: Session, request: int, message: Message, bulk: bytes) -> None:
        super().received(session, request, message, bulk)
        number = self.launch_number
        if number is not None:
            known = self.world.numbers.setdefault(number, self.job)
            if known != self.job:
                raise Violation(f"P10: launch {number} was given to two starts of the run")


class DeleterNode:
    """An operator who deletes a step, and asks again until there is an answer."""

    up, stopped = True, False

    def __init__(
        self, clock: Clockwork, network: Network, coordinator: Node, name: str, step: int,
        deleted: Callable[[], None],
    ) -> None:  # fmt: skip
        self.name = name
        self.answer: Message | None = None
        self._clock, self._network, self._coordinator = clock, network, coordinator
        self._step, self._deleted = step, deleted

    def start(self) -> None:
        self._network.dial(
            self, self._coordinator, Role.ADMIN, Role.COORDINATOR,
            failed=lambda: self._clock.after(RETRY_US, self.start), opened=lambda _: None,
        )  # fmt: skip

    def session_opened(self, session: Session, role: Role, name: str) -> None:
        self._network.send(Send(session, 1, DeleteStep(RUN, Step(self._step))))

    def session_closed(self, session: Session) -> None:
        if self.answer is None:
            self._clock.after(RETRY_US, self.start)

    def received(self, session: Session, request: int, message: Message, bulk: bytes) -> None:
        if self.answer is None:
            self.answer = message
            if isinstance(message, StepDeleted):
                self._deleted()


@dataclass(slots=True)
class TwoWorld(DrainWorld):
    """`coordinator` is the one that people follow, `old` the one that they took for dead."""

    oracles_type = TwoOracles

    old: CoordinatorNode | None = None
    risen: bool = False
    numbers: dict[int, Job] = field(default_factory=dict)
    """Launch -> whose it is."""
    gone: set[CheckpointId] = field(default_factory=set)
    """Somebody was told that these are deleted."""
    deleters: list[DeleterNode] = field(default_factory=list)
    repairers: list[RepairNode] = field(default_factory=list)
    """Workers that make lost columns again."""

    @classmethod
    def made(cls, seed: int) -> TwoWorld:
        world = cls.build(seed)
        assert isinstance(world, TwoWorld)
        assert isinstance(world.oracles, TwoOracles)
        world.oracles.world = world
        world.old = world.coordinator
        world.old._oracles = _Side(world.oracles, OLD)  # type: ignore[assignment]
        return world

    # ----------------------------------------------------------------------- the second one

    def prepare(self) -> CoordinatorNode:
        """It has an address, and no catalog yet."""
        assert self.old is not None
        assert isinstance(self.oracles, TwoOracles)
        code = self.old.machine_policy.code
        new = CoordinatorNode(self.clock, self.network, self.oracles, code)
        new.name = "second"
        new.machine_policy = self.old.machine_policy
        new._oracles = _Side(self.oracles, NEW)  # type: ignore[assignment]
        self.coordinator, self.risen = new, True
        return new

    def send_over(self, node: Node, to: CoordinatorNode, deaf_us: int = 0) -> None:
        """From now on it dials that one. For so long the one that it leaves hears nothing of it."""
        left = node._coordinator  # type: ignore[attr-defined]
        if left is to:
            return
        node._coordinator = to  # type: ignore[attr-defined]
        if deaf_us:
            self.network.hold(node.name, left.name, self.clock.now_us + deaf_us)
        for session in self.network.sessions_between(node, left):
            self.network.cut(session)

    def wake(self, node: CoordinatorNode, gap_us: int) -> None:
        """It was stopped for so long, and sees that."""
        if node.up and node.stopped:
            node.stopped = False
            node._handle(StoodStill(self.clock.now_us, gap_us))

    @property
    def serves(self) -> bool:
        """Whether the new one does."""
        return self.coordinator.up and self.coordinator.machine.vouching.serves

    @property
    def is_old(self) -> bool:
        vouching = self.coordinator.machine.vouching
        return self.coordinator.up and vouching.standing is CatalogStanding.OLD

    # ----------------------------------------------------------------------- what is made again

    def start_repairers(self, count: int) -> None:
        for number in range(count):
            node = RepairNode(
                self.clock, self.network, self.oracles, self.coordinator,
                lambda id: self.targets[id], number,
            )  # fmt: skip
            self.repairers.append(node)
            node.start()

    def follow_places(self) -> None:
        """Columns are where the new one says: the old one's moves count only there."""
        for id, announced in self.oracles.announced.items():
            checkpoint = self.coordinator.machine.checkpoints.get(id)
            if checkpoint is not None and checkpoint.placement is not None:
                placed = checkpoint.placement.items()
                announced.placement.update({rank: one.columns for rank, one in placed})

    # ----------------------------------------------------------------------- who asks

    def read_from(self, coordinator: CoordinatorNode) -> CarefulReader:
        node = CarefulReader(
            self.clock, self.network, self.oracles, coordinator,
            lambda id: self.targets[id], RUN, len(self.readers),
        )  # fmt: skip
        node.world = self
        self.readers.append(node)
        node.start()
        return node

    def delete_at(self, coordinator: CoordinatorNode, step: int) -> None:
        doomed = {id for id in self.oracles.announced if id.step == step}
        name = f"deleter{len(self.deleters)}"
        node = DeleterNode(
            self.clock, self.network, coordinator, name, step, lambda: self.gone.update(doomed)
        )
        self.deleters.append(node)
        node.start()

    def _rank(self, job: Job, rank: int, starts: int = 0) -> RankNode:
        node = CarefulRank(
            self.clock, self.network, self.oracles, self.coordinator,
            lambda id: self.targets[id], job, rank, self.seed, starts,
        )  # fmt: skip
        node.world = self
        return node

    def job_of_launch(self, number: int) -> Job:
        if number not in self.numbers:
            raise Violation(f"P10: nobody was ever given launch {number}")
        return self.numbers[number]

    # ----------------------------------------------------------------------- oracles

    def check_tombstone(self, id: CheckpointId, reason: str) -> None:
        """A person who deletes is obeyed."""
        if reason != "deleted on request":
            DrainWorld.check_tombstone(self, id, reason)

    def check_stored(self, url: str, id: CheckpointId) -> None:
        """A worker repeats to the new one what it has told the old one; a newer generation of the
        step may have taken its place in the store meanwhile.
        """
        newer = any(step == id.step and g > id.generation for step, g in self.held(url))
        if not newer:
            DrainWorld.check_stored(self, url, id)

    def is_going(self, id: CheckpointId) -> bool:
        """One of the two deletes it, durably or not yet."""
        asked = (one.machine.checkpoints.get(id) for one in (self.old, self.coordinator) if one)
        going = any(known is not None and known.state is RowState.TOMBSTONED for known in asked)
        return going or id in self.oracles.deleted

    def check_answer(
        self,
        who: str,
        newest: CheckpointId | None,
        gone: frozenset[CheckpointId],
        got: CheckpointId,
    ) -> None:
        """Of the newest step: what had been announced before the question, or newer."""
        if got in gone:
            raise Violation(f"P2: {who} is given {got}, which was deleted before")
        if newest is not None and got < newest and not self.is_going(newest):
            raise Violation(f"P2: {who} is given {got}, {newest} was announced before it asked")

    def followers(self) -> set[TargetId]:
        """Targets that obey the new one."""
        return {target.id for target in self.known_targets}
