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

    # ----------------------------------------------------------------------- what there is

    def check_catalog(self, retentions: Mapping[RunName, Retention]) -> None:
        """What a restart finds is what was said."""
        for run, may in self.may.items():
            if retentions.get(run) not in may:
                raise Violation(f"{run} keeps {retentions.get(run)}, it should be one of {may}")

    def gone(self, ids: Collection[CheckpointId]) -> None:
        """These expire, together: all rules that may count let them go."""
        for id in ids:
            if not any(self._lets_go(id, rules) for rules in self.of(id.run)):
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
                and all(self._lets_go(id, rules) for rules in self.of(id.run))
            ):
                raise Violation(f"{id} is still there, {self.of(id.run)} keeps it not")

    def _lets_go(self, id: CheckpointId, rules: Rules) -> bool:
        generations = [one.generation for one in self.committed if one.run == id.run]
        same = [
            one.generation
            for one in self.committed
            if (one.run, one.step) == (id.run, id.step) and one.generation > id.generation
        ]
        if id.generation == max(generations):
            return False
        return bool(same) or not self._keeps(id, self.clusters if rules is None else rules)

    def _keeps(self, id: CheckpointId, rules: Retention) -> bool:
        """Whether the newest generation of its step stays."""
        losses = self._losses(id.run)
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

    def _losses(self, run: RunName) -> dict[Step, float | None]:
        """Of each step of a run that is committed, in its newest generation."""
        newest = {id.step: info for id, info in sorted(self.committed.items()) if id.run == run}
        return {step: info.metrics.get("loss") for step, info in newest.items()}
