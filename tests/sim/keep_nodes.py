"""Who says what stays of a run, ranks that say how good their steps are, and their world."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from random import Random
from typing import ClassVar, cast

from ckpt.base.ids import CheckpointId, RunName
from ckpt.format.documents.record import decode_record
from ckpt.format.messages import Message
from ckpt.format.messages.hello import Failed, Role
from ckpt.format.messages.keeping import Best, Better, KeepSteps, Retention, StepsKept
from ckpt.protocol.coordinator import catalog
from ckpt.protocol.coordinator.catalog import CatalogEntry, CatalogImage, RowState
from ckpt.protocol.events import Send, Session
from tests.sim.keep_book import KeepBook, Rules
from tests.sim.label_nodes import HERE, RETRY_US, RUNS, LabelOracles, LabelWorld
from tests.sim.oracles import Oracles, Violation
from tests.sim.payloads import Job
from tests.sim.rank_node import RankNode


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

    def coordinator_started(self, image: CatalogImage) -> None:
        self.rules.committed = {
            id: decode_record(row.record).info
            for id, row in image.rows.items()
            if row.state in HERE
        }
        self.rules.check_catalog(image.retentions)
        super().coordinator_started(image)

    def catalog_wrote(self, entries: tuple[CatalogEntry, ...]) -> None:
        super().catalog_wrote(entries)
        gone = [e for e in entries if isinstance(e, catalog.CheckpointTombstoned)]
        self.rules.gone([entry.checkpoint for entry in gone if entry.reason == "expired"])
        for entry in entries:
            match entry:
                case catalog.AttemptCommitted(id):
                    info = decode_record(self.decided[id].record).info
                    self.rules.committed[id] = info
                    self._check_metrics(id)
                case catalog.CheckpointTombstoned(id):
                    self.rules.committed.pop(id, None)

    def _check_metrics(self, id: CheckpointId) -> None:
        """They are those of rank 1."""
        told = self.rules.committed[id].metrics
        loss = loss_of(Job(id.run, None, "", 1, (), 0, 0), id.step)
        if told != ({} if loss is None else {"loss": loss}):
            raise Violation(f"{id} has metrics {told}, it was saved with {loss}")


class Keeper:
    """I say again and again what stays of one run, and hear how that ended."""

    up, stopped = True, False

    def __init__(self, world: KeepWorld, run: RunName, changes: int) -> None:
        self.name = f"keeper of {run}"
        self.changes = changes
        """So many more."""
        self.ends: list[str] = []
        self._world, self._run = world, run
        self._rng = Random(f"{self.name} in {world.seed}")
        self._session: Session | None = None
        self._request = 0
        self._asked: KeepSteps | None = None

    @property
    def waits(self) -> bool:
        """For an answer, or to ask."""
        return self._asked is not None or self.changes > 0

    def dial(self) -> None:
        if self._session is not None:
            return
        self._world.network.dial(
            self, self._world.coordinator, Role.ADMIN, Role.COORDINATOR,
            failed=lambda: self._world.clock.after(RETRY_US, self.dial), opened=lambda _: None,
        )  # fmt: skip

    def go_on(self) -> None:
        """There is more to ask for."""
        if self._session is None:
            self.dial()
        else:
            self._ask()

    def session_opened(self, session: Session, role: Role, name: str) -> None:
        self._session = session
        self._ask()

    def session_closed(self, session: Session) -> None:
        """Whether it counts, nobody knows."""
        if session != self._session:
            return
        self._session = None
        if self._asked is not None:
            self._end("lost")
        if self.waits:
            self._world.clock.after(RETRY_US, self.dial)

    def received(self, session: Session, request: int, message: Message, bulk: bytes) -> None:
        if session != self._session or request != self._request or self._asked is None:
            return
        match message:
            case StepsKept(run, retention):
                if (run, retention) != (self._asked.run, self._asked.retention):
                    raise Violation(f"{self._asked} was answered with {message}")
                self._world.rules.told(run, retention)
                self._end("kept")
            case _:
                assert isinstance(message, Failed)
                self._end(message.code)
        pause_us = self._rng.choice([0, 1_000, self._world.gap_us, 3 * self._world.gap_us])
        self._world.clock.after(pause_us, self._ask)

    def _end(self, how: str) -> None:
        self.ends.append(how)
        self._asked = None
        self._world.clock.changed = True

    def _ask(self) -> None:
        if self._session is None or self._asked is not None or not self.waits:
            return
        self.changes -= 1
        self._request += 1
        self._asked = KeepSteps(self._run, self._drawn())
        self._world.rules.asked(self._run, self._asked.retention)
        self._world.network.send(Send(self._session, self._request, self._asked))

    def _drawn(self) -> Rules:
        rng = self._rng
        if rng.random() < 0.15:
            return None
        best = Best("loss", rng.choice([Better.MIN, Better.MAX]), rng.randint(1, 2))
        kinds = rng.choice(["last", "last", "every", "best", "both", "all"])
        return Retention(
            rng.randint(1, 3) if kinds in ("last", "both", "all") else None,
            rng.choice([20, 30]) if kinds in ("every", "all") else None,
            best if kinds in ("best", "both", "all") else None,
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

    def say(self, changes: int) -> None:
        """Each run's keeper begins, or goes on."""
        if not self.keepers:
            self.keepers = [Keeper(self, run, 0) for run in RUNS]
        for keeper in self.keepers:
            keeper.changes = changes
            self.clock.after(self.clock.rng.randint(0, self.gap_us), keeper.go_on)

    def check_left(self) -> None:
        """What no rule keeps is gone, but for what somebody holds."""
        held = list(self.coordinator.machine.checkpoints.all())
        here = [one.id for one in held if one.state is RowState.COMMITTED]
        self.rules.check_left(here, [one.id for one in held if one.is_kept or one.pins])


def built(seed: int) -> KeepWorld:
    return cast(KeepWorld, KeepWorld.build(seed))
