"""A world in which more lives than ranks that save and load: each seed draws what else."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import ClassVar

from ckpt.base.ids import PayloadId, RunName, Step
from ckpt.base.units import US_PER_S
from ckpt.format.messages.saving import CommitInfo
from ckpt.plan.drains import StorePolicy
from ckpt.protocol.coordinator.catalog import CatalogEntry
from ckpt.protocol.coordinator.policy import Watermarks
from tests.sim.drain_node import QUIET_S, Trouble
from tests.sim.drain_world import DrainOracles, DrainWorld
from tests.sim.file_nodes import FileOracles, FileWorld
from tests.sim.last_checks import SETTLE_US, check_nothing_is_left, harmed_count, read_everything
from tests.sim.move_rounds import MoveRounds
from tests.sim.oracles import Oracles, Placement, Violation
from tests.sim.payloads import Job
from tests.sim.rank_node import RankNode
from tests.sim.reader_node import ReaderNode
from tests.sim.rebuilds import Rebuilds
from tests.sim.reference_nodes import ReferenceOracles, ReferenceWorld
from tests.sim.struck import Struck
from tests.sim.windows import Aim
from tests.sim.world import RUN, World

FILES_RUN = RunName("files run")
FILE_STEPS = (10, 20)
REPAIRING = 0.12
"""In so many of all histories."""
MOVING = 0.1
"""In so many of the others."""
DRAINING = 0.15
"""In so many of those without references: a worker reads a checkpoint's payloads, not its homes."""
EVICTING = 0.4
"""In so many of these."""
STORE_URL = "mem://beside"
WORKERS = 2
LAST_DELETION_US = 300_000
"""After healing somebody deletes once more, in the midst of the last saves or just behind them."""

ANSWER_US = 100_000
"""Longer than a question to a coordinator that is well takes, with its transaction."""


@dataclass(frozen=True, slots=True)
class Lives:
    """What there is beside ranks and readers."""

    deletion: bool = False
    """Steps are deleted and expire."""
    references: bool = False
    """Half of each rank's state seldom changes, and is referred to."""
    files: bool = False
    """Other processes write files, as through fsspec, and commit them by name."""

    repair: bool = False
    """Workers make again what is lost, and more is lost than one fault takes."""
    moves: bool = False
    """Targets come, are drained, taken out and removed, and columns go from full ones to empty
    ones; what is lost is made again as well."""

    drains: bool = False
    """Workers bring steps to an object store."""
    evictions: bool = False
    """What is drained goes from the tier."""

    @classmethod
    def drawn(cls, seed: int) -> Lives:
        rng = Random(f"lives of {seed}")
        lives = cls(*(rng.random() < chance for chance in (0.4, 0.22, 0.1, REPAIRING)))
        moves = not lives.repair and Random(f"who leaves {seed}").random() < MOVING
        drains = Random(f"who drains {seed}").random()
        if lives.references or drains >= DRAINING:
            return replace(lives, moves=moves)
        evictions = drains < EVICTING * DRAINING
        return replace(lives, moves=moves, drains=True, evictions=evictions)


class WholeOracles(ReferenceOracles, FileOracles, DrainOracles):
    """What is true of ranks' checkpoints, of those of files, and of stores where there are any."""

    world: WholeWorld

    def catalog_wrote(self, entries: tuple[CatalogEntry, ...]) -> None:
        kind = DrainOracles if self.world.lives.drains else Oracles
        kind.catalog_wrote(self, entries)

    def _check_ranks(self, info: CommitInfo, placement: Placement) -> None:
        kind = FileOracles if info.checkpoint.run == FILES_RUN else Oracles
        kind._check_ranks(self, info, placement)


@dataclass
class WholeWorld(ReferenceWorld, FileWorld, DrainWorld):
    """I begin, end and check what lives beside the ranks."""

    oracles_type: ClassVar[type[Oracles]] = WholeOracles

    lives: Lives = Lives()
    """What was drawn for this seed."""
    #: By then the last deletion has been asked for.
    _deleted_us: int = 0
    #: None where nothing is made again.
    _rebuilds: Rebuilds | None = None

    def _rank(self, job: Job, rank: int, starts: int = 0) -> RankNode:
        kind = ReferenceWorld if self.lives.references else World
        return kind._rank(self, job, rank, starts)

    def _reader(self, number: int) -> ReaderNode:
        kind = ReferenceWorld if self.lives.references else World
        return kind._reader(self, number)

    def content_of(self, payload: PayloadId) -> bytes:
        if payload.checkpoint.run == FILES_RUN:
            return FileWorld.content_of(self, payload)
        kind = ReferenceWorld if self.lives.references else World
        return kind.content_of(self, payload)

    def start(self) -> None:
        if self.lives.deletion:
            policy, keep = self.coordinator.machine_policy, self.clock.rng.choice([None, 1, 2])
            self.coordinator.machine_policy = replace(policy, keep=keep)
        if self.lives.repair:
            self._rebuilds = Rebuilds(self)
        elif self.lives.moves:
            self._rebuilds = MoveRounds(self)
        if self.lives.evictions:
            policy = replace(self.coordinator.machine_policy, watermarks=Watermarks(0.0, 0.0))
            self.coordinator.machine_policy = policy
        World.start(self)
        if self.lives.drains:
            self._begin_drains()

    def _begin_drains(self) -> None:
        """Draws of their own: beside ranks nothing is drawn that another history has not."""
        rng = Random(f"drains of {self.seed}")
        store = StorePolicy(
            STORE_URL, rng.choice([1, 1, 2]), rng.choice([None, None, 2]), runs=(RUN,)
        )
        self.trouble = rng.choice([Trouble(), Trouble(yields=0.05), Trouble(0.01, 0.01, 0.02)])
        self.add_store(store, conditional=rng.random() < 0.5)
        for _ in range(WORKERS):
            self.clock.after(rng.randint(0, 400_000), self.start_worker, store)
        for _ in range(rng.choice([0, 1, 2])):
            self.clock.after(rng.randint(500_000, 3_000_000), self._kill_worker)

    def _kill_worker(self) -> None:
        """Another comes in its place."""
        up = [node for node in self.workers if node.up]
        if up:
            self.clock.rng.choice(up).crash()
            self.clock.after(400_000, self.restart_workers)

    def live_beside(self) -> None:
        if self.lives.deletion:
            self._delete_later(self.clock.rng.choice([1, 2, 3]), 1_000_000)
        if self.lives.files:
            self.write_files(FILES_RUN, FILE_STEPS, self.clock.rng.choice([0, 100, 20_000]))
        if self._rebuilds is not None:
            self._rebuilds.begin()

    @property
    def is_rebuilding(self) -> bool:
        return self._rebuilds is not None and self._rebuilds.is_making

    @property
    def is_moving(self) -> bool:
        return self._rebuilds is not None and self._rebuilds.is_moving

    @property
    def has_places(self) -> bool:
        return self._rebuilds is None or self._rebuilds.has_places

    def rebuild_amid_faults(self) -> list[Struck]:
        return [] if self._rebuilds is None else self._rebuilds.amid_faults()

    def aims_of_rebuilds(self) -> list[tuple[str, Aim]]:
        return [] if self._rebuilds is None else self._rebuilds.aims

    def end_beside(self) -> None:
        if self.lives.deletion:
            self._delete_later(1, LAST_DELETION_US)
        if self.lives.files:
            self.end_files()
        if self.lives.drains:
            self.trouble = Trouble()
            self.restart_workers()
        if self._rebuilds is not None:
            self._rebuilds.beside_last_saves()

    def settle_beside(self) -> None:
        if self.lives.deletion:
            left_us = self._deleted_us - self.clock.now_us
            self.clock.pass_time(max(0, left_us) + ANSWER_US)
        if self._rebuilds is not None:
            self._rebuilds.end()
        if self.lives.drains:
            self.restart_workers()
            self.clock.run(self.is_idle, SETTLE_US)
            self.pass_until_tidy(int(QUIET_S * US_PER_S))

    def _delete_later(self, count: int, within_us: int) -> None:
        """The history's last reads wait for it."""
        for _ in range(count):
            self.clock.after(self.clock.rng.randint(0, within_us), self.delete_one)
        self._deleted_us = max(self._deleted_us, self.clock.now_us + within_us)

    def check_beside(self) -> None:
        if self.lives.deletion or self.lives.references:
            read_everything(self)
            check_nothing_is_left(self)
        if self.lives.drains:
            self.check_stores()
        for committer in self.committers:
            self._read_files(Step(committer.step))

    def _read_files(self, step: Step) -> None:
        """What was committed of that step is read whole."""
        kept = [id for id in self.oracles.kept(FILES_RUN) if id.step == step]
        if not kept:
            return
        reader = ReaderNode(
            self.clock, self.network, self.oracles, self.coordinator,
            lambda id: self.targets[id], FILES_RUN, len(self.readers),
        )  # fmt: skip
        reader.step = step
        self.readers.append(reader)
        reader.start()
        self.clock.run(lambda: reader.outcome is not None, SETTLE_US)
        allowed = self.oracles.announced[kept[-1]].info.targets_survivable
        if reader.outcome != "read" and harmed_count(self) <= allowed:
            raise Violation(f"P1: after healing {kept[-1]} ends with {reader.outcome}")


def whole(seed: int) -> WholeWorld:
    """As the campaign has it."""
    world = WholeWorld.build(seed, shared_hosts=seed % 3 == 0)
    assert isinstance(world, WholeWorld)
    assert isinstance(world.oracles, WholeOracles)
    world.lives, world.oracles.world = Lives.drawn(seed), world
    world.many_steps = world.lives.references
    return world
