"""How things go away: tombstone first, columns when nobody reads them.

    asked --catalog row--> m+1 tombstones durable--> answered --no pins, no users--> DropGeneration
          --all named targets live and empty of it--> catalog DELETED
          --all targets that ever were here live and empty of it--> tombstones removed

A tombstone that cannot be put on enough targets now is tried again on every tick, also after a
restart; until it lies there, nothing is answered and nothing dropped: a catalog that is rebuilt
from the targets must never find a record whose deletion was answered. A target that was away is
asked to drop when it comes back and lists what should be gone. One that is here and cannot drop now
(its device fails, or this coordinator's term cannot be made durable there) is asked again.

A tombstone is removed when no target that the cluster has ever seen can hold anything else of its
generation: each is live, has listed nothing of it or confirmed the drop. Until then a catalog that
is rebuilt from the targets needs it. Because of a target that never comes back, tombstones stay on
all others until it is removed from the cluster: that costs 16 KiB each, but no deleted checkpoint
ever returns.

Rows of aborted and deleted generations say what a target that comes back may not keep, and tell a
stager that comes back how its save ended. The newest GONE_ROWS_MAX of them stay, and the newest of
each run that has checkpoints or somebody at work, which may be the only trace of the launch that
has begun. Of any other run the last row takes all else with it that is known of the run, or a sweep
of small trainings a day would fill the catalog in years. A target that was away for
longer than those reach back keeps what it has, since what nobody knows is never dropped: that costs
space, never a checkpoint.
"""

from __future__ import annotations

from functools import partial

from ckpt.base.errors import NotFound, Refused
from ckpt.base.ids import (
    CheckpointId,
    ColumnId,
    RunName,
    TargetId,
)
from ckpt.format.documents.record import Tombstone, encode_tombstone
from ckpt.format.messages import Message
from ckpt.format.messages.asking import DeleteStep, StepDeleted
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.reading import DocumentKind
from ckpt.format.messages.targets import DropColumn, DropGeneration, Dropped
from ckpt.protocol.coordinator import catalog
from ckpt.protocol.coordinator.catalog import RowState
from ckpt.protocol.coordinator.cluster.launches import Launches
from ckpt.protocol.coordinator.cluster.membership import Membership, Target, TargetState
from ckpt.protocol.coordinator.desk import Desk, Then, nothing
from ckpt.protocol.coordinator.facts import (
    AttemptDropped,
    CheckpointCommitted,
    CheckpointReleased,
    FileDropped,
    ReferencesDropped,
    RetentionDue,
    RunDrained,
    RunForgotten,
    TargetRemoved,
    TargetVouched,
)
from ckpt.protocol.coordinator.keeping.checkpoints import Checkpoints, KeptCheckpoint
from ckpt.protocol.coordinator.keeping.documents import Copies, store_document
from ckpt.protocol.coordinator.keeping.instead import instead
from ckpt.protocol.coordinator.keeping.retaining import Retaining
from ckpt.protocol.events import Buffer, Session

GONE_ROWS_MAX = 10_000
"""Rows of aborted and deleted generations that stay in the catalog."""
GONE_ROWS_BATCH = 256
"""How many more gather before they are forgotten together, in one write."""
DROP_RETRY_US = 2_000_000
"""How long after a target refused to drop something it is asked again."""


class Deleter:
    """I tombstone and drop what is deleted, what expires, and what attempts leave."""

    def __init__(
        self,
        desk: Desk,
        members: Membership,
        checkpoints: Checkpoints,
        retaining: Retaining,
        launches: Launches,
        *,
        cluster: str,
    ) -> None:
        self._desk = desk
        self._members = members
        self._checkpoints = checkpoints
        self._cluster = cluster
        self._retaining = retaining
        self._launches = launches
        self.forgotten = catalog.NO_GENERATION
        """The newest generation whose row was forgotten."""
        self.gone: dict[CheckpointId, RowState] = {}
        """Generations whose columns nobody may keep: aborted, deleted, or tombstoned with neither
        pins nor users. Those a restart finds are put in by `recovering`; the machine reads them."""

        #: How many of them stayed when the oldest were forgotten last.
        self._left_over = 0
        #: Generations tombstoned in the catalog but not on enough targets yet, and who waits for
        #: that. Nothing of them is dropped before.
        self._unspread: dict[CheckpointId, list[Then]] = {}
        #: Those of `_unspread` that did not find enough targets; the next tick tries them again.
        self._stalled: set[CheckpointId] = set()
        #: Dropped generations whose row does not durably say DELETED yet.
        self._closing: set[CheckpointId] = set()
        #: Targets that were asked to drop a generation and have not confirmed it in this boot. Its
        #: tombstones stay while there is one.
        self._dropping: dict[CheckpointId, set[TargetId]] = {}
        #: Drops that a target could not do: when to ask again, and on which session. It is given up
        #: when that session ends: on a later one the target lists what it holds.
        self._refused: list[tuple[int, Session, Then]] = []

    def recover(self, checkpoint: KeptCheckpoint) -> None:
        """Note a generation that was tombstoned before this coordinator started: whether its
        targets know that is unknown.
        """
        self._unspread[checkpoint.id] = []
        self._stalled.add(checkpoint.id)

    def tick(self) -> None:
        """Try again what waits for targets."""
        stalled, self._stalled = self._stalled, set()
        for id in sorted(stalled):
            checkpoint = self._checkpoints.get(id)
            assert checkpoint is not None, "it is forgotten only after its tombstone is spread"
            self._spread_tombstone(checkpoint)
        refused, self._refused = self._refused, []
        sessions = {target.session for target in self._members.targets.values()}
        for due_us, session, again in refused:
            if due_us > self._desk.now_us:
                self._refused.append((due_us, session, again))
            elif session in sessions:
                again()

    # ----------------------------------------------------------------------- tombstones

    def delete_step(self, session: Session, request: int, message: DeleteStep) -> None:
        """Every committed or damaged generation of (run, step), or the one that is named.
        Idempotent while under way, and for who says that this is asked again. Raises Refused for a
        pinned one, or, if that is asked, for one with a name.
        """
        meant = [
            checkpoint
            for checkpoint in self._checkpoints.of_step(message.run, message.step, *RowState)
            if message.generation in (None, checkpoint.id.generation)
        ]
        doomed = [c for c in meant if c.state in (RowState.COMMITTED, RowState.DAMAGED)]
        under_way = [c for c in meant if c.id in self._unspread]
        if not doomed and not under_way:
            before = self._done_before(message, meant) if message.repeated else None
            if before is not None:
                self._desk.send(session, request, before)
                return
            which = "" if message.generation is None else f"#{message.generation}"
            text = f"{message.run}@{message.step}{which} has no committed checkpoint"
            hint = instead(self._checkpoints, message.run)
            self._desk.send(session, request, Failed(NotFound.code, text, hint))
            return
        named = [c for c in doomed if c.names]
        if message.nameless and named:
            raise Refused(f"{named[-1].id} is called {named[-1].names[0]!r}")
        pinned = [c for c in doomed if c.is_pinned]
        if pinned:
            raise Refused(
                f"{pinned[-1].id} is pinned",
                hint=f"ckpt unpin {message.run}@{message.step}, then delete it",
            )
        freed = sum(c.info.payload_bytes for c in (*doomed, *under_way) if not c.users)
        held = sum(c.info.payload_bytes for c in (*doomed, *under_way) if c.users)
        waiting = len(doomed) + len(under_way)

        def one_done() -> None:
            nonlocal waiting
            waiting -= 1
            if waiting == 0:
                self._desk.send(session, request, StepDeleted(freed, held))

        for checkpoint in under_way:
            self._unspread[checkpoint.id].append(one_done)
        if doomed:
            self._tombstone(doomed, "deleted on request", one_done)

    def _done_before(
        self, message: DeleteStep, tombstoned: list[KeptCheckpoint]
    ) -> StepDeleted | None:
        """What was answered for the newest generation that is deleted; None without one."""
        ids = [checkpoint.id for checkpoint in tombstoned]
        for id, state in self.gone.items():
            is_meant = (id.run, id.step) == (message.run, message.step)
            if is_meant and message.generation in (None, id.generation):
                ids += [id] if state is RowState.DELETED else []
        if not ids:
            return None
        newest = max(ids, key=lambda id: id.generation)
        info, here = self._checkpoints.info_told(newest), self._checkpoints.get(newest)
        size = 0 if info is None else info.payload_bytes
        return StepDeleted(0, size) if here is not None and here.users else StepDeleted(size)

    def expire(self, run: RunName) -> None:
        """Delete what these and newer generations leave over, after a commit, a reader's end, or
        new rules. What is damaged goes only when its step was saved (or fetched) again.
        """
        doomed = self._retaining.expired(run)
        if doomed:
            self._tombstone(doomed, "expired")

    def evict(self, checkpoint: KeptCheckpoint) -> None:
        """Evict a checkpoint: it is in an object store, verified, and its space is wanted."""
        assert not checkpoint.pins
        self._tombstone([checkpoint], "evicted: it was drained")

    def _tombstone(self, doomed: list[KeptCheckpoint], reason: str, *waiting: Then) -> None:
        for checkpoint in doomed:
            checkpoint.state, checkpoint.reason = RowState.TOMBSTONED, reason
            self._unspread[checkpoint.id] = list(waiting)

        def durable() -> None:
            for checkpoint in doomed:
                self._spread_tombstone(checkpoint)

        entries = tuple(catalog.CheckpointTombstoned(c.id, reason) for c in doomed)
        self._desk.persist(entries, durable)

    def _spread_tombstone(self, checkpoint: KeptCheckpoint) -> None:
        document = encode_tombstone(
            Tombstone(self._cluster, checkpoint.id, self._members.term, checkpoint.reason)
        )

        def stored(on: tuple[TargetId, ...]) -> None:
            if not on:
                self._stalled.add(checkpoint.id)
                return
            for tell in self._unspread.pop(checkpoint.id):
                tell()
            self._may_go(checkpoint)

        code = checkpoint.code
        copies = Copies(code.m + 1, least=min(code.m + 1, code.floor))
        store_document(
            self._desk,
            self._members,
            checkpoint.id,
            DocumentKind.TOMBSTONE,
            document,
            copies,
            stored,
            # It may come when all else is gone.
            later=lambda: self._bury(checkpoint.id),
        )

    # ----------------------------------------------------------------------- dropping

    def released(self, fact: CheckpointReleased) -> None:
        """Note that no reader, or no later generation, holds it any more."""
        checkpoint = self._checkpoints.get(fact.checkpoint)
        if checkpoint is not None:
            self._may_go(checkpoint)

    def _may_go(self, checkpoint: KeptCheckpoint) -> None:
        """When it is tombstoned, its columns go, unless somebody needs them still."""
        if checkpoint.pins or checkpoint.id in self._unspread or checkpoint.id in self.gone:
            return
        if checkpoint.state is RowState.TOMBSTONED:
            self._desk.tell(ReferencesDropped(checkpoint.id))
            if checkpoint.users:
                return
            checkpoint.dropping = True
            self.gone[checkpoint.id] = RowState.TOMBSTONED
            self.drop_everywhere(checkpoint.id)
            self._forget_when_dropped(checkpoint.id)
        else:
            self.expire(checkpoint.id.run)

    def attempt_dropped(self, fact: AttemptDropped) -> None:
        """Let targets delete what a dropped attempt left."""
        id = fact.checkpoint
        self._desk.tell(ReferencesDropped(id))
        self.gone[id] = RowState.ABORTED
        self.drop_everywhere(id)
        self._forget_oldest()

    def drop_everywhere(self, id: CheckpointId) -> None:
        """Drop it on every target that is here, also on one that is being listed: each may hold
        some of it.
        """
        for target in self._members.targets.values():
            self.drop_on(target, id)

    def drop_on(self, target: Target, id: CheckpointId) -> None:
        """Let one target drop it; what that target proved of this generation no longer counts."""
        if target.session is None:
            return

        self._dropping.setdefault(id, set()).add(target.id)

        def dropped() -> None:
            self._confirmed(target.id, id)
            target.proved.drop(id)
            target.documents.drop(id)
            self._forget_when_dropped(id)
            self._bury(id)

        self._ask(target.session, DropGeneration(self._members.term, id), dropped)

    def _ask(self, session: Session, command: DropGeneration | DropColumn, dropped: Then) -> None:
        def answered(message: Message, _bulk: Buffer) -> None:
            if isinstance(message, Dropped):
                dropped()
                return
            due_us = self._desk.now_us + DROP_RETRY_US
            self._refused.append((due_us, session, lambda: self._ask(session, command, dropped)))

        self._desk.ask(session, command, answered)

    def _forget_when_dropped(self, id: CheckpointId) -> None:
        checkpoint = self._checkpoints.get(id)
        if checkpoint is None or self.gone.get(id) is not RowState.TOMBSTONED:
            return
        # Without its index anybody may have a part of it.
        unknown = checkpoint.placement is None
        for named in self._members.targets if unknown else checkpoint.targets:
            target = self._members.targets.get(named)
            if target is not None and target.state is TargetState.REMOVED:
                continue
            if target is None or target.state is not TargetState.LIVE:
                return
            if _holds(target, id):
                return
        self._checkpoints.forget(checkpoint)
        self.gone[id] = RowState.DELETED
        self._closing.add(id)

        def durable() -> None:
            self._closing.discard(id)
            self._bury(id)

        self._desk.persist((catalog.CheckpointDeleted(id),), durable)
        self._forget_oldest()

    def _confirmed(self, target: TargetId, id: CheckpointId) -> None:
        asked = self._dropping.get(id, set())
        asked.discard(target)
        if not asked:
            self._dropping.pop(id, None)

    def _bury(self, id: CheckpointId) -> None:
        """Nobody can hold anything of it any more: its tombstones go as well."""
        targets = self._members.all()
        waits = id in self._closing or id in self._dropping
        if waits or self.gone.get(id) is not RowState.DELETED:
            return
        if any(t.state is not TargetState.LIVE or _holds(t, id) for t in targets):
            return
        for target in targets:
            if target.documents.has_tombstone(id):
                self._remove_tombstone(target, id)

    def _remove_tombstone(self, target: Target, id: CheckpointId) -> None:
        if target.session is not None:
            command = DropGeneration(self._members.term, id, tombstone=True)
            dropped = partial(target.documents.drop_tombstone, id)
            self._ask(target.session, command, dropped)

    def _forget_oldest(self) -> None:
        """Rows beyond GONE_ROWS_MAX, oldest generations first; a run's newest one stays while the
        run has checkpoints or somebody at work.
        """
        if len(self.gone) < max(GONE_ROWS_MAX, self._left_over) + GONE_ROWS_BATCH:
            return
        oldest_first = sorted(self.gone, key=lambda id: id.generation)
        newest_of_run = {id.run: id for id in oldest_first}
        forgotten: list[CheckpointId] = []
        for id in oldest_first[: len(oldest_first) - GONE_ROWS_MAX]:
            if self.gone[id] is RowState.TOMBSTONED:
                continue
            if newest_of_run[id.run] != id:
                forgotten.append(id)
            elif not self._checkpoints.of_run(id.run, *RowState):
                self._forget_run(id)
        for id in forgotten:
            self._forget_row(id)
        if forgotten:
            self._desk.persist(tuple(map(catalog.RowForgotten, forgotten)), nothing)
        self._left_over = len(self.gone)

    def _forget_run(self, last: CheckpointId) -> None:
        """With its last row, unless somebody is at work there."""
        launches = self._launches.forget_run(last.run)
        if launches is None:
            return
        self._forget_row(last)
        self._desk.tell(RunForgotten(last.run, launches))
        gone = (catalog.LaunchForgotten(last.run, number) for number in launches)
        self._desk.persist((catalog.RowForgotten(last), *gone), nothing)

    def _forget_row(self, id: CheckpointId) -> None:
        self.forgotten = max(self.forgotten, id.generation)
        del self.gone[id]
        self._checkpoints.forget_row(id)

    # ----------------------------------------------------------------------- targets that come back

    def reconcile(self, *targets: Target) -> None:
        """Targets came back: drop what must not be there any more."""
        for target in targets:
            for asked in list(self._dropping):
                self._confirmed(target.id, asked)  # What it has listed is the truth from here on.
            for id in sorted(_held_by(target) & self.gone.keys()):
                self.drop_on(target, id)
        for id in sorted(id for id, state in self.gone.items() if state is RowState.TOMBSTONED):
            self._forget_when_dropped(id)
        for id in sorted(self._buriable()):
            self._bury(id)

    def _buriable(self) -> set[CheckpointId]:
        """Deleted generations that some target still has a tombstone of; none goes before all
        targets are here.
        """
        if self._members.live_count < self._members.count:
            return set()
        found: set[CheckpointId] = set()
        for target in self._members.live():
            found |= target.documents.tombstones
        return {id for id in found if self.gone.get(id) is RowState.DELETED}

    def committed(self, fact: CheckpointCommitted) -> None:
        """Delete what retention leaves over now."""
        self.expire(fact.checkpoint.run)

    def drained(self, fact: RunDrained) -> None:
        """Delete what waited for the drain."""
        self.expire(fact.run)

    def retention_due(self, fact: RetentionDue) -> None:
        """Apply retention again: there are other rules, names were changed, or time has passed."""
        self.expire(fact.run)

    def target_vouched(self, fact: TargetVouched) -> None:
        """Note a target that came while requests are served."""
        self.reconcile(self._members.targets[fact.target])

    def target_removed(self, fact: TargetRemoved) -> None:
        """Let nothing wait for this target any more."""
        for id in list(self._dropping):
            self._confirmed(fact.target, id)
        for id in list(self.gone):
            self._forget_when_dropped(id)
            self._bury(id)

    def file_dropped(self, fact: FileDropped) -> None:
        """Delete the columns of a file that are known now; a late one is a stray of the commit."""
        for target in self._members.targets.values():
            for column in sorted(target.proved.of(fact.payload.checkpoint)):
                if column.payload == fact.payload:
                    self.drop_column(target, column)

    def drop_column(self, target: Target, column: ColumnId) -> None:
        """Drop one column, which does not count from here on."""
        if target.session is None:
            return
        dropping = target.dropping
        target.proved.discard(column)
        dropping.add(column)
        command = DropColumn(self._members.term, column)
        self._ask(target.session, command, lambda: dropping.discard(column))


def _held_by(target: Target) -> set[CheckpointId]:
    """Generations of which a target has more than a tombstone, as far as it has said."""
    return target.proved.checkpoints() | target.documents.checkpoints()


def _holds(target: Target, id: CheckpointId) -> bool:
    """Whether it has more of it than a tombstone."""
    return target.proved.has(id) or target.documents.has_more(id)
