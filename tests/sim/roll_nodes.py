"""Who rolls runs back, brings back what was set aside, loads the newest, and the world of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, cast

import msgspec

from ckpt.base.ids import CheckpointId, Generation, RunName
from ckpt.format.documents.labels import decode_labels, is_aside
from ckpt.format.messages import Message
from ckpt.format.messages.asking import LabelStep, RollBack, RolledBack, SetAside, StepLabeled
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.loading import ReleasePin, Resolve, Resolved
from ckpt.protocol.coordinator import catalog
from ckpt.protocol.coordinator.catalog import CatalogEntry
from ckpt.protocol.coordinator.image import CatalogImage
from ckpt.protocol.events import Send, Session
from ckptd.catalog.rebuild import Rebuilt
from tests.sim.asking_node import Asking
from tests.sim.keep_nodes import KeepOracles, KeepWorld
from tests.sim.label_nodes import HERE, RUNS
from tests.sim.oracles import Oracles
from tests.sim.roll_book import NOT, RollBook

Asked = RollBack | LabelStep | Resolve
FOR_GOOD = ("not_found", "refused", "lost")
"""Nothing was changed."""


class RollOracles(KeepOracles):
    """What was set aside stays, and stays so."""

    @cached_property
    def rolls(self) -> RollBook:
        """What people were told."""
        return RollBook()

    def coordinator_started(self, image: CatalogImage) -> None:
        here = [id for id, row in image.rows.items() if row.state in HERE]
        labels = {id: decode_labels(document) for id, document in image.labels.items()}
        self.rolls.check("a restart", here, labels)
        for id in here:
            self.rolls.committed(id)
        super().coordinator_started(image)

    def catalog_wrote(self, entries: tuple[CatalogEntry, ...]) -> None:
        super().catalog_wrote(entries)
        for entry in entries:
            match entry:
                case catalog.RowCommitted(id):
                    self.rolls.committed(id)
                case catalog.CheckpointTombstoned(id, reason):
                    self.rolls.gone(id, reason)


class Roller(Asking[Asked]):
    """I roll one run back, bring something back, or load the newest, and hear how that ended."""

    def __init__(self, world: RollWorld, run: RunName, changes: int) -> None:
        name = f"roller of {run}"
        super().__init__(world, name, changes, f"{name} in {world.seed}")
        self._world, self._run = world, run
        self._bulk = b""
        #: What was committed when I asked.
        self._since: list[CheckpointId] = []

    def received(self, session: Session, request: int, message: Message, bulk: bytes) -> None:
        self._bulk = bulk
        super().received(session, request, message, bulk)

    def _heard(self, asked: Asked, message: Message) -> None:
        book = self._world.rolls
        match message:
            case RolledBack():
                assert isinstance(asked, RollBack)
                book.rolled_back(asked, msgspec.json.decode(self._bulk, type=list[SetAside]))
                self._end("rolled back")
            case StepLabeled(id):
                book.brought_back(id)
                self._end("brought back")
            case Resolved(info, pin, _, skipped):
                book.check_newest(info.checkpoint, () if skipped else self._since)
                assert self._session is not None
                self._network.send(Send(self._session, 0, ReleasePin(pin)))
                self._end("loaded")
            case Failed(code) if code in FOR_GOOD:
                if not isinstance(asked, Resolve):
                    book.unchanged(self._run)
                self._end(f"failed: {code}")
            case _:
                assert isinstance(message, Failed)
                self._end(message.code)

    # ----------------------------------------------------------------------- what is asked

    def _next(self) -> Asked:
        asked, book = self._drawn(), self._world.rolls
        self._since = self._world.oracles.kept(self._run)
        match asked:
            case RollBack():
                book.ask(self._run, book.later(self._run, asked.step), asked.step)
            case LabelStep():
                named = CheckpointId(self._run, asked.step, cast(Generation, asked.generation))
                book.ask(self._run, [named], None)
        return asked

    def _drawn(self) -> Asked:
        rng, book = self._rng, self._world.rolls
        known = sorted(id for id in book.may if id.run == self._run)
        how = rng.choice(["load", "load", "back", "back", "bring", "bring"])
        if how == "back" and known:
            return RollBack(self._run, rng.choice(known).step)
        aside = [id for id in known if book.may[id] != NOT]
        if how == "bring" and aside:
            id = rng.choice(aside)
            return LabelStep(self._run, id.step, id.generation, remove=self._world.names_of(id))
        return Resolve(self._run, None, timeout_us=rng.choice([0, 2_000_000]))


@dataclass
class RollWorld(KeepWorld):
    """Two runs that are rolled back beside saves and rules of retention."""

    oracles_type: ClassVar[type[Oracles]] = RollOracles

    rollers: list[Roller] = field(default_factory=list)

    @property
    def rolls(self) -> RollBook:
        return cast(RollOracles, self.oracles).rolls

    def names_of(self, id: CheckpointId) -> tuple[str, ...]:
        """Under which it may be aside, as people see it; they are told before they can say it."""
        held = self.coordinator.machine.checkpoints.get(id) if self.coordinator.up else None
        named = held.names if held is not None else ()
        return tuple(name for name in named if is_aside((name,))) or (f"aside-{id.step}",)

    def roll(self, changes: int) -> None:
        """Each run's roller begins, or goes on."""
        if not self.rollers:
            self.rollers = [Roller(self, run, 0) for run in RUNS]
        for roller in self.rollers:
            roller.changes = changes
            self.clock.after(self.clock.rng.randint(0, self.gap_us), roller.go_on)

    def rebuilt(self, away: int, *, at_once: bool) -> Rebuilt:
        found = super().rebuilt(away, at_once=at_once)
        labels = {id: decode_labels(document) for id, document in found.image.labels.items()}
        here = {id for id, row in found.image.rows.items() if row.state in HERE}
        self.rolls.check("a rebuild", here, labels)
        return found


def built(seed: int) -> RollWorld:
    return cast(RollWorld, RollWorld.build(seed))
