"""What stays of each run: who may say it hears how that ended, and what is kept never expires.

    asked --StepsKept--> that is how it is
          --Failed, no answer--> that, or what was so before, until somebody is told otherwise
    the catalog is made again from the targets: all stays

The rules are judged here a second time, by other code than the coordinator's; ages by its clock,
whatever that says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
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
    wall_s: Callable[[], float] = float
    """The coordinator's wall clock."""
    set_back_s: float = 0.0
    """By so much from where it was: what expires may have been judged before that."""
    set_ahead_s: float = 0.0
    """By so much, all jumps together: rules by age do not believe it yet."""

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

    def clock_set(self, by_s: float) -> None:
        """The coordinator's wall clock jumps."""
        self.set_back_s = max(0.0, self.set_back_s - by_s)
        self.set_ahead_s += max(0.0, by_s)

    # ----------------------------------------------------------------------- what there is

    def check_committed_at(self, id: CheckpointId, said_s: float) -> None:
        """It is decided at this moment."""
        if said_s != self.wall_s():
            raise Violation(f"{id} is committed at {said_s}, it is {self.wall_s()}")

    def check_catalog(self, retentions: Mapping[RunName, Retention]) -> None:
        """What a restart finds is what was said."""
        for run, may in self.may.items():
            if retentions.get(run) not in may:
                raise Violation(f"{run} keeps {retentions.get(run)}, it should be one of {may}")

    def gone(self, ids: Collection[CheckpointId]) -> None:
        """These expire, together: all rules that may count let them go."""
        now_s = self.wall_s() + self.set_back_s
        for id in ids:
            asides = (self.aside, self.was_aside)
            rules = self.of(id.run)
            if not any(self._lets_go(id, r, aside, now_s) for r in rules for aside in asides):
                raise Violation(f"{id} expires, {self.of(id.run)} keeps it")
        self.expired += len(ids)

    def check_left(
        self, here: Collection[CheckpointId], held: Collection[CheckpointId], late_s: float
    ) -> None:
        """Nobody reads or saves any more: what no rule keeps is gone, by its age `late_s` later.

        What was begun after a step counts as no older than that step, also by a clock that was set
        back in between.
        """
        now_s = self.wall_s() - late_s - self.set_ahead_s - self.set_back_s
        older = {(one.run, one.step): one.generation for one in sorted(held, reverse=True)}
        for id in here:
            covers = older.get((id.run, id.step), id.generation) < id.generation
            if (
                id not in held
                and not covers
                and all(self._lets_go(id, rules, self.aside, now_s) for rules in self.of(id.run))
            ):
                raise Violation(f"{id} is still there, {self.of(id.run)} keeps it not")

    def _lets_go(
        self, id: CheckpointId, rules: Rules, aside: set[CheckpointId], now_s: float
    ) -> bool:
        line = {one: info for one, info in self.committed.items() if one not in aside}
        same = [
            one.generation
            for one in line
            if (one.run, one.step) == (id.run, id.step) and one.generation > id.generation
        ]
        if id in aside or id.generation == max(one.generation for one in line if one.run == id.run):
            return False
        if same:
            return True
        counting = self.clusters if rules is None else rules
        if counting.age_s is not None and now_s - line[id].committed_at_s <= counting.age_s:
            return False
        return not self._keeps(id, counting, _losses(line, id.run))

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
