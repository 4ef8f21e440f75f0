"""Who names and pins steps, who deletes some, and the world that they live in."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, cast

from ckpt.base.ids import CheckpointId, RunName, Step
from ckpt.format.documents.labels import Labels, decode_labels
from ckpt.format.messages import Message
from ckpt.format.messages.asking import DeleteStep, LabelStep, StepDeleted, StepLabeled
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.reading import DocumentKind
from ckpt.protocol.coordinator import catalog
from ckpt.protocol.coordinator.catalog import CatalogEntry, RowState
from ckpt.protocol.coordinator.image import CatalogImage
from ckptd.catalog.rebuild import Rebuilt, rebuild
from tests.sim.asking_node import Asking
from tests.sim.catalog_sources import AwaySource, DiskSource
from tests.sim.coordinator_node import CLUSTER
from tests.sim.label_book import BookedChange, LabelBook
from tests.sim.oracles import Oracles, Violation
from tests.sim.world import RUN, World

RUNS = (RUN, RunName("other run"))
FIRST = Step(10)
OWNERS = 3
"""Admins who name and pin; another one deletes."""
HERE = (RowState.COMMITTED, RowState.DAMAGED)


class LabelOracles(Oracles):
    """What was said of a checkpoint holds, and keeps it."""

    @cached_property
    def book(self) -> LabelBook:
        """What people were told."""
        return LabelBook()

    def coordinator_started(self, image: CatalogImage) -> None:
        here = [id for id, row in image.rows.items() if row.state in HERE]
        self.book.came_back(here)
        self.deleted -= set(here)
        # Of one that is deleted and gone everywhere, a rebuild finds nothing.
        gone = self.deleted - image.rows.keys()
        for id in gone:
            self.announced.pop(id, None)
        super().coordinator_started(image)
        labels = {id: decode_labels(document) for id, document in image.labels.items()}
        self.book.check("a restart", here, labels)

    def catalog_wrote(self, entries: tuple[CatalogEntry, ...]) -> None:
        super().catalog_wrote(entries)
        for entry in entries:
            if isinstance(entry, catalog.CheckpointTombstoned):
                self.book.gone(entry.checkpoint, entry.reason)


class AdminOfLabels(Asking[LabelStep | DeleteStep]):
    """One process of an owner after the other: I ask for one change at a time, and repeat what was
    not answered, or go on with another.
    """

    def __init__(self, world: LabelWorld, number: int, changes: int) -> None:
        """The last number deletes, the others own names and pins."""
        name = f"admin{number}"
        super().__init__(world, name, changes, f"{name} of {world.seed}")
        self._world, self._number = world, number
        self._change: BookedChange | None = None
        #: What says again that all is as it was before.
        self._back: list[LabelStep] = []
        #: Something that I asked for may have been done or not, and nobody has looked since.
        self._doubts = False
        #: What may have been done; and what says that it shall not be.
        self._again: list[LabelStep | DeleteStep] = []

    def _heard(self, asked: LabelStep | DeleteStep, message: Message) -> None:
        book = self._world.book
        match message:
            case StepLabeled(id, names, pinned):
                assert isinstance(asked, LabelStep)
                assert self._change is not None
                told = set(asked.add) <= set(names) and not set(asked.remove) & set(names)
                if not told or pinned is not (pinned if asked.pinned is None else asked.pinned):
                    raise Violation(f"{asked} was answered with {message}")
                book.done(id, self._change)
                self._end("done")
            case StepDeleted():
                book.told_deleted(asked.run, asked.step)
                self._end("deleted")
            case Failed("not_found" | "refused" as code):
                if self._change is not None:
                    book.undone(self._change)
                elif code == "refused":
                    book.told_refused(asked.run, asked.step)
                self._end(code)
            case _:
                assert isinstance(message, Failed)
                self._end(message.code)
        if self._doubts and self.ends[-1] == "done":
            self._doubts = False
            self._world.look()

    def _end(self, how: str) -> None:
        self._again = []
        self._doubts = self._doubts or how in ("lost", "unavailable")
        if how in ("lost", "unavailable") and self._asked is not None:
            self._again = [self._asked, *self._back]
        self._change = None
        super()._end(how)

    def _next(self) -> LabelStep | DeleteStep:
        asked = self._drawn()
        self._back = []
        if isinstance(asked, LabelStep):
            self._back = [*self._world.book.before(asked)]
            self._change = self._world.book.asked(asked)
        return asked

    # ----------------------------------------------------------------------- what is asked

    def _drawn(self) -> LabelStep | DeleteStep:
        rng = self._rng
        if self._again and rng.random() < 0.7:
            return rng.choice(self._again)
        run = rng.choice(RUNS)
        step = rng.choice([id.step for id in self._world.oracles.kept(run)] or [FIRST])
        if self._number == OWNERS:
            return DeleteStep(run, step)
        name = f"{rng.choice(['best', 'last'])} of {self.name}"
        pinned = rng.choice([True, True, False])
        own = step // 10 % OWNERS == self._number
        how = rng.choice(["name", "name", "name", "unname", "pin", "pin", "both"])
        if how == "unname":
            held = [at for at in self._world.book.steps_of(run, name) if at is not None]
            return LabelStep(run, rng.choice(held or [step]), remove=(name,))
        if how == "pin" and own:
            return LabelStep(run, step, pinned=pinned)
        return LabelStep(run, step, add=(name,), pinned=pinned if how == "both" and own else None)


@dataclass
class LabelWorld(World):
    """Two runs, whose steps are named, pinned and deleted."""

    oracles_type: ClassVar[type[Oracles]] = LabelOracles

    admins: list[AdminOfLabels] = field(default_factory=list)
    gap_us: int = 0
    """Between two saves."""

    @property
    def book(self) -> LabelBook:
        return cast(LabelOracles, self.oracles).book

    def label(self, changes: int) -> None:
        """All admins begin, some time soon."""
        for number in range(OWNERS + 1):
            admin = AdminOfLabels(self, number, changes if number < OWNERS else changes // 2)
            self.admins.append(admin)
            self.clock.after(self.clock.rng.randint(0, 2 * self.gap_us), admin.dial)

    def label_on(self, changes: int) -> None:
        """Each of them asks for so many more at least."""
        for admin in self.admins:
            begins = not admin.waits
            admin.changes = max(admin.changes, changes)
            if begins:
                admin.go_on()

    # ----------------------------------------------------------------------- what there is

    def rebuilt(self, away: int, *, at_once: bool) -> Rebuilt:
        """What would be made of the targets, without so many of them. `at_once`: while they run."""
        there = [target for target in self.targets.values() if not target.lost]
        left_out = self.clock.rng.sample(there, max(0, away - (len(self.targets) - len(there))))
        sources = [
            AwaySource(target.name) if target in left_out or target.lost
            else DiskSource.at_once(target) if at_once else DiskSource(target)
            for target in self.targets.values()
        ]  # fmt: skip
        found = rebuild(CLUSTER, sources)
        labels = {id: decode_labels(document) for id, document in found.image.labels.items()}
        rows = found.image.rows.items()
        self.book.check("a rebuild", {id for id, row in rows if row.state in HERE}, labels)
        return found

    def look(self) -> None:
        """If the catalog were lost now, with as many targets as may be missed."""
        self.rebuilt(self.coordinator.machine_policy.code.m, at_once=True)

    def check_labels(self) -> None:
        """Of the coordinator that runs; and nothing is left of what is deleted."""
        held = [c for c in self.coordinator.machine.checkpoints.all() if c.state in HERE]
        labels: dict[CheckpointId, Labels] = {c.id: c.labels for c in held if c.labels is not None}
        here = {c.id for c in held}
        self.book.check("the coordinator", here, labels)
        for target in self.targets.values():
            if target.up:
                documents = DiskSource(target).holdings().documents
                of = {id for kind, id in documents if kind is DocumentKind.LABELS}
                if of - here:
                    raise Violation(f"P5: {target.name} has labels of {of - here}, deleted")


def built(seed: int) -> LabelWorld:
    return cast(LabelWorld, LabelWorld.build(seed))
