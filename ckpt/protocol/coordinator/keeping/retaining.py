"""What stays of each run, as people have said it, else as the cluster keeps.

    asked --catalog--> answered, and what is left over goes (deletion.py)

While rules are on their way to the catalog nothing of their run expires: neither the old ones nor
the new ones are known to count. Rules by age act on a slow clock as well as at commits; so does,
once, what a coordinator owed that fell.

Rules of a run are in the catalog alone. One that is made again from the targets has none, so of
every run that it finds all stays, whatever the cluster keeps, until somebody says it again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import UNSET, UnsetType

from ckpt.base.errors import Refused
from ckpt.base.ids import CheckpointId, RunName
from ckpt.format.messages.keeping import (
    ALL_STAYS,
    KeepSteps,
    Retention,
    StepsKept,
    check_retention,
)
from ckpt.format.messages.saving import AgedAt, CommitInfo
from ckpt.plan.keeping.aging import AgeClock, newest_commit_s
from ckpt.plan.keeping.foresight import foreseen
from ckpt.plan.keeping.retention import Expirable, Verdict, judged
from ckpt.protocol.coordinator.catalog import RowState
from ckpt.protocol.coordinator.desk import Desk
from ckpt.protocol.coordinator.facts import RetentionDue
from ckpt.protocol.coordinator.keeping.checkpoints import Checkpoints, KeptCheckpoint
from ckpt.protocol.coordinator.keeping.draining import DrainQueue
from ckpt.protocol.coordinator.said import RetentionSaid
from ckpt.protocol.events import Session

LOOK_US: Final = 60_000_000
"""How often rules by age are applied without a commit."""
RUNS_MAX: Final = 10_000
"""Runs with rules of their own; the rows of all are read at a start."""


class Retaining:
    """I know the rules, and judge by them; Deleter acts on it."""

    def __init__(
        self,
        desk: Desk,
        checkpoints: Checkpoints,
        drains: DrainQueue,
        said: Mapping[RunName, Retention],
        *,
        keep: int | None,
        wall_s: Callable[[], float],
    ) -> None:
        """keep: how many steps of a run stay that has no rules of its own; None: all."""
        self._desk = desk
        self._checkpoints = checkpoints
        self._drains = drains
        self.clusters = Retention(last=keep)
        """For runs that have no rules of their own."""
        self._wall_s = wall_s
        #: Of rules by age, from `begin` on.
        self._ages = AgeClock(None)
        #: Of runs that have rules of their own, durable; without any rule: they are lost.
        self._said = dict(said)
        #: Changes of a run that are not durable yet.
        self._coming: Counter[RunName] = Counter()
        #: When to look next; None before the first tick.
        self._look_us: int | None = None
        #: What a coordinator before may have left when it fell: until the first look, every run.
        self._owes = True

    def begin(self) -> None:
        """Begin: all that was committed is known now."""
        dates = [
            (one.id.generation, _aged_at_s(one.info))
            for run in self._checkpoints.runs()
            for one in self._checkpoints.of_run(run, RowState.COMMITTED)
        ]
        self._ages = AgeClock(newest_commit_s(dates))

    def aged_at_s(self) -> AgedAt:
        """What a commit of now is to say of its time beside the wall clock's."""
        doubted_s = self._ages.doubted_s(self._desk.now_us, self._wall_s())
        return UNSET if doubted_s is None else doubted_s

    def own(self, run: RunName) -> Retention | None:
        """The run's own rules; None if it has none, ALL_STAYS if they were lost."""
        return self._said.get(run)

    def counting(self, run: RunName) -> Retention:
        """The rules in force for a run."""
        return self._said.get(run, self.clusters)

    def lost(self) -> list[RunName]:
        """Runs whose rules were lost with an earlier catalog, while the cluster's would delete
        steps.
        """
        if self.clusters == ALL_STAYS:
            return []
        return [run for run in self._checkpoints.runs() if self.own(run) == ALL_STAYS]

    def keep_steps(self, session: Session, request: int, message: KeepSteps) -> None:
        """Answered when it is durable. Raises Refused for what is no rule."""
        run, retention = message.run, message.retention
        if retention is not None:
            check_retention(retention)
            if run not in self._said and len(self._said) >= RUNS_MAX:
                text = f"{RUNS_MAX} runs have rules of their own: no more are allowed"
                raise Refused(text, hint="take some away: ckpt keep RUN --none")
        self._coming[run] += 1

        def durable() -> None:
            self._coming[run] -= 1
            if retention is None:
                self._said.pop(run, None)
            else:
                self._said[run] = retention
            self._desk.send(session, request, StepsKept(run, retention))
            self._desk.tell(RetentionDue(run))

        self._desk.persist((RetentionSaid(run, retention),), durable)

    def tick(self) -> None:
        """Time alone makes steps expire; and a coordinator may have fallen between a commit and
        what it leaves over. Readers that it knew have a minute to come back.
        """
        now_us = self._desk.now_us
        self._now_s()
        if self._look_us is None:
            self._look_us = now_us + LOOK_US
        if now_us < self._look_us:
            return
        self._look_us = now_us + LOOK_US
        aging = sorted(run for run, rules in self._said.items() if rules.age_s is not None)
        runs = self._checkpoints.runs() if self._owes else aging
        self._owes = False
        for run in runs:
            self._desk.tell(RetentionDue(run))

    def expired(self, run: RunName) -> list[KeptCheckpoint]:
        """What is to be deleted now."""
        held = self._checkpoints.of_run(run, RowState.COMMITTED, RowState.DAMAGED)
        # Each reader that ends asks: where nothing can go, no step is judged.
        is_single = len({one.id.step for one in held}) == len(held)
        if self._coming[run] or (is_single and self.counting(run) == ALL_STAYS):
            return []
        gone = {(v.step, v.generation) for v in self.verdicts(run) if not v.stays}
        return [one for one in held if (one.id.step, one.id.generation) in gone]

    def verdicts(self, run: RunName, retention: Retention | None = None) -> list[Verdict]:
        """What would become of each generation, ascending; by default under the rules in force."""
        rules = self.counting(run) if retention is None else retention
        committed = self._checkpoints.of_run(run, RowState.COMMITTED)
        newest = {one.id.step: one for one in committed}
        damaged = self._checkpoints.of_run(run, RowState.DAMAGED)
        verdicts = [
            _of_damaged(one, newest.get(one.id.step)) or self._of_stored(one, rules)
            for one in damaged
        ]
        verdicts += judged(self._expirable(run), rules, self._now_s())
        return sorted(verdicts, key=lambda verdict: (verdict.step, verdict.generation))

    def _of_stored(self, one: KeptCheckpoint, rules: Retention) -> Verdict:
        """What is lost stays until somebody lets it go. What an object store has goes when it would
        have gone unharmed, and nothing goes for it.
        """
        key = one.id.step, one.id.generation
        stays = Verdict(*key, True, "damaged")
        if not self._drains.holding(one.id):
            return stays
        expirable = [*self._expirable(one.id.run), _as_expirable(one, "")]
        found = judged(expirable, rules, self._now_s())
        return next((v for v in found if (v.step, v.generation) == key and not v.stays), stays)

    def leaves_within(self, id: CheckpointId, seconds: float) -> bool:
        """Whether it will have expired by then, if its run goes on as it did, and nothing else
        needs it.
        """
        rules, checkpoint = self.counting(id.run), self._checkpoints.get(id)
        if checkpoint is None or checkpoint.users:
            return False
        if self._coming[id.run] or rules == ALL_STAYS:
            return False
        # Without ages dates only say how fast the run saves, and they are the wall clock's.
        now_s = self._wall_s() if rules.age_s is None else self._now_s()
        verdicts = foreseen(self._expirable(id.run), rules, now_s, seconds)
        mine = (v for v in verdicts if (v.step, v.generation) == (id.step, id.generation))
        return any(not verdict.stays for verdict in mine)

    def _now_s(self) -> float:
        return self._ages.now_s(self._desk.now_us, self._wall_s())

    def _expirable(self, run: RunName) -> list[Expirable]:
        needed = self._drains.needed(run)
        lost = self._checkpoints.of_run(run, RowState.DAMAGED)
        # Its names come with it when it is saved again, after its commit.
        kept = {one.id.step for one in lost if one.is_kept and not one.is_aside}
        found = []
        for one in self._checkpoints.of_run(run, RowState.COMMITTED):
            held = _held_text(one, (one.id.step, one.id.generation) in needed)
            if not held and one.id.step in kept:
                held = "what it replaces is called by a name or pinned"
            found.append(_as_expirable(one, held))
        return found


def _aged_at_s(info: CommitInfo) -> float:
    return info.committed_at_s if isinstance(info.aged_at_s, UnsetType) else info.aged_at_s


def _as_expirable(one: KeptCheckpoint, held: str) -> Expirable:
    info = one.info
    step, generation = one.id.step, one.id.generation
    return Expirable(
        step, generation, info.committed_at_s, info.metrics, held=held, aside=one.is_aside
    )


def _held_text(one: KeptCheckpoint, is_needed: bool) -> str:
    """Who holds it, whatever the rules say; empty when nobody does."""
    if not (one.is_kept or one.pins or is_needed):
        return ""
    reasons = [
        "pinned" if one.is_pinned else "",
        f"called {', '.join(map(repr, one.names))}" if one.names else "",
        "its names are being changed" if one.unsettled else "",
        "somebody reads it" if one.pins else "",
        "an object store waits for it" if is_needed else "",
    ]
    return "; ".join(filter(None, reasons))


def _of_damaged(one: KeptCheckpoint, again: KeptCheckpoint | None) -> Verdict | None:
    """While somebody holds it it stays; it goes when its step was saved, or fetched, again."""
    step, generation = one.id.step, one.id.generation
    if held := _held_text(one, is_needed=False):
        return Verdict(step, generation, True, f"damaged; {held}")
    if again is None or again.id.generation < generation:
        return None
    return Verdict(step, generation, False, f"damaged, and replaced by {again.id.generation}")
