"""Bringing one object store up to date: what is committed and not there yet, oldest first.

    due --TierSource, pinned--> write_checkpoint (resumes, verifies, commits once) --> retention

What survives a crash lies in the store itself: a checkpoint's plan, the receipts of its items, its
marker. Several workers may serve one store: they follow one plan, and what both write is equal.
A checkpoint that fails is tried again after the others; its error is told.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from ckpt.base.errors import Aborted, CkptError, Refused
from ckpt.base.ids import Generation, RunName, Step
from ckpt.objects.drain_state import StoreView
from ckpt.objects.leftovers import Leftovers, delete_unfinished
from ckpt.objects.names import COMMITTED, generation_prefix
from ckpt.objects.planning import WriteOptions
from ckpt.objects.reader import remains, stored_steps
from ckpt.objects.sink import Sink
from ckpt.objects.tier_source import TierSource
from ckpt.objects.writer import WriteLimits, write_checkpoint
from ckpt.plan.drains import Committed, StorePolicy, due, surplus
from ckpt.protocol.coordinator.views import StepView
from ckptd.drain_watch import Watch, committed
from ckptd.log import Reporter

FAILED_REST_S: Final = 30.0
"""Before a checkpoint that failed is tried again."""


@dataclass(frozen=True, slots=True)
class Reach:
    """Where the tier is."""

    address: str
    secret: bytes
    name: str


class StoreWorker:
    """I serve one store in my owner's thread: `run` until `stopped` is set."""

    def __init__(
        self,
        policy: StorePolicy,
        sink: Sink,
        watch: Watch,
        reach: Reach,
        options: WriteOptions,
        limits: WriteLimits,
        report: Reporter,
        clock: Callable[[], float] = time.monotonic,
        *,
        quiet_s: float,
        single_writer: bool = False,
    ) -> None:
        self.view = StoreView(policy.url, "idle")
        """Replaced as a whole; read by the thread that tells the state."""
        self._policy = policy
        self._sink = sink
        self._watch = watch
        self._reach = reach
        self._options = options
        self._limits = limits
        self._report = report
        self._clock = clock
        self._single_writer = single_writer
        self._leftovers = Leftovers(sink, quiet_s, clock)
        self._cluster_id = ""
        #: When a checkpoint that failed may be tried again.
        self._rest_until_s: dict[tuple[RunName, Step, Generation], float] = {}
        #: Runs that this process has met, and whose remains it looked for then.
        self._seen: set[RunName] = set()
        self._written_bytes = 0
        self._draining_s = 0.0
        self._lock = threading.Lock()

    def run(self, stopped: threading.Event, poll_s: float) -> None:
        """Until stopped; what is under way then is left to the next process."""
        while not stopped.is_set():
            try:
                if not self.drain_next():
                    stopped.wait(poll_s)
            except CkptError as error:
                self._tell(state="failing", error=error.message)
                self._report("warning", "cannot drain", {"url": self._policy.url, "reason": str(error)})  # fmt: skip
                stopped.wait(poll_s)

    def drain_next(self) -> bool:
        """Drain the oldest that is due; False when nothing is. Raises CkptError."""
        waiting = self._waiting()
        self._tell_backlog(waiting)
        self._check_store()
        now_s = self._clock()
        ready = [one for one in waiting if self._rest_until_s.get(_key(one), 0.0) <= now_s]
        if not ready:
            return False
        self._drain(ready[0])
        return True

    def _check_store(self) -> None:
        """Raises Refused when two workers could not be kept from each other's marker."""
        self._tell(conditional=self._sink.conditional)
        if not self._sink.conditional and not self._single_writer:
            raise Refused(
                f"{self._policy.url} does not create objects conditionally",
                hint="run one worker alone for it, with single_writer=true",
            )

    def _waiting(self) -> list[Committed]:
        """All that is due, oldest commit first."""
        found: list[Committed] = []
        # Also runs of which the tier has deleted the last step since.
        for run in sorted({*self._watch.runs(), *self._seen}):
            if self._policy.wants(run):
                if run not in self._seen:
                    self._expire(run)
                    self._seen.add(run)
                views = self._watch.steps(run)
                self._abandon(run, views)
                found += due(self._policy, committed(views), stored_steps(self._sink, run))
        return sorted(found, key=lambda one: (one.committed_at_s, one.run, one.step))

    def _drain(self, one: Committed) -> None:
        name = f"{one.run}@{one.step}"
        self._tell(state="draining", checkpoint=name, written_bytes=0, error="")
        self._report("info", "draining", {"url": self._policy.url, "checkpoint": name})
        begun_s = self._clock()
        try:
            source = TierSource.open(
                self._reach.address,
                one.run,
                one.step,
                secret=self._reach.secret,
                name=self._reach.name,
            )
            try:
                marker = write_checkpoint(
                    self._sink, source, self._options, self._limits, self._wrote
                )
            finally:
                source.close()
        except Aborted:
            return  # Stopped; the next process goes on from here.
        except CkptError as error:
            self._rest_until_s[_key(one)] = self._clock() + FAILED_REST_S
            self._tell(state="failing", error=f"{name}: {error.message}")
            self._report("error", "draining failed", {"checkpoint": name, "reason": str(error)})
            return
        finally:
            self._draining_s += self._clock() - begun_s
        self._report(
            "info",
            "drained",
            {"url": self._policy.url, "checkpoint": name, "manifest": marker.xxh3_128},
        )
        self._tell(state="idle", checkpoint="", last=name, drained=self.view.drained + 1)
        self._expire(one.run)

    def _expire(self, run: RunName) -> None:
        """Delete what the store's own retention leaves over: its marker first, then the rest."""
        for step, generation in surplus(self._policy, stored_steps(self._sink, run)):
            delete_stored(self._sink, run, step, generation)
            fields = {"url": self._policy.url, "checkpoint": f"{run}@{step}#{generation}"}
            self._report("info", "expired in the store", fields)
        # Also what an earlier deletion left when it was interrupted.
        for step, generation in remains(self._sink, run):
            delete_stored(self._sink, run, step, generation)

    def _abandon(self, run: RunName, views: Sequence[StepView]) -> None:
        """Delete what was half drained when the tier deleted it."""
        tier = {(Step(view.step), Generation.parse(view.generation)) for view in views}
        for step, generation in self._leftovers.found(run, self._cluster(), tier):
            delete_unfinished(self._sink, run, step, generation)
            fields = {"url": self._policy.url, "checkpoint": f"{run}@{step}#{generation}"}
            self._report("warning", "abandoned: the tier deleted it half drained", fields)

    def _cluster(self) -> str:
        if not self._cluster_id:
            self._cluster_id = self._watch.cluster()
        return self._cluster_id

    def _wrote(self, byte_count: int) -> None:
        """Called by the writer's threads."""
        with self._lock:
            self._written_bytes += byte_count
            self._tell(written_bytes=self.view.written_bytes + byte_count)

    def _tell_backlog(self, waiting: Sequence[Committed]) -> None:
        rate = self._written_bytes / self._draining_s if self._draining_s else 0.0
        left = sum(one.payload_bytes for one in waiting)
        self._tell(
            state="idle" if not waiting else self.view.state,
            backlog=len(waiting),
            backlog_bytes=left,
            oldest_undrained_at_s=waiting[0].committed_at_s if waiting else 0.0,
            bytes_per_s=rate,
            end_in_s=left / rate if rate else 0.0,
        )

    def _tell(self, **changes: object) -> None:
        self.view = msgspec.structs.replace(self.view, **changes)


def delete_stored(sink: Sink, run: RunName, step: Step, generation: Generation) -> None:
    """Remove a stored generation. It stops being a checkpoint with the first deletion."""
    prefix = generation_prefix(run, step, generation)
    sink.delete([prefix + COMMITTED])
    sink.delete(list(sink.list(prefix)))


def _key(one: Committed) -> tuple[RunName, Step, Generation]:
    return one.run, one.step, one.generation
