"""Bringing one object store up to date, beside other workers: what the queue says, oldest first.

    lease --TierSource, pinned--> write_checkpoint (parts shared, verified, one marker) --> ended

What survives a crash lies in the store itself: a checkpoint's plan, the receipts of its items, its
marker. Who writes which item is the queue's business (ckptd.drain.queue); what two workers write
all the same, since one of them was thought dead, is equal.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from ckpt.aio.clock import draw
from ckpt.aio.net.rpc import RpcClient
from ckpt.base.errors import Aborted, Busy, CkptError, NotFound, Refused
from ckpt.base.ids import CheckpointId, Generation, RunName, Step
from ckpt.base.rests import Rests
from ckpt.objects.leftovers import (
    Leftovers,
    crowding,
    delete_unfinished,
    expired_in,
    may_leave_over,
    tidy_committed,
)
from ckpt.objects.names import COMMITTED, generation_prefix
from ckpt.objects.planning import WriteOptions
from ckpt.objects.sinks.sink import Sink
from ckpt.objects.stored_steps import (
    cluster_of,
    is_committed,
    remains,
    steps_in,
    stored_by,
    stored_generations,
)
from ckpt.objects.tier_source import TierSource
from ckpt.objects.writer import WriteLimits, write_checkpoint
from ckpt.plan.drains import StorePolicy, surplus
from ckptd.drain.queue import Heartbeat, QueueClient, SharedParts
from ckptd.drain.watch import CoordinatorWatch
from ckptd.log import reporter
from ckptd.scarcity import scarcity_is_unavailable

TELL_COUNT_MAX: Final = 16
LOOK_AGAIN_S: Final = 3600.0
"""So often a store is looked at where nothing is drained: somebody may have emptied it."""
NAMED_MAX: Final = 8
SCARCE: Final = (
    "more memory or more processes for the drain, or less memory_bytes, fewer threads, fewer stores"
)
REST_S_MAX: Final = 10.0
"""Pause between two tries of a store that fails; each failure is logged."""


@dataclass(frozen=True, slots=True)
class Reach:
    """Where the tier is."""

    address: str
    secret: bytes
    name: str


class StoreWorker:
    """I serve one store, in the thread that calls `run`."""

    def __init__(
        self,
        policy: StorePolicy,
        sink: Sink,
        rpc: RpcClient,
        reach: Reach,
        options: WriteOptions,
        limits: WriteLimits,
        *,
        quiet_s: float,
    ) -> None:
        """`rpc` asks the coordinator that `reach` names. What the tier deleted half drained stays
        for `quiet_s`: others may still be writing it.
        """
        self._policy = policy
        self._sink = sink
        self._watch = CoordinatorWatch(rpc)
        self._queue = QueueClient(rpc, policy, reach.name)
        self._reach = reach
        self._options = options
        self._limits = limits
        self._report = reporter("ckptd.drain.daemon")
        self._leftovers = Leftovers(sink, quiet_s)
        self._is_open = False
        self._in_trouble = False
        #: Of each run, what of it the queue counts on, as this process has said since it opened
        #: the store.
        self._sent: dict[RunName, set[tuple[Step, Generation]]] = {}
        self._look_due_s = 0.0
        self._written_bytes = 0
        self._draining_s = 0.0
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return self._policy.url

    def run(self, poll_s: float, stopped: threading.Event) -> None:
        """Serve until `stopped` is set; what is under way then is left to the next process."""
        heartbeat = Heartbeat(self._queue, self._stands)
        self._limits.pace.is_stopped = lambda: stopped.is_set() or heartbeat.lost.is_set()
        rests = Rests(poll_s, max(poll_s, REST_S_MAX), draw)
        try:
            while not stopped.is_set():
                try:
                    with scarcity_is_unavailable(SCARCE):
                        is_busy = self._drain_next(heartbeat)
                    if not is_busy:
                        stopped.wait(poll_s)
                    rests.begin_again()
                except CkptError as error:
                    if isinstance(error, NotFound):
                        self._is_open = False  # The coordinator forgot it, or the bucket is gone.
                    self._report("warning", "cannot drain", {"url": self.url, "reason": str(error)})
                    self._tell_trouble(str(error))
                    stopped.wait(rests.next_s())
        finally:
            heartbeat.close()

    # ----------------------------------------------------------------------- what is there

    def _drain_next(self, heartbeat: Heartbeat) -> bool:
        """Drain what the queue leases; False when that is nothing. Raises CkptError."""
        if not self._is_open:
            self._open()
        is_due = time.monotonic() >= self._look_due_s
        if is_due:
            self._look_due_s = time.monotonic() + LOOK_AGAIN_S
        for run in heartbeat.lost_runs():
            self._expire(run)
        for run in sorted({*self._watch.runs(), *self._sent}):
            if self._policy.wants(run):
                if run not in self._sent or (is_due and self._lacks(run)):
                    tidy_committed(self._sink, run)
                    self._expire(run)
                self._abandon(run)
        if self._in_trouble:
            self._queue.tell_trouble("")
            self._in_trouble = False
        id = self._queue.lease()
        if id is None:
            return False
        heartbeat.lease(id)
        try:
            self._drain(id, heartbeat)
        finally:
            heartbeat.lease(None)
        return True

    def _open(self) -> None:
        if not self._sink.conditional:
            text = "does not create objects conditionally: one worker at a time, by lease"
            self._report("warning", text, {"url": self.url})
        self._queue.open(self._sink.conditional)
        self._sent.clear()
        self._is_open = True

    def _stands(self, id: CheckpointId) -> bool:
        return is_committed(self._sink, id.run, id.step, id.generation)

    def _tell_trouble(self, error: str) -> None:
        self._in_trouble = True
        with suppress(CkptError):  # The coordinator may be what is away.
            self._queue.tell_trouble(error)

    def _tell(self, run: RunName) -> list[tuple[Step, Generation]]:
        """What the store has and keeps; returns what its retention leaves over."""
        for _ in range(TELL_COUNT_MAX):
            version = self._queue.version()
            cluster = self._watch.cluster()
            doomed = expired_in(self._sink, self._policy, run, cluster)
            stored = stored_by(self._sink, run, cluster)
            with suppress(Busy):  # Another worker reported something else meanwhile.
                stays = {one for one in stored if one not in doomed}
                self._queue.tell_stored(run, stays, version)
                self._sent[run] = stays
                return doomed
        raise Busy(f"{self.url} changes faster than it is looked at")

    # ----------------------------------------------------------------------- one checkpoint

    def _drain(self, id: CheckpointId, heartbeat: Heartbeat) -> None:
        name = f"{id.run}@{id.step}"
        self._report("info", "draining", {"url": self.url, "checkpoint": name})
        try:
            with scarcity_is_unavailable(SCARCE):
                self._check_stays(id)
                manifest = self._write(id, heartbeat)
        except Aborted:
            return  # Finished by another worker, another's by now, or this process ends.
        except CkptError as error:
            self._queue.end(id, str(error))
            self._report("error", "draining failed", {"checkpoint": name, "reason": str(error)})
            return
        self._queue.end(id)
        if id.run in self._sent:
            self._sent[id.run].add((id.step, id.generation))
        fields = {"url": self.url, "checkpoint": name, "manifest": manifest}
        self._report("info", "drained", fields)
        if may_leave_over(self._sink, self._policy, id.run, id.step) or self._lacks(id.run):
            self._expire(id.run)

    def _check_stays(self, id: CheckpointId) -> None:
        """Raises Refused where the store's retention would delete it at once for the newer steps of
        another cluster, so that it would be drained and deleted without end.
        """
        owners = crowding(self._sink, self._policy, id.run, id.step, self._watch.cluster())
        if owners:
            named = ", ".join(
                f"{step} (cluster {owner})" for step, owner in sorted(owners.items())[:NAMED_MAX]
            )
            raise Refused(
                f"{self.url} keeps {self._policy.keep} steps of {id.run}, and has newer ones of"
                f" another cluster: {named}",
                hint="drain to another prefix, or save under another run's name; if nobody needs"
                " those steps, delete them there",
            )

    def _write(self, id: CheckpointId, heartbeat: Heartbeat) -> str:
        """The manifest's digest, when all is in the store."""
        begun_s = time.monotonic()

        def wrote(byte_count: int) -> None:
            with self._lock:
                self._written_bytes += byte_count
                heartbeat.written_bytes += byte_count
                seconds = self._draining_s + time.monotonic() - begun_s
                heartbeat.bytes_per_s = self._written_bytes / max(seconds, 1e-3)

        parts = SharedParts(self._queue, id, self._limits.pace.is_stopped)
        source = TierSource.open(
            self._reach.address, id.run, id.step, secret=self._reach.secret, name=self._reach.name
        )
        try:
            if source.header.generation != str(id.generation):
                raise Refused(f"{source.header} has taken the place of {id}")
            marker = write_checkpoint(self._sink, source, self._options, self._limits, wrote, parts)
        finally:
            source.close()
            self._draining_s += time.monotonic() - begun_s
            fields = {"checkpoint": str(id), "bytes": str(heartbeat.written_bytes)}
            self._report("info", "has written its parts", fields)
        return marker.xxh3_128

    # ----------------------------------------------------------------------- what goes

    def _expire(self, run: RunName) -> None:
        """Delete what the store's own retention leaves over: its marker first, then the rest."""
        # First, so that nothing is evicted on its account.
        doomed = [] if self._is_known(run) else self._tell(run)
        # Until all of it is gone: an interrupted deletion is looked for again.
        counted = self._sent.pop(run)
        for step, generation in doomed:
            delete_stored(self._sink, run, step, generation)
            fields = {"url": self.url, "checkpoint": f"{run}@{step}#{generation}"}
            self._report("info", "expired in the store", fields)
        # Also what an earlier deletion left when it was interrupted.
        for step, generation in remains(self._sink, run):
            delete_stored(self._sink, run, step, generation)
        self._sent[run] = counted

    def _is_known(self, run: RunName) -> bool:
        """Whether the store has what the queue counts on there, and nothing to delete."""
        if run not in self._sent:
            return False
        there = stored_generations(self._sink, run)
        lost = self._lost(run, there)
        if lost:
            text = "somebody deleted it in the store: it is drained again, if the tier has it"
            named = ", ".join(f"{run}@{step}#{generation}" for step, generation in lost[:NAMED_MAX])
            fields = {"url": self.url, "count": str(len(lost)), "checkpoints": named}
            self._report("warning", text, fields)
            return False
        self._sent[run].intersection_update(there)
        return not expired_in(self._sink, self._policy, run, self._watch.cluster(), there)

    def _lost(
        self, run: RunName, there: Sequence[tuple[Step, Generation]]
    ) -> list[tuple[Step, Generation]]:
        """What the queue counts on and nobody of this cluster took away."""
        sent = self._sent[run]
        if sent.issubset(there):
            return []
        cluster = self._watch.cluster()
        ours = {one for one in there if cluster_of(self._sink, run, *one) == cluster}
        # What another worker of this store has expired is no loss.
        return sorted(sent.difference(there, surplus(self._policy, sorted(sent | ours))))

    def _lacks(self, run: RunName) -> bool:
        """Whether a step is not there at all that the queue counts on: by one listing."""
        counted = {step for step, _ in self._sent.get(run, ())}
        return not counted.issubset(steps_in(self._sink, run))

    def _abandon(self, run: RunName) -> None:
        """Delete what was half drained when the tier deleted it."""
        if not self._leftovers.is_due(run):
            return
        views = self._watch.steps(run)
        tier = {(Step(view.step), Generation.parse(view.generation)) for view in views}
        for step, generation in self._leftovers.found(run, self._watch.cluster(), tier):
            delete_unfinished(self._sink, run, step, generation)
            fields = {"url": self.url, "checkpoint": f"{run}@{step}#{generation}"}
            self._report("warning", "abandoned: the tier deleted it half drained", fields)


def delete_stored(sink: Sink, run: RunName, step: Step, generation: Generation) -> None:
    """Remove a stored generation. It stops being a checkpoint with the first deletion."""
    prefix = generation_prefix(run, step, generation)
    sink.delete([prefix + COMMITTED])
    sink.delete(list(sink.list(prefix)))
