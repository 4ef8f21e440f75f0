"""What people and tools may ask, and the JSON they get: one answer for Ask,
HTTP `/v1/…` and the CLI. Its records are those of answers.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

import msgspec

from ckpt.base.errors import NotFound, Refused
from ckpt.base.ids import CheckpointId, Generation, RunName, Step
from ckpt.base.shell_words import quoted
from ckpt.base.units import US_PER_S
from ckpt.format.members import NO_LAUNCH
from ckpt.format.messages.keeping import ALL_STAYS, Retention, check_retention
from ckpt.format.messages.saving import CommitInfo
from ckpt.plan.keeping.retention import retention_text
from ckpt.protocol.coordinator.catalog import RowState
from ckpt.protocol.coordinator.cluster.membership import Target
from ckpt.protocol.coordinator.keeping.checkpoints import Checkpoints, KeptCheckpoint
from ckpt.protocol.coordinator.keeping.draining import DrainQueue
from ckpt.protocol.coordinator.keeping.instead import instead
from ckpt.protocol.coordinator.keeping.retaining import Retaining
from ckpt.protocol.coordinator.reading.answers import (
    AttemptView,
    Check,
    ColumnsView,
    DocumentView,
    FilesView,
    MembersView,
    MemberView,
    NameView,
    RetentionView,
    RunView,
    ShowView,
    StatusView,
    StepView,
    StoreStatus,
    TargetView,
    VerdictView,
)
from ckpt.protocol.coordinator.reading.coordinator_answers import CoordinatorView
from ckpt.protocol.coordinator.reading.drain_views import store_statuses
from ckpt.protocol.coordinator.reading.health import Health
from ckpt.protocol.coordinator.reading.launch_round import RANKS_NAMED_MAX
from ckpt.protocol.coordinator.reading.repair_answers import RepairView
from ckpt.protocol.coordinator.reading.repair_views import repair_view
from ckpt.protocol.coordinator.reading.scrub_views import reading_view, scrub_view
from ckpt.protocol.coordinator.reading.stored import loadable, state_text, stores_alone
from ckpt.protocol.coordinator.reading.upgrade_view import upgrade_view
from ckpt.protocol.coordinator.repairing.survey import Survey
from ckpt.protocol.coordinator.repairing.tasks import Repairs
from ckpt.protocol.coordinator.saving.attempts import Attempt
from ckpt.protocol.coordinator.saving.context import SavingContext
from ckpt.protocol.coordinator.saving.members import Members


class Views:
    """I render the machine's state; I change nothing."""

    def __init__(
        self,
        context: SavingContext,
        checkpoints: Checkpoints,
        files: Members,
        drains: DrainQueue,
        retaining: Retaining,
        health: Health,
        repairs: Repairs,
    ) -> None:
        self._repairs = repairs
        self._desk = context.desk
        self._cluster = context.policy.cluster
        self._code = context.policy.code
        self._members = context.members
        self._launches = context.launches
        self._book = context.book
        self._checkpoints = checkpoints
        self._files = files
        self._drains = drains
        self._retaining = retaining
        self._health = health
        self.coordinator = CoordinatorView()
        self.own_checks: Callable[[], tuple[Check, ...]] = tuple
        """What the coordinator's shell says of its own process."""
        self.all_coordinators: Callable[[], tuple[str, ...]] = tuple
        """HOST:PORT of each of several; empty: there is no other one."""

    def stores(self) -> tuple[StoreStatus, ...]:
        """The object stores, and how far they are."""
        return store_statuses(self._drains, self._desk.now_us)

    def answer(
        self,
        what: str,
        run: RunName | None,
        step: Step | None,
        generation: Generation | None = None,
    ) -> bytes:
        """The JSON for a question.

        Raises Refused for an unknown one, NotFound for an unknown run or step. While nobody is
        served, raises why for all but the status.
        """
        problem = self._health.problem()
        if problem is not None and what != "status":
            raise problem
        view: object
        match what:
            case "status":
                view = self.status()
            case "coordinator":
                view = self.coordinator
            case "runs":
                view = self.runs()
            case "steps" if run is not None:
                view = self.steps(run)
            case "show" if run is not None and step is not None:
                view = self.show(run, step, generation)
            case "names" if run is not None:
                view = self.names(run)
            case "retention" if run is not None:
                view = self._retention(run, self._retaining.own(run), None)
            case "repair":
                view = self.repair()
            case "upgrade":
                view = upgrade_view(self._health.upgrading, self._members, self._desk.needs)
            case "files":
                view = self.files(run)
            case "members" if run is not None and step is not None:
                view = self.members(run, step)
            case _:
                raise Refused(
                    f"{what!r} is not one of status, coordinator, runs, steps (run), "
                    "show (run, step), names (run), retention (run), repair, upgrade, files, "
                    "members (run, step)"
                )
        return msgspec.json.encode(view)

    def repair(self) -> RepairView:
        """What lacks columns, and who makes them again."""
        return repair_view(self._repairs, self._members)

    def survey(self) -> Survey:
        """What committed checkpoints lack now."""
        return Survey(self._checkpoints)

    def checks(self, stores: Sequence[StoreStatus], survey: Survey) -> tuple[Check, ...]:
        """All that stand now; `stores`: the object stores as they are."""
        own = self.own_checks()
        # Whoever is given one alone does not come back when that one is gone.
        dialed = quoted(",".join(self.all_coordinators() or (self.coordinator.address,)))
        return (*own, *self._health.checks(stores, survey, dialed, self._desk.now_us))

    def status(self) -> StatusView:
        stores = self.stores()
        checks = self.checks(stores, self.survey())
        worst = {check.severity for check in checks}
        health = "HEALTH_ERR" if "error" in worst else "HEALTH_WARN" if worst else "HEALTH_OK"
        return StatusView(
            cluster=self._cluster,
            coordinator=self.coordinator,
            health=health,
            checks=checks,
            code=str(self._code),
            term=self._members.term,
            epoch=self._members.epoch,
            targets=tuple(map(_target_view, self._members.all())),
            runs=self.runs(),
            attempts=tuple(_attempt_view(attempt) for attempt in self._book.open()),
            stores=stores,
        )

    def runs(self) -> tuple[RunView, ...]:
        return tuple(self._run_view(run) for run in self._checkpoints.runs())

    def steps(self, run: RunName) -> tuple[StepView, ...]:
        """Committed and damaged generations, ascending. A run that never was has none."""
        held = self._checkpoints.of_run(run, RowState.COMMITTED, RowState.DAMAGED)
        can_be_had = loadable(self._checkpoints, self._drains, run)
        newest = next((one for one in reversed(can_be_had) if not one.is_aside), None)
        counts = self._checkpoints.document_counts()
        return tuple(
            self._step_view(c, c is newest, self._checkpoints.documents_missing(c, counts))
            for c in held
        )

    def show(self, run: RunName, step: Step, generation: Generation | None = None) -> ShowView:
        """Raises NotFound."""
        held = self._checkpoints.of_step(run, step, RowState.COMMITTED, RowState.DAMAGED)
        wanted = [one for one in held if generation in (None, one.id.generation)]
        if not wanted:
            which = f"{run}@{step}" if generation is None else f"{run}@{step}#{generation}"
            hint = instead(self._checkpoints, run)
            raise NotFound(f"{which} has no committed checkpoint", hint=hint)
        shown = str(wanted[-1].id.generation)
        views = [view for view in self.steps(run) if view.step == step]
        views.sort(key=lambda view: view.generation == shown)
        held_one = wanted[-1]
        return ShowView(
            tuple(views),
            self._columns(held_one),
            self._documents(held_one),
            reading_view(held_one, self._checkpoints, self._members),
        )

    def names(self, run: RunName) -> tuple[NameView, ...]:
        """All names of a run, in their order; none for a run that nobody knows."""
        held = self._checkpoints.of_run(run, RowState.COMMITTED, RowState.DAMAGED)
        return tuple(
            sorted(
                (
                    NameView(name, one.id.step, str(one.id.generation), one.is_aside)
                    for one in held
                    for name in one.names
                ),
                key=lambda view: view.name,
            )
        )

    def retention_under(self, run: RunName, own: Retention | None) -> bytes:
        """The JSON of what would stay of a run if these were its own rules. Raises Refused."""
        if own is not None:
            check_retention(own)
        clusters = self._retaining.clusters if own is None else own
        return msgspec.json.encode(self._retention(run, own, clusters))

    def files(self, below: RunName | None) -> tuple[FilesView, ...]:
        """Checkpoints of files, in the tier or in a store: of the run `below` and of those whose
        names begin with it and a `/`; without it, of all runs.
        """
        found: list[FilesView] = []
        for run in self._checkpoints.runs():
            if below is None or run == below or run.startswith(f"{below}/"):
                held = loadable(self._checkpoints, self._drains, run)
                newest = {one.id.step: one.info for one in held if not one.is_aside}
                found += [_files_view(i) for i in newest.values() if i.launch == NO_LAUNCH]
        return tuple(found)

    def members(self, run: RunName, step: Step) -> MembersView:
        checkpoint, members = self._files.listed(run, step)
        return MembersView(
            str(checkpoint.generation) if checkpoint is not None else "",
            tuple(MemberView(m.name, m.length, m.fingerprint.hex()) for m in members),
        )

    # ----------------------------------------------------------------------- inside

    def _run_view(self, run: RunName) -> RunView:
        held = loadable(self._checkpoints, self._drains, run)
        newest = next((one for one in reversed(held) if not one.is_aside), None)
        here = (one for one in held if one.state is RowState.COMMITTED)
        return RunView(
            run=run,
            steps=len({c.id.step for c in held}),
            latest=None if newest is None else newest.id.step,
            bytes=sum(c.info.payload_bytes for c in here),
            committed_at_s=0.0 if newest is None else newest.info.committed_at_s,
            is_open=self._launches.is_open(run),
        )

    def _retention(
        self, run: RunName, own: Retention | None, would: Retention | None
    ) -> RetentionView:
        """would: rules that do not count yet; None: those that count."""
        rules = self._retaining.counting(run) if would is None else would
        held = self._checkpoints.of_run(run, RowState.COMMITTED, RowState.DAMAGED)
        sizes = {one.id: one.info.payload_bytes for one in held}
        return RetentionView(
            run=run,
            source="cluster" if own is None else "lost" if own == ALL_STAYS else "run",
            rules=rules,
            text=retention_text(rules),
            steps=tuple(
                VerdictView(
                    one.step, str(one.generation), one.stays, one.reason,
                    sizes[CheckpointId(run, one.step, one.generation)],
                )
                for one in self._retaining.verdicts(run, rules)
            ),
        )  # fmt: skip

    def _step_view(
        self, checkpoint: KeptCheckpoint, newest: bool, documents_missing: int
    ) -> StepView:
        now = self._checkpoints.redundancy(checkpoint)
        info = checkpoint.info
        return StepView(
            run=info.checkpoint.run,
            step=info.checkpoint.step,
            generation=str(info.checkpoint.generation),
            state=state_text(self._drains, checkpoint),
            newest=newest,
            bytes=info.payload_bytes + info.referenced_bytes,
            world_size=info.world_size,
            code=info.code,
            targets_survivable=now.targets,
            domains_survivable=now.domains,
            domain_level=info.domain_level,
            columns_missing=now.columns_missing,
            readable=(
                checkpoint.state is RowState.COMMITTED and self._checkpoints.readable(checkpoint)
            ),
            stall_s=info.stall_us / US_PER_S,
            commit_s=info.commit_us / US_PER_S,
            fault_in_s=info.fault_in_us / US_PER_S,
            committed_at_s=info.committed_at_s,
            slowest_rank=info.slowest_rank,
            slowest_target=info.slowest_target,
            readers=len(checkpoint.pins),
            reason=checkpoint.reason,
            targets_survivable_at_commit=info.targets_survivable,
            domains_survivable_at_commit=info.domains_survivable,
            warnings=info.warnings,
            referenced_bytes=info.referenced_bytes,
            homes=tuple(home.step for home in info.homes),
            documents_missing=documents_missing,
            names=checkpoint.names,
            pinned=checkpoint.is_pinned,
            aside=checkpoint.is_aside,
            gpu_s=info.world_size * info.stall_us / US_PER_S,
            metrics=info.metrics,
            stored=stores_alone(self._drains, checkpoint),
        )

    def _columns(self, checkpoint: KeptCheckpoint) -> tuple[ColumnsView, ...]:
        views = []
        for rank, placed in sorted((checkpoint.placement or {}).items()):
            now = set(self._checkpoints.columns_now(checkpoint, rank))
            live = tuple(j in now for j in range(len(placed.columns)))
            views.append(ColumnsView(rank, placed.columns, live))
        return tuple(views)

    def _documents(self, checkpoint: KeptCheckpoint) -> tuple[DocumentView, ...]:
        wanted = checkpoint.document_copies
        having = [target.id for target in self._checkpoints.index_copies(checkpoint)]
        known = tuple(dict.fromkeys((*having, *checkpoint.index_targets)))[
            : max(wanted, len(having))
        ]
        index = DocumentView("index", known, tuple(id in having for id in known), wanted)
        records = tuple(target.id for target in self._checkpoints.record_copies(checkpoint))
        record = DocumentView("record", records, (True,) * len(records), wanted)
        if checkpoint.labels is None:
            return index, record
        labels = tuple(target.id for target in self._checkpoints.label_copies(checkpoint))
        return index, record, DocumentView("labels", labels, (True,) * len(labels), wanted)


def _target_view(target: Target) -> TargetView:
    return TargetView(
        id=target.id,
        state=target.state.value,
        domain=str(target.domain),
        address=target.address,
        pid=target.pid if target.session is not None else None,
        directory=target.directory,
        bytes_total=target.bytes_total,
        bytes_used=target.bytes_used,
        bytes_free=target.bytes_free,
        columns=len(target.proved),
        boot=f"{target.boot:016x}",
        counters=target.counters,
        device_failing=target.is_failing,
        device_error=target.device.latest,
        device_errors=target.device.errors,
        wire=target.wire,
        scrub=None if target.scrub is None else scrub_view(target.scrub),
        standing=target.standing.value,
    )


def _files_view(info: CommitInfo) -> FilesView:
    return FilesView(
        run=info.checkpoint.run,
        step=info.checkpoint.step,
        generation=str(info.checkpoint.generation),
        bytes=info.payload_bytes,
        committed_at_s=info.committed_at_s,
    )


def _attempt_view(attempt: Attempt) -> AttemptView:
    return AttemptView(
        run=attempt.checkpoint.run,
        step=attempt.checkpoint.step,
        generation=str(attempt.checkpoint.generation),
        state=attempt.state.value,
        ranks_handed_over=len(attempt.payloads),
        ranks_certified=sum(p.certified for p in attempt.payloads.values()),
        world_size=len(attempt.payloads) if attempt.of_members else attempt.world_size,
        bytes=sum(p.layout.payload_bytes for p in attempt.payloads.values()),
        ranks_awaited=_ranks_awaited(attempt),
    )


def _ranks_awaited(attempt: Attempt) -> tuple[int, ...]:
    """Of files nobody knows who will still come."""
    certified = {rank for rank, payload in attempt.payloads.items() if payload.certified}
    ranks = range(0 if attempt.of_members else attempt.world_size)
    return tuple(islice((rank for rank in ranks if rank not in certified), RANKS_NAMED_MAX))
