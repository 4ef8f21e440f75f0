"""What people were told of rollbacks: one owner of each run asks for one at a time, or takes such a
name away, and hears how it ended.

    rollback to S asked --RolledBack--> all that was committed of later steps before it is aside
    a name taken away   --StepLabeled--> what it named is not
                        --Failed for good--> as it was
                        --any other failure, no answer--> one of the two, until told otherwise
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ckpt.base.ids import CheckpointId, Generation, RunName, Step
from ckpt.format.documents.labels import Labels, is_aside
from ckpt.format.messages.asking import RollBack, SetAside
from tests.sim.oracles import Violation

BOTH = frozenset((False, True))
NOT, YES = frozenset((False,)), frozenset((True,))


def aside_of(labels: Mapping[CheckpointId, Labels]) -> set[CheckpointId]:
    """What is set aside by these."""
    return {id for id, said in labels.items() if is_aside(said.names)}


@dataclass(slots=True)
class RollBook:
    """I know what may be aside, and raise Violation at what cannot be."""

    may: dict[CheckpointId, frozenset[bool]] = field(default_factory=dict)
    """Of everything that was committed: whether it may be aside."""
    asked: dict[RunName, list[Step]] = field(default_factory=dict)
    """Rollbacks that may be under way: what is committed meanwhile is aside by them, or not."""
    before: dict[CheckpointId, frozenset[bool]] = field(default_factory=dict)
    """Of what the last change that was asked for touches: as it was."""

    def committed(self, id: CheckpointId) -> None:
        """Durable in the catalog."""
        under_way = any(id.step > step for step in self.asked.get(id.run, ()))
        self.may.setdefault(id, BOTH if under_way else NOT)

    def gone(self, id: CheckpointId, reason: str) -> None:
        """Its tombstone is durable."""
        if self.may.pop(id, NOT) == YES:
            raise Violation(f"{id} is set aside, and goes: {reason}")

    # ----------------------------------------------------------------------- changes

    def later(self, run: RunName, step: Step) -> list[CheckpointId]:
        """All that is committed of later steps."""
        return sorted(id for id in self.may if id.run == run and id.step > step)

    def ask(self, run: RunName, ids: Collection[CheckpointId], to: Step | None) -> None:
        """A change of these is asked for; `to`: by a rollback to that step."""
        self.before = {id: self.may[id] for id in ids}
        self.may.update(dict.fromkeys(ids, BOTH))
        if to is not None:
            self.asked.setdefault(run, []).append(to)

    def unchanged(self, run: RunName) -> None:
        """Its owner was told so."""
        self.asked.pop(run, None)
        self.may.update({id: was for id, was in self.before.items() if id in self.may})

    def rolled_back(self, asked: RollBack, told: Collection[SetAside]) -> None:
        """Its owner was told what is aside now."""
        run = asked.run
        named = {CheckpointId(run, one.step, Generation.parse(one.generation)) for one in told}
        for id in self.later(run, asked.step):
            if id in self.before and id not in named:
                raise Violation(f"{id} was there, {asked} was answered without it")
            self.may[id] = YES if id in named else NOT
        if any(one.step <= asked.step for one in told):
            raise Violation(f"{asked} was answered with {told}")
        self.asked.pop(run, None)

    def brought_back(self, id: CheckpointId) -> None:
        """Its owner was told so."""
        self.asked.pop(id.run, None)
        if id in self.may:
            self.may[id] = NOT

    # ----------------------------------------------------------------------- what there is

    def check_newest(self, id: CheckpointId, since: Collection[CheckpointId]) -> None:
        """Somebody got it as the newest. `since`: what was committed when he asked."""
        if self.may.get(id) == YES:
            raise Violation(f"{id} is set aside, somebody got it as the newest")
        newer = [one for one in since if one > id and self.may.get(one) == NOT]
        if newer:
            raise Violation(f"somebody got {id} as the newest, {newer[-1]} is newer")

    def check(
        self, who: str, here: Collection[CheckpointId], labels: Mapping[CheckpointId, Labels]
    ) -> None:
        """What `who` says of all that is committed."""
        aside = aside_of(labels)
        for id in here:
            if (id in aside) not in self.may.get(id, BOTH):
                raise Violation(f"{who}: {id} is called {labels.get(id)}: {self.may[id]}")
