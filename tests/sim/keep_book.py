"""What stays of each run: who may say it hears how that ended, and what is kept never expires.

    asked --StepsKept--> that is how it is
          --Failed, no answer--> that, or what was so before, until somebody is told otherwise
    the catalog is made again from the targets: all stays

The rules are judged here a second time, by other code than the coordinator's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ckpt.base.ids import CheckpointId, RunName, Step
from ckpt.format.messages.keeping import ALL_STAYS, Better, Retention
from ckpt.format.messages.saving import CommitInfo
from tests.sim.oracles import Violation

Rules = Retention | None
"""None: none of its own, the cluster's count."""


@dataclass(slots=True)
class KeepBook:
    """I know what may be true, and raise Violation at what cannot be."""

    clusters: Retention = ALL_STAYS
    may: dict[RunName, set[Rules]] = field(default_factory=dict)
    """What may count for each run now; absent: nobody has said anything."""
    committed: dict[CheckpointId, CommitInfo] = field(default_factory=dict)
    """As the catalog durably has it, also what is damaged."""
    aside: set[CheckpointId] = field(default_factory=set)
    """By a rollback, as the catalog durably has it; these count for nothing."""
    was_aside: set[CheckpointId] = field(default_factory=set)
    """Before that: what expires may have been judged then."""
    expired: int = 0
    """So many went."""

    def of(self, run: RunName) -> set[Rules]:
        return self.may.get(run, {None})

    def asked(self, run: RunName, rules: Rules) -> None:
        """From now on it may count."""
        self.may[run] = self.of(run) | {rules}

    def told(self, run: RunName, rules: Rules) -> None:
        """Somebody was told that it counts."""
        self.may[run] = {rules}

    def made_again(self, runs: Collection[RunName]) -> None:
        """The catalog knows no rules any more."""
        self.may = {run: {ALL_STAYS} for run in runs}

    def set_aside(self, aside: set[CheckpointId]) -> None:
        """From now on, durably."""
        if aside != self.aside:
            self.was_aside, self.aside = self.aside, aside

    # ----------------------------------------------------------------------- what there is

    def check_catalog(self, retentions: Mapping[RunName, Retention]) -> None:
        """What a restart finds is what was said."""
        for run, may in self.may.items():
            if retentions.get(run) not in may:
                raise Violation(f"{run} keeps {retentions.get(run)}, it should be one of {may}")

    def gone(self, ids: Collection[CheckpointId]) -> None:
        """These expire, together: all rules that may count let them go."""
        for id in ids:
            asides = (self.aside, self.was_aside)
            if not any(self._lets_go(id, r, aside) for r in self.of(id.run) for aside in asides):
                raise Violation(f"{id} expires, {self.of(id.run)} keeps it")
        self.expired += len(ids)

    def check_left(self, here: Collection[CheckpointId], held: Collection[CheckpointId]) -> None:
        """Nobody reads or saves any more: what no rule keeps is gone."""
        older = {(one.run, one.step): one.generation for one in sorted(held, reverse=True)}
        for id in here:
            covers = older.get((id.run, id.step), id.generation) < id.generation
            if (
                id not in held
                and not covers
                and all(self._lets_go(id, rules, self.aside) for rules in self.of(id.run))
            ):
                raise Violation(f"{id} is still there, {self.of(id.run)} keeps it not")

    def _lets_go(self, id: CheckpointId, rules: Rules, aside: set[CheckpointId]) -> bool:
        line = {one: info for one, info in self.committed.items() if one not in aside}
        same = [
            one.generation
            for one in line
            if (one.run, one.step) == (id.run, id.step) and one.generation > id.generation
        ]
        if id in aside or id.generation == max(one.generation for one in line if one.run == id.run):
            return False
        losses = _losses(line, id.run)
        return bool(same) or not self._keeps(id, self.clusters if rules is None else rules, losses)

    def _keeps(
        self, id: CheckpointId, rules: Retention, losses: Mapping[Step, float | None]
    ) -> bool:
        """Whether the newest generation of its step stays."""
        above = sum(step > id.step for step in losses)
        if above == 0 or rules == ALL_STAYS:
            return True
        if rules.last is not None and above < rules.last:
            return True
        if rules.every is not None and id.step % rules.every == 0:
            return True
        if rules.best is None:
            return False
        own = losses[id.step]
        if own is None:
            return rules == Retention(best=rules.best)
        sign = 1 if rules.best.better is Better.MIN else -1
        better = [
            step
            for step, loss in losses.items()
            if loss is not None and (sign * loss, -step) < (sign * own, -id.step)
        ]
        return len(better) < rules.best.count


def _losses(line: Mapping[CheckpointId, CommitInfo], run: RunName) -> dict[Step, float | None]:
    """Of each step of a run that is committed, in its newest generation."""
    newest = {id.step: line[id] for id in sorted(line) if id.run == run}
    return {step: info.metrics.get("loss") for step, info in newest.items()}
