"""Who says what stays of a run, ranks that say how good their steps are, and their world."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from random import Random
from typing import ClassVar, cast

from ckpt.base.ids import CheckpointId, RunName
from ckpt.format.documents.labels import Labels, decode_labels
from ckpt.format.documents.record import decode_record
from ckpt.format.messages import Message
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.keeping import Best, Better, KeepSteps, Retention, StepsKept
from ckpt.protocol.coordinator import catalog
from ckpt.protocol.coordinator.catalog import CatalogEntry, RowState
from ckpt.protocol.coordinator.image import CatalogImage
from ckpt.protocol.coordinator.keeping.retaining import LOOK_US
from tests.sim.asking_node import Asking
from tests.sim.keep_book import KeepBook, Rules
from tests.sim.label_nodes import HERE, RUNS, LabelOracles, LabelWorld
from tests.sim.oracles import Oracles, Violation
from tests.sim.payloads import Job
from tests.sim.rank_node import RankNode
from tests.sim.roll_book import aside_of

AGES_S = (1, 2, 30, 3600)
LATE_S = LOOK_US / 1e6 + 5.0
"""Rules by age are looked at so often, and what goes takes a moment."""


def loss_of(job: Job, step: int) -> float | None:
    """What is known of a step: nothing of every fourth."""
    drawn = Random(f"{job.run}@{step}").randrange(4)
    return None if drawn == 0 else drawn / 2


class SayingRank(RankNode):
    """I say how good a step is; rank 0 says nothing, and those above 1 something else."""

    def metrics_of(self, step: int) -> dict[str, float]:
        loss = loss_of(self.job, step)
        if loss is None or self.rank == 0:
            return {}
        return {"loss": loss} if self.rank == 1 else {"loss": loss + self.rank}


class KeepOracles(LabelOracles):
    """What rules keep does not expire."""

    @cached_property
    def rules(self) -> KeepBook:
        """What people were told."""
        return KeepBook()

    @cached_property
    def _labels(self) -> dict[CheckpointId, Labels]:
        """As the catalog durably has them."""
        return {}

    def coordinator_started(self, image: CatalogImage) -> None:
        self.rules.committed = {
            id: decode_record(row.record).info
            for id, row in image.rows.items()
            if row.state in HERE
        }
        self.rules.check_catalog(image.retentions)
        self._labels = {id: decode_labels(document) for id, document in image.labels.items()}
        self.rules.set_aside(aside_of(self._labels))
        super().coordinator_started(image)

    def coordinator_decides(self, entry: catalog.AttemptDecided, index: bytes) -> None:
        self.rules.check_committed_at(
            entry.checkpoint, decode_record(entry.record).info.committed_at_s
        )
        super().coordinator_decides(entry, index)

    def catalog_wrote(self, entries: tuple[CatalogEntry, ...]) -> None:
        super().catalog_wrote(entries)
        gone = [e for e in entries if isinstance(e, catalog.CheckpointTombstoned)]
        self.rules.gone([entry.checkpoint for entry in gone if entry.reason == "expired"])
        for entry in entries:
            match entry:
                case catalog.RowCommitted(id):
                    info = decode_record(self.decided[id].record).info
                    self.rules.committed[id] = info
                    self._check_metrics(id)
                case catalog.CheckpointTombstoned(id):
                    self.rules.committed.pop(id, None)
                case catalog.CheckpointLabeled(id, document):
                    self._labels.pop(id, None)
                    if document:
                        self._labels[id] = decode_labels(document)
        self.rules.set_aside(aside_of(self._labels))

    def _check_metrics(self, id: CheckpointId) -> None:
        """They are those of rank 1."""
        told = self.rules.committed[id].metrics
        loss = loss_of(Job(id.run, None, "", 1, (), 0, 0), id.step)
        if told != ({} if loss is None else {"loss": loss}):
            raise Violation(f"{id} has metrics {told}, it was saved with {loss}")


class Keeper(Asking[KeepSteps]):
    """I say again and again what stays of one run, and hear how that ended."""

    def __init__(self, world: KeepWorld, run: RunName, changes: int) -> None:
        name = f"keeper of {run}"
        super().__init__(world, name, changes, f"{name} in {world.seed}")
        self._world, self._run = world, run

    def _heard(self, asked: KeepSteps, message: Message) -> None:
        match message:
            case StepsKept(run, retention):
                if (run, retention) != (asked.run, asked.retention):
                    raise Violation(f"{asked} was answered with {message}")
                self._world.rules.told(run, retention)
                self._end("kept")
            case _:
                assert isinstance(message, Failed)
                self._end(message.code)

    def _next(self) -> KeepSteps:
        asked = KeepSteps(self._run, self._drawn())
        self._world.rules.asked(self._run, asked.retention)
        return asked

    def _drawn(self) -> Rules:
        rng = self._rng
        if rng.random() < 0.15:
            return None
        best = Best("loss", rng.choice([Better.MIN, Better.MAX]), rng.randint(1, 2))
        kinds = rng.choice(["last", "last", "every", "best", "both", "age", "age", "all"])
        return Retention(
            rng.randint(1, 3) if kinds in ("last", "both", "all") else None,
            rng.choice([20, 30]) if kinds in ("every", "all") else None,
            best if kinds in ("best", "both", "all") else None,
            rng.choice(AGES_S) if kinds in ("age", "all") else None,
        )


@dataclass
class KeepWorld(LabelWorld):
    """What stays of two runs is said beside names, pins and deletions."""

    oracles_type: ClassVar[type[Oracles]] = KeepOracles

    keepers: list[Keeper] = field(default_factory=list)

    @property
    def rules(self) -> KeepBook:
        return cast(KeepOracles, self.oracles).rules

    def _rank(self, job: Job, rank: int, starts: int = 0) -> RankNode:
        return SayingRank(
            self.clock, self.network, self.oracles, self.coordinator,
            lambda id: self.targets[id], job, rank, self.seed, starts,
        )  # fmt: skip

    def start(self) -> None:
        self.rules.wall_s = self.coordinator.wall_s
        super().start()

    def say(self, changes: int) -> None:
        """Each run's keeper begins, or goes on."""
        if not self.keepers:
            self.keepers = [Keeper(self, run, 0) for run in RUNS]
        for keeper in self.keepers:
            keeper.changes = changes
            self.clock.after(self.clock.rng.randint(0, self.gap_us), keeper.go_on)

    def lose_catalog(self) -> None:
        """With it all rules; it is made again from every target that is left."""
        self.coordinator.crash()
        for target in self.targets.values():
            target.crash()
        found = self.rebuilt(0, at_once=False)
        refused = {each.checkpoint for each in found.refused}
        self.rules.made_again({id.run for id in found.image.rows.keys() | refused})
        self.coordinator.begin_from(found.image)
        for target in self.targets.values():
            target.start()
        self.restart_coordinator()

    def check_left(self) -> None:
        """What no rule keeps is gone, but for what somebody holds."""
        held = list(self.coordinator.machine.checkpoints.all())
        here = [one.id for one in held if one.state is RowState.COMMITTED]
        self.rules.check_left(here, [one.id for one in held if one.is_kept or one.pins], LATE_S)

    def set_clock(self) -> None:
        """The coordinator's wall clock is wrong from now on, or wrong in another way."""
        by_s = self.clock.rng.choice([-86_400, -3600, -2, 2, 3600, 86_400])
        self.coordinator.wall_jump_s += by_s
        self.rules.clock_set(by_s)


def built(seed: int) -> KeepWorld:
    return cast(KeepWorld, KeepWorld.build(seed))
