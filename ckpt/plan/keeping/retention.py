"""Which committed generations of a run stay, which go, and why: said in words.

    last=2, every=100        step 100 #1.1   step 150 #1.2   step 200 #1.5   step 300 #1.3
                             every 100       expires         the last 2      the newest step

The rules of a run are a union: what one of them keeps stays. A step that a rule says nothing of,
because its save gave no such metric, is kept by it only when there is no other rule: `best` alone
must not delete what it cannot judge.

Invariants: what is held stays. The generation that was committed last stays, also when it belongs
to an old step (a run that was set back). The newest step's newest generation stays. What a rollback
has set aside stays and counts for nothing: it takes no other's place. A generation that a newer one
of its step replaced goes as soon as nobody holds it, whatever the rules say; and while somebody
does, or it is aside, the newer one stays too: a load of the step must not get older bytes than were
acknowledged, nor an older metric count for the step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ckpt.base.ids import Generation, Step
from ckpt.base.units import format_age
from ckpt.format.messages.keeping import ALL_STAYS, Best, Better, Retention


@dataclass(frozen=True, slots=True)
class Expirable:
    """A committed generation."""

    step: Step
    generation: Generation
    committed_at_s: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    held: str = ""
    """Why it stays whatever the rules say, such as `pinned`; empty: nothing holds it."""
    aside: bool = False
    """By a rollback."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of one."""

    step: Step
    generation: Generation
    stays: bool
    reason: str


def judged(
    committed: Sequence[Expirable], retention: Retention, now_s: float = 0.0
) -> list[Verdict]:
    """One for each, ascending by (step, generation).

    committed: all of a run, in any order.
    now_s: for `age_s`, of the clock that said when they were committed.
    """
    ordered = sorted(committed, key=lambda one: (one.step, one.generation))
    if not ordered:
        return []
    line = [one for one in ordered if not one.aside]
    newest = {one.step: one for one in line}
    # What was replaced goes whatever the rules say: who is young by its date would age as it goes.
    lasting = [one for one in ordered if one.held or one.aside or one is newest.get(one.step)]
    kept = _kept_by_rules(list(newest.values()), _dated(lasting), retention, now_s)
    for one in ordered:
        later = newest.get(one.step, one)
        if (one.held or one.aside) and one.generation < later.generation:
            kept[one.step].append(f"replaced {one.generation} ({one.held or 'aside'})")
    last = max(line, key=lambda one: (one.generation, one.step), default=None)
    beyond = f"not among {retention_text(retention)}"
    verdicts = []
    for one in ordered:
        reasons = [one.held or "aside"] if one.held or one.aside else []
        if one is last and one is not line[-1]:
            reasons.append("committed last")
        if one is newest.get(one.step):
            reasons += kept[one.step]
        stays = bool(reasons)
        if stays:
            reason = "; ".join(reasons)
        elif one is newest.get(one.step):
            reason = beyond
        else:
            reason = f"replaced by {newest[one.step].generation}"
        verdicts.append(Verdict(one.step, one.generation, stays, reason))
    return verdicts


def expired(
    committed: Sequence[tuple[Step, Generation]], keep: int | None
) -> list[tuple[Step, Generation]]:
    """What goes, ascending, where nothing is held: `keep` newest steps stay; None keeps all."""
    expirable = [Expirable(*one) for one in committed]
    verdicts = judged(expirable, Retention(last=keep))
    return [(one.step, one.generation) for one in verdicts if not one.stays]


def retention_text(retention: Retention) -> str:
    """`the last 5; every 1000; the best 3 by loss (min); younger than 7 d`."""
    rules = [
        f"the last {retention.last}" if retention.last is not None else "",
        f"every {retention.every}" if retention.every is not None else "",
        _best_text(retention.best) if retention.best is not None else "",
        f"younger than {format_age(retention.age_s)}" if retention.age_s is not None else "",
    ]
    return "; ".join(filter(None, rules)) or "all"


def _best_text(best: Best) -> str:
    return f"the best {best.count} by {best.metric} ({best.better.value})"


def _dated(committed: Iterable[Expirable]) -> dict[Generation, float]:
    """When each was committed at the latest, as far as others say: what was begun later was not
    committed earlier, whatever the clock said by then.
    """
    dated: dict[Generation, float] = {}
    latest_s = -math.inf
    for one in sorted(committed, key=lambda one: one.generation):
        dated[one.generation] = latest_s = max(latest_s, one.committed_at_s)
    return dated


def _kept_by_rules(
    steps: Sequence[Expirable], dated: Mapping[Generation, float], retention: Retention,
    now_s: float,
) -> dict[Step, list[str]]:  # fmt: skip
    """Which rules say that a step stays. `steps`: the newest generation of each, ascending."""
    kept: dict[Step, list[str]] = {one.step: [] for one in steps}

    def keep(why: str, stay: Iterable[Expirable]) -> None:
        for one in stay:
            kept[one.step].append(why)

    keep("the newest step", steps[-1:])
    if retention == ALL_STAYS:
        keep("no rule takes it away", steps)
    if retention.last is not None:
        keep(f"the last {retention.last}", steps[-retention.last :])
    if retention.every is not None:
        every = retention.every
        keep(f"every {every}", (one for one in steps if one.step % every == 0))
    if retention.age_s is not None:
        since_s = now_s - retention.age_s
        young = (one for one in steps if dated[one.generation] >= since_s)
        keep(f"younger than {format_age(retention.age_s)}", young)
    if retention.best is not None:
        metric = retention.best.metric
        keep(_best_text(retention.best), _best(steps, retention.best))
        if retention == Retention(best=retention.best):
            unknown = (one for one in steps if metric not in one.metrics)
            keep(f"its save gave no {metric}", unknown)
    return kept


def _best(steps: Sequence[Expirable], best: Best) -> list[Expirable]:
    """Of equal values the later steps."""
    sign = 1 if best.better is Better.MIN else -1
    known = [one for one in reversed(steps) if best.metric in one.metrics]
    return sorted(known, key=lambda one: sign * one.metrics[best.metric])[: best.count]
