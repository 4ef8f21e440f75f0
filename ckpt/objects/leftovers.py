"""Which checkpoints of a store go: those that its own retention leaves over, and those half written
that nobody will finish?

A worker that dies leaves a plan without a marker; the next one finishes it, unless the tier has
deleted the checkpoint meanwhile. Another worker may still be writing such a one, since its pin
outlives the deletion: so a folder goes only after nothing in it has changed for a long time. A
worker that slept even longer is stopped in front of its marker by the missing plan.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

from ckpt.base.errors import NotFound
from ckpt.base.ids import Generation, RunName, Step
from ckpt.objects import names
from ckpt.objects.documents import Plan, decode
from ckpt.objects.sinks.sink import Sink
from ckpt.objects.stored_steps import (
    cluster_of,
    generations_in,
    is_committed,
    newest_generation,
    steps_in,
    stored_generations,
    stored_steps,
    unfinished,
)
from ckpt.objects.writer import abort_uploads, clear_drain
from ckpt.plan.drains import StorePolicy, surplus

LOOKS: Final = 10
"""Looks at an unchanged folder before it is removed."""
WHOLE_LOOKS: Final = 240
"""So many looks after it was found whole a step is looked at again: it may be saved again."""

Key = tuple[RunName, Step, Generation]
Content = tuple[tuple[str, ...], tuple[str, ...]]
"""Keys of objects; names of uploads under way."""


class Leftovers:
    """I watch one store for what is left over; `quiet_s` is how long nothing may have changed."""

    def __init__(
        self, sink: Sink, quiet_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._sink = sink
        self._quiet_s = quiet_s
        self._clock = clock
        self._next_look_s: dict[RunName, float] = {}
        #: What lay at each unfinished generation, and since when it is the same; only of those that
        #: the tier no longer has.
        self._seen: dict[Key, tuple[Content, float]] = {}
        #: Of each run the steps of which all that is there is committed, and how many looks ago
        #: that was found last: a store has ten thousand of them, and one or two that are not.
        self._whole: dict[RunName, dict[Step, int]] = {}

    def is_due(self, run: RunName) -> bool:
        """Whether it is time for another look."""
        return self._clock() >= self._next_look_s.get(run, 0.0)

    def found(
        self, run: RunName, cluster: str, tier: Collection[tuple[Step, Generation]]
    ) -> list[tuple[Step, Generation]]:
        """What may go now. `tier`: all generations of the run there, asked before this."""
        if not self.is_due(run):
            return []
        now_s = self._clock()
        self._next_look_s[run] = now_s + self._quiet_s / LOOKS
        left = [one for one in unfinished(self._sink, run, self._open(run)) if one not in tier]
        gone = [key for key in self._seen if key[0] == run and key[1:] not in left]
        for key in gone:
            del self._seen[key]
        return [one for one in left if self._is_quiet((run, *one), cluster, now_s)]

    def _open(self, run: RunName) -> list[Step]:
        """Steps of which something may be unfinished."""
        before, there = self._whole.get(run, {}), steps_in(self._sink, run)
        whole = {
            step: before[step] + 1
            for step in there
            if step in before and before[step] < WHOLE_LOOKS
        }
        left = [step for step in there if step not in whole]
        whole |= {step: 0 for step in left if self._is_whole(run, step)}
        self._whole[run] = whole
        return [step for step in left if step not in whole]

    def _is_whole(self, run: RunName, step: Step) -> bool:
        found = generations_in(self._sink, run, step)
        return all(is_committed(self._sink, run, step, generation) for generation in found)

    def _is_quiet(self, key: Key, cluster: str, now_s: float) -> bool:
        prefix = names.generation_prefix(*key)
        content = (
            tuple(self._sink.list(prefix)),
            tuple(sorted(upload.upload for upload in self._sink.pending_uploads(prefix))),
        )
        before, since_s = self._seen.get(key, (None, now_s))
        if before != content:
            self._seen[key] = content, now_s
            return False
        return now_s - since_s >= self._quiet_s and self._cluster_of(prefix) == cluster

    def _cluster_of(self, prefix: str) -> str:
        """Whose plan it is; a place that clusters share keeps what the others wrote."""
        try:
            raw = self._sink.get(prefix + names.PLAN)
        except NotFound:
            return ""
        return decode(Plan, raw, f"{self._sink.url}/{prefix}{names.PLAN}").header.cluster


def may_leave_over(sink: Sink, policy: StorePolicy, run: RunName, step: Step) -> bool:
    """Whether the store may have more than its retention lets stay, now that this step is there
    and was not before. That takes two listings, however many steps there are.
    """
    is_crowded = policy.keep is not None and len(steps_in(sink, run)) > policy.keep
    return is_crowded or len(generations_in(sink, run, step)) > 1


def expired_in(
    sink: Sink, policy: StorePolicy, run: RunName, cluster: str,
    stored: Sequence[tuple[Step, Generation]] | None = None,
) -> list[tuple[Step, Generation]]:  # fmt: skip
    """Committed generations that the store's retention leaves over, ascending: of a step that was
    saved again the older one goes first, so that it is never the newest that is there. `stored`:
    all that are there, if the caller has looked.

    Clusters that share a place count their generations each for itself: none of theirs replaces one
    of another's.
    """
    stored = stored_generations(sink, run) if stored is None else stored
    newest = dict(stored)
    replaced = [(step, generation) for step, generation in stored if newest[step] != generation]
    stays = {one for one in replaced if not _are_of(sink, run, one, newest[one[0]], cluster)}
    return surplus(policy, [one for one in stored if one not in stays])


def crowding(
    sink: Sink, policy: StorePolicy, run: RunName, step: Step, cluster: str
) -> dict[Step, str]:
    """Newer steps of other clusters, and whose they are, on whose account the store's retention
    would delete this step as soon as it is there; empty where it stays. One listing, mostly.
    """
    newer = [one for one in steps_in(sink, run) if one > step]
    if policy.keep is None or len(newer) < policy.keep:
        return {}
    owners: dict[Step, str] = {}
    for one in reversed(newer):
        generation = newest_generation(sink, names.step_prefix(run, one))
        if generation is not None:
            owners[one] = cluster_of(sink, run, one, generation)
        if len(owners) == policy.keep:
            return {one: owner for one, owner in owners.items() if owner not in ("", cluster)}
    return {}


def _are_of(
    sink: Sink, run: RunName, one: tuple[Step, Generation], newest: Generation, cluster: str
) -> bool:
    """Whether this cluster committed both."""
    step, generation = one
    return all(cluster_of(sink, run, step, each) == cluster for each in (generation, newest))


def tidy_committed(sink: Sink, run: RunName) -> None:
    """Receipts and uploads of a marker whose writer died before it had cleared them."""
    for key in stored_steps(sink, run):
        prefix = names.generation_prefix(run, *key)
        if sink.children(prefix + names.DRAIN):
            clear_drain(sink, prefix)


def delete_unfinished(sink: Sink, run: RunName, step: Step, generation: Generation) -> None:
    """The plan first: after that nobody commits it. One that was committed meanwhile stays."""
    prefix = names.generation_prefix(run, step, generation)
    sink.delete([prefix + names.PLAN])
    if sink.head(prefix + names.COMMITTED) is None:
        abort_uploads(sink, sink.pending_uploads(prefix))
        sink.delete(list(sink.list(prefix)))
