"""The queue of what is to be drained: every store's backlog, oldest needed first, under leases.

    committed --needed by a store's policy--> waiting --LeaseDrain--> leased --EndDrain--> drained
                                                 ^                      |                (durable)
                                                 +--failed, or silent---+

What survives a restart: the stores with their policies, and what each of them holds. The queue
follows from that and from what is committed, so a commit is queued with the very entry that makes
it durable. Leases are not kept: workers ask again, and what they finished has receipts in the
store, so that nothing is written twice but the parts that were under way.

A lease ends LEASE_US after its worker's last word, or GRACE_US after its session's end (the worker
was killed; one that only lost its connection is back before). Workers that outlive their
lease do no harm: all write the same bytes under one plan, and the marker is created once. Where a
store does not create conditionally, one worker at a time has leases there.

Invariants: a checkpoint that a store needs and has not is never expired or evicted (P9); a store
holds what a worker has found there or read back there, never what one intends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from math import isfinite

from ckpt.base.errors import Busy, Fenced, NotFound
from ckpt.base.ids import CheckpointId, Generation, RunName, Step, check_checkpoint
from ckpt.base.units import US_PER_S
from ckpt.format.messages.drains import (
    BeginParts,
    DrainLeased,
    DrainNoted,
    EndDrain,
    ForgetStore,
    LeaseDrain,
    OpenStore,
    RenewDrain,
    TakePart,
    TellStored,
    TellTrouble,
    decode_parts,
    decode_stored,
)
from ckpt.plan.drains import (
    Committed,
    Held,
    StoredSteps,
    StorePolicy,
    check_policy,
    due,
    surplus,
)
from ckpt.protocol.coordinator import catalog
from ckpt.protocol.coordinator.catalog import RowState
from ckpt.protocol.coordinator.desk import Desk, nothing
from ckpt.protocol.coordinator.facts import CheckpointCommitted, RunDrained, RunForgotten
from ckpt.protocol.coordinator.keeping.checkpoints import Checkpoints, KeptCheckpoint
from ckpt.protocol.coordinator.keeping.drain_jobs import DrainJob
from ckpt.protocol.coordinator.looks import Looks
from ckpt.protocol.coordinator.stores import (
    CheckpointDrained,
    StoreForgotten,
    StoreHolds,
    StoreOpened,
    StoreRow,
    tellings,
)
from ckpt.protocol.events import Buffer, Session

LEASE_US = 15 * US_PER_S
GRACE_US = 2 * US_PER_S
REST_US = 30 * US_PER_S
"""Pause before a checkpoint that failed is leased again."""
UNREACHED_US = 300 * US_PER_S
"""How long after a worker's last word a store that was never opened is forgotten."""
UNREACHED_COUNT_MAX = 64
SEEN_MAX = 1_000
"""Steps of a run that are remembered: a store that drains each Nth misses none where N is less."""

DrainRequest = (
    OpenStore
    | TellStored
    | LeaseDrain
    | BeginParts
    | TakePart
    | RenewDrain
    | EndDrain
    | TellTrouble
    | ForgetStore
)


@dataclass(slots=True)
class Worker:
    """One process that serves a store."""

    session: Session
    due_us: int
    """After it the worker counts as gone."""
    bytes_per_s: float = 0.0
    checkpoint: CheckpointId | None = None
    looks: bool = False


@dataclass(slots=True)
class ServedStore:
    """One object store and who is at work for it."""

    row: StoreRow
    version: int
    """Of what is known to lie there; a restart changes it as well."""
    conditional: bool = True
    workers: dict[str, Worker] = field(default_factory=dict)
    jobs: dict[CheckpointId, DrainJob] = field(default_factory=dict)
    """Only what is leased, or rests after a failure."""
    looks: Looks = field(default_factory=Looks)
    unserved_since_us: int = 0
    drained_count: int = 0
    """Since this coordinator began."""
    failed_count: int = 0
    last: CheckpointId | None = None
    error: str = ""
    """Of the last failure, until something is drained; or why a worker cannot use the store."""
    #: What the row has of each run that was asked for, in order of steps.
    _stored: dict[RunName, StoredSteps] = field(default_factory=dict)

    @property
    def policy(self) -> StorePolicy:
        return self.row.policy

    def stored(self, run: RunName) -> StoredSteps:
        """What is committed there of a run."""
        if run in self.row.stored and run not in self._stored:
            self._stored[run] = StoredSteps(self.row.stored[run])
        return self._stored.get(run) or StoredSteps()

    def holds(self, id: CheckpointId) -> bool:
        """Whether it is committed there."""
        return (id.step, id.generation) in self.stored(id.run).generations

    def found(self, run: RunName, stored: Collection[Held]) -> None:
        """Note that this is all that it has of the run."""
        self.row.found(run, stored)
        self._stored.pop(run, None)

    def drained(self, id: CheckpointId) -> None:
        """Note that it has this as well."""
        if not self.holds(id):
            self.drained_count += 1
        self.row.stored.setdefault(id.run, set())
        self.stored(id.run).add((id.step, id.generation))
        self.jobs.pop(id, None)
        self.last, self.error = id, ""


@dataclass(frozen=True, slots=True)
class Unreached:
    """A store that no worker could open yet: nothing is kept for it."""

    worker: str
    error: str
    due_us: int


class DrainQueue:
    """I say who drains what."""

    def __init__(
        self,
        desk: Desk,
        checkpoints: Checkpoints,
        known: dict[str, StoreRow],
        term: int,
    ) -> None:
        self._first_version = term << 32
        self._desk = desk
        self._checkpoints = checkpoints
        self.stores: dict[str, ServedStore] = {
            url: ServedStore(row, self._first_version + 1) for url, row in sorted(known.items())
        }
        self.unreached: dict[str, Unreached] = {}
        """By URL, the one that was reported last at the end."""
        #: The newest steps that were committed since this coordinator began, of each run of which
        #: some store wants each Nth.
        self._seen: dict[RunName, deque[Step]] = {}

    # ----------------------------------------------------------------------- questions

    def waiting(self, store: ServedStore) -> list[Committed]:
        """What a store needs and does not have, oldest commit first."""
        found: list[Committed] = []
        for run in self._checkpoints.runs():
            if store.policy.wants(run):
                committed = self._newest_of_steps(run)
                found += due(store.policy, committed, store.stored(run), self._passed(run, store))
        return sorted(found, key=lambda one: (one.committed_at_s, one.run, one.step))

    def needed(self, run: RunName) -> set[tuple[Step, Generation]]:
        """Generations of a run that some store waits for: neither retention nor eviction may take
        them."""
        committed = self._newest_of_steps(run) if self.stores else []
        return {
            (one.step, one.generation)
            for store in self.stores.values()
            if store.policy.wants(run)
            for one in due(store.policy, committed, store.stored(run), self._passed(run, store))
        }

    def holders(self, run: RunName, step: Step | None) -> list[str]:
        """URLs of stores that have the step, or any step, of a run."""
        return [
            url
            for url, store in self.stores.items()
            if (
                store.stored(run).newest is not None
                if step is None
                else store.stored(run).has(step)
            )
        ]

    def holding(self, id: CheckpointId) -> tuple[str, ...]:
        """URLs of stores that have exactly this generation, as far as workers have said."""
        stores = self.stores.items()
        return tuple(url for url, one in stores if one.holds(id) and not one.looks.misses(id))

    def lets_go(self, id: CheckpointId) -> bool:
        """Whether some store of those that hold it has been looked at just now, and has it; or
        nobody there looks. Else its workers are asked."""
        holders = [self.stores[url] for url in self.holding(id)]
        asked = [one for one in holders if any(each.looks for each in one.workers.values())]
        may_go = [one.looks.may_go(id, self._desk.now_us) for one in asked]
        return any(may_go) or not asked

    # ----------------------------------------------------------------------- messages

    def handle(self, session: Session, request: int, message: DrainRequest, bulk: Buffer) -> None:
        """One request of a worker. Raises NotFound, Fenced, Refused, PeerError."""
        if isinstance(message, OpenStore):
            self._open(session, request, message)
            return
        if isinstance(message, ForgetStore):
            self._forget(session, request, message)
            return
        if isinstance(message, TellTrouble) and message.url not in self.stores:
            self._note_unreached(session, request, message)
            return
        store = self.stores.get(message.url)
        if store is None:
            raise NotFound(
                f"nothing is drained to {message.url}", hint="ckpt status names the stores"
            )
        self._heard(store, message.worker, session)
        match message:
            case TellStored():
                if message.version not in (0, store.version):
                    raise Busy(f"{message.url} changed meanwhile", hint="look at it again")
                stored = set(decode_stored(bulk))
                for one in sorted(stored):
                    check_checkpoint(CheckpointId(message.run, *one))
                *first, last = tellings(store.stored(message.run).generations, stored)
                for part in first:
                    entry = StoreHolds(store.policy.url, message.run, part)
                    self._desk.persist((entry,), nothing)
                entry = StoreHolds(store.policy.url, message.run, last)
                self._note_change(store, session, request, entry)
            case LeaseDrain():
                leased = DrainLeased(self._lease(store, message.worker))
                self._desk.send(session, request, leased)
            case BeginParts():
                job = self._job(store, message.checkpoint)
                job.begin(message.worker, message.part_count, decode_parts(bulk))
                self._answer(store, session, request)
            case TakePart():
                job = self._job(store, message.checkpoint)
                self._desk.send(session, request, job.take(message))
            case RenewDrain():
                self._renew(store, session, request, message)
            case EndDrain():
                self._end(store, session, request, message)
            case TellTrouble():
                store.error = message.error
                self._answer(store, session, request)

    def session_closed(self, session: Session) -> None:
        """Give the workers of a closed session a moment to come back."""
        for store in self.stores.values():
            for worker in store.workers.values():
                if worker.session == session:
                    worker.due_us = min(worker.due_us, self._desk.now_us + GRACE_US)

    def tick(self) -> None:
        """End leases that have run out."""
        for store in self.stores.values():
            for name, worker in list(store.workers.items()):
                if worker.due_us <= self._desk.now_us:
                    self._left(store, name)
            for id, job in list(store.jobs.items()):
                if not job.workers and job.rest_until_us <= self._desk.now_us:
                    del store.jobs[id]
            if store.workers or not store.unserved_since_us:
                store.unserved_since_us = self._desk.now_us
        for url, one in list(self.unreached.items()):
            if one.due_us <= self._desk.now_us:
                del self.unreached[url]

    # ----------------------------------------------------------------------- stores

    def _open(self, session: Session, request: int, message: OpenStore) -> None:
        policy = check_policy(StorePolicy(message.url, message.every, message.keep, message.runs))
        store = self.stores.get(message.url)
        known = store is not None and store.policy == policy
        if store is None:
            store = self.stores[message.url] = ServedStore(
                StoreRow(policy), self._first_version + 1
            )
            self.stores = dict(sorted(self.stores.items()))
        self.unreached.pop(message.url, None)
        store.row.policy, store.conditional = policy, message.conditional
        self._heard(store, message.worker, session)
        if known:
            self._answer(store, session, request)
        else:
            self._note(session, request, StoreOpened(policy))

    def _forget(self, session: Session, request: int, message: ForgetStore) -> None:
        store = self.stores.get(message.url)
        if store is None and not message.repeated:
            raise NotFound(
                f"nothing is drained to {message.url}", hint="ckpt status names the stores"
            )
        if store is not None and store.workers:
            names = ", ".join(sorted(store.workers))
            raise Busy(f"{message.url} is served by {names}", hint="stop them first")
        self.stores.pop(message.url, None)
        self._note(session, request, StoreForgotten(message.url))

    def _note_unreached(self, session: Session, request: int, message: TellTrouble) -> None:
        self.unreached.pop(message.url, None)
        if message.error:
            due_us = self._desk.now_us + UNREACHED_US
            self.unreached[message.url] = Unreached(message.worker, message.error, due_us)
        while len(self.unreached) > UNREACHED_COUNT_MAX:
            del self.unreached[next(iter(self.unreached))]
        self._desk.send(session, request, DrainNoted(LEASE_US))

    def _answer(self, store: ServedStore, session: Session, request: int) -> None:
        self._desk.send(session, request, DrainNoted(LEASE_US, store.version))

    def _note_change(
        self, store: ServedStore, session: Session, request: int, entry: catalog.CatalogEntry
    ) -> None:
        """It holds something else: who looked before looks again."""
        store.version += 1
        self._note(session, request, entry)

    def _note(self, session: Session, request: int, entry: catalog.CatalogEntry) -> None:
        """Make it durable; only then does it count, and is it answered."""

        def durable() -> None:
            match entry:
                case StoreHolds(url, run, stored) if url in self.stores:
                    self.stores[url].found(run, stored)
                case CheckpointDrained(url, id) if url in self.stores:
                    self.stores[url].drained(id)
            self._desk.send(session, request, DrainNoted(LEASE_US))
            for run in self._checkpoints.runs():
                self._desk.tell(RunDrained(run))

        self._desk.persist((entry,), durable)

    # ----------------------------------------------------------------------- leases

    def _lease(self, store: ServedStore, name: str) -> CheckpointId | None:
        worker = store.workers[name]
        if worker.checkpoint in store.jobs:
            return worker.checkpoint
        worker.checkpoint = None
        if not store.conditional and any(job.workers for job in store.jobs.values()):
            return None
        for one in self.waiting(store):
            id = CheckpointId(one.run, one.step, one.generation)
            checkpoint = self._checkpoints.get(id)
            job = store.jobs.get(id) or DrainJob(id)
            resting = self._desk.now_us < job.rest_until_us
            if resting or not job.has_work or checkpoint is None:
                continue
            if not self._checkpoints.readable(checkpoint):
                continue
            job.workers.setdefault(name, 0)
            store.jobs[id] = job
            worker.checkpoint = id
            return id
        return None

    def _job(self, store: ServedStore, id: CheckpointId) -> DrainJob:
        job = store.jobs.get(id)
        if job is None:
            raise Fenced(f"{id} is not leased", hint="ask for a lease again")
        return job

    def _renew(
        self, store: ServedStore, session: Session, request: int, message: RenewDrain
    ) -> None:
        worker = store.workers[message.worker]
        # What is no rate would be no number to who reads the status.
        worker.bytes_per_s = message.bytes_per_s if isfinite(message.bytes_per_s) else 0.0
        worker.looks |= message.looks
        store.looks.heard(message.stands, message.gone, self._desk.now_us)
        if message.checkpoint is not None:
            job = self._job(store, message.checkpoint)
            if message.worker not in job.workers:
                raise Fenced(f"{message.checkpoint} is not leased to {message.worker}")
            job.workers[message.worker] = message.written_bytes
        look = store.looks.due(self._desk.now_us) if message.looks else ()
        self._desk.send(session, request, DrainNoted(LEASE_US, store.version, look))

    def _end(self, store: ServedStore, session: Session, request: int, message: EndDrain) -> None:
        id = check_checkpoint(message.checkpoint)
        job = store.jobs.get(id)
        # The lease may be of a coordinator before; of what nobody had there was none.
        if job is None and self._checkpoints.get(id) is None and not store.holds(id):
            raise NotFound(f"{id} was not leased, and is not here", hint="look at the store again")
        self._release(store, message.worker)
        if not message.error:
            self._drained_now(store, session, request, message.checkpoint)
            return
        store.failed_count += 1
        store.error = f"{message.checkpoint.run}@{message.checkpoint.step}: {message.error}"
        if job is not None and not job.workers:
            store.jobs[job.checkpoint] = DrainJob(
                job.checkpoint, rest_until_us=self._desk.now_us + REST_US
            )
        self._answer(store, session, request)

    def _drained_now(
        self, store: ServedStore, session: Session, request: int, id: CheckpointId
    ) -> None:
        key = id.step, id.generation
        stored = store.stored(id.run)
        is_beyond = store.policy.keep is not None and key in surplus(
            store.policy, [*stored.generations, key]
        )
        if is_beyond or stored.replaces(key):
            # Its own retention takes it away again, or another worker has by now.
            self._answer(store, session, request)
            return
        self._note_change(store, session, request, CheckpointDrained(store.policy.url, id))

    def _heard(self, store: ServedStore, name: str, session: Session) -> None:
        due_us = self._desk.now_us + LEASE_US
        worker = store.workers.setdefault(name, Worker(session, due_us))
        worker.session, worker.due_us = session, due_us

    def _left(self, store: ServedStore, name: str) -> None:
        self._release(store, name)
        del store.workers[name]
        self._desk.report("warning", "drain worker is gone", store=store.policy.url, worker=name)

    def _release(self, store: ServedStore, name: str) -> None:
        """Its lease ends; a job that nobody has any more is forgotten."""
        worker = store.workers[name]
        job = None if worker.checkpoint is None else store.jobs.get(worker.checkpoint)
        worker.checkpoint = None
        if job is not None:
            job.leave(name)
            if not job.workers:
                del store.jobs[job.checkpoint]

    def committed(self, fact: CheckpointCommitted) -> None:
        """It counts among each Nth, also when the tier has dropped it."""
        run, policies = fact.checkpoint.run, [store.policy for store in self.stores.values()]
        if any(policy.every > 1 and policy.wants(run) for policy in policies):
            self._seen.setdefault(run, deque(maxlen=SEEN_MAX)).append(fact.checkpoint.step)

    def run_forgotten(self, fact: RunForgotten) -> None:
        """Note that nothing of the run will be drained any more."""
        self._seen.pop(fact.run, None)

    def _passed(self, run: RunName, store: ServedStore) -> set[Step]:
        """Steps that were committed and may be in the tier no more, above the newest that the store
        has: those that were seen, and those that some store has. What went before this coordinator
        began, and is in none, is forgotten: the next one of each Nth is drained later then.
        """
        if store.policy.every == 1:
            return set()  # They count for nothing.
        newest = store.stored(run).newest
        stored = (one.stored(run).after(newest) for one in self.stores.values())
        return {*self._seen.get(run, ()), *(step for steps in stored for step in steps)}

    def _newest_of_steps(self, run: RunName) -> list[Committed]:
        """The newest committed generation of each step; of what is set aside, none is sent on."""
        held = self._checkpoints.of_line(run, RowState.COMMITTED)
        return [_committed(one) for one in {one.id.step: one for one in held}.values()]


def _committed(one: KeptCheckpoint) -> Committed:
    id, info = one.id, one.info
    return Committed(id.run, id.step, id.generation, info.payload_bytes, info.committed_at_s)
