"""What people were told of names and pins: each name of a run, and the pin of each step, has one
owner, who changes one thing at a time and hears how it ended.

    asked --StepLabeled--> that is how it is
          --NotFound, Refused--> it is as it was
          --any other failure, no answer--> one of the two, until the owner is told otherwise
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from ckpt.base.ids import CheckpointId, RunName, Step
from ckpt.format.documents.labels import Labels
from ckpt.format.messages.asking import LabelStep
from tests.sim.oracles import Violation

Name = tuple[RunName, str]
Pin = tuple[RunName, Step]
ON_REQUEST = "deleted on request"


@dataclass(frozen=True, slots=True)
class BookedChange:
    """A change that was asked for. Of what it touches: as it was, and as it will be."""

    names: dict[Name, tuple[set[Step | None], set[Step | None]]]
    pins: dict[Pin, tuple[set[bool], set[bool]]]


@dataclass(slots=True)
class LabelBook:
    """I know what may be true, and raise Violation at what cannot be."""

    names: dict[Name, set[Step | None]] = field(default_factory=dict)
    """Which step may have it."""
    pins: dict[Pin, set[bool]] = field(default_factory=dict)
    ever_pinned: set[Pin] = field(default_factory=set)
    """Of these somebody asked for it at least."""
    tombstoned: dict[CheckpointId, str] = field(default_factory=dict)
    """Why: durable in the catalog, whether anybody was told or not."""
    revived: dict[CheckpointId, str] = field(default_factory=dict)
    """Likewise, in a catalog that is lost: a target that was away since may have the tombstone."""
    deleted: set[Pin] = field(default_factory=set)
    """Somebody was told that it is deleted."""

    def steps_of(self, run: RunName, name: str) -> set[Step | None]:
        return self.names.get((run, name), {None})

    # ----------------------------------------------------------------------- changes

    def asked(self, change: LabelStep) -> BookedChange:
        """From now on it may be done."""
        run, step = change.run, change.step
        names: dict[Name, tuple[set[Step | None], set[Step | None]]] = {}
        for name in change.remove:
            before = self.steps_of(run, name)
            names[run, name] = before, {None if at == step else at for at in before}
        for name in change.add:
            names[run, name] = self.steps_of(run, name), {step}
        pins = {}
        if change.pinned is not None:
            pins[run, step] = self.pins.get((run, step), {False}), {change.pinned}
            if change.pinned:
                self.ever_pinned.add((run, step))
        for key, (before, after) in names.items():
            self.names[key] = before | after
        for pin, (was, will) in pins.items():
            self.pins[pin] = was | will
        return BookedChange(names, pins)

    def before(self, change: LabelStep) -> Iterator[LabelStep]:
        """What asks for what is so before it, as far as that is known."""
        run = change.run
        for name in (*change.add, *change.remove):
            for at in self.steps_of(run, name):
                if at is not None:
                    yield LabelStep(run, at, add=(name,))
                else:
                    yield LabelStep(run, change.step, remove=(name,))
        if change.pinned is not None:
            yield LabelStep(run, change.step, pinned=not change.pinned)

    def done(self, id: CheckpointId, change: BookedChange) -> None:
        """Its owner was told so. What is gone by then was never to be had."""
        self.names.update({key: after for key, (_, after) in change.names.items()})
        self.pins.update({key: after for key, (_, after) in change.pins.items()})
        if id in self.tombstoned and self._holds(id):
            self._check_may_go(id, self.tombstoned[id])

    def undone(self, change: BookedChange) -> None:
        """Its owner was told that nothing was changed."""
        self.names.update({key: before for key, (before, _) in change.names.items()})
        self.pins.update({key: before for key, (before, _) in change.pins.items()})

    # ----------------------------------------------------------------------- deletions

    def gone(self, id: CheckpointId, reason: str) -> None:
        """Its tombstone is durable in the catalog."""
        self.tombstoned[id] = reason
        self._check_may_go(id, reason)

    def told_deleted(self, run: RunName, step: Step) -> None:
        self.deleted.add((run, step))
        if self._is_pinned(run, step):
            raise Violation(f"{run}@{step} is pinned, somebody was told that it is deleted")

    def told_refused(self, run: RunName, step: Step) -> None:
        if (run, step) not in self.ever_pinned:
            raise Violation(f"{run}@{step} was never pinned, and is not deleted")

    def _holds(self, id: CheckpointId) -> bool:
        named = any(at == {id.step} for (run, _), at in self.names.items() if run == id.run)
        return named or self._is_pinned(id.run, id.step)

    def _is_pinned(self, run: RunName, step: Step) -> bool:
        return self.pins.get((run, step)) == {True}

    def _check_may_go(self, id: CheckpointId, reason: str) -> None:
        if self._is_pinned(id.run, id.step) or (reason != ON_REQUEST and self._holds(id)):
            raise Violation(f"{id} has a name or is pinned, and goes: {reason}")

    # ----------------------------------------------------------------------- what there is

    def came_back(self, here: Collection[CheckpointId]) -> None:
        """These are committed: a tombstone of them was only in the catalog, which is lost."""
        for id in set(here) & self.tombstoned.keys():
            if (id.run, id.step) in self.deleted:
                raise Violation(f"P1: {id} is there again, somebody was told that it is deleted")
            self.revived[id] = self.tombstoned.pop(id)

    def check(
        self, who: str, here: Collection[CheckpointId], labels: Mapping[CheckpointId, Labels]
    ) -> None:
        """What `who` says of all that is committed."""
        found: dict[Name, Step] = {}
        for id in sorted(labels):
            for name in labels[id].names:
                if (id.run, name) in found:
                    raise Violation(f"{who}: {name} is of {found[id.run, name]} and of {id}")
                found[id.run, name] = id.step
        for key, may in self.names.items():
            if found.get(key) not in may and not (key not in found and self._went(key[0], may)):
                raise Violation(f"{who}: {key} is of {found.get(key)}, it should be of {may}")
        for problem in self._wrong_pins(here, labels):
            raise Violation(f"{who}: {problem}")

    def _wrong_pins(
        self, here: Collection[CheckpointId], labels: Mapping[CheckpointId, Labels]
    ) -> Iterator[str]:
        by_step = {(id.run, id.step): id for id in here}
        for pin, may in self.pins.items():
            id = by_step.get(pin)
            if id is None and may == {True} and not self._went(pin[0], {pin[1]}):
                yield f"{pin} is pinned, and not there"
            elif id is not None and (id in labels and labels[id].pinned) not in may:
                yield f"{id} is {labels.get(id)}, it should be {may}"

    def _went(self, run: RunName, may: set[Step | None]) -> bool:
        """Whether the name may have gone with its step."""
        known = {**self.revived, **self.tombstoned}
        why = {id.step: reason for id, reason in known.items() if id.run == run}
        steps = [step for step in may if step is not None]
        return any(why.get(step) == ON_REQUEST for step in steps) or all(
            step in why for step in steps
        )
