"""What people and tools may ask, and the JSON they get: one answer for Ask,
HTTP `/v1/…` and the CLI. Its records are those of answers.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from ckpt.base.errors import NotFound, Refused
from ckpt.base.ids import RunName, Step
from ckpt.base.limits import DESCRIPTORS_REMEDY
from ckpt.erasure.code import Code
from ckpt.format.members import NO_LAUNCH
from ckpt.format.messages import CommitInfo
from ckpt.protocol.coordinator.answers import (
    AttemptView,
    Check,
    ColumnsView,
    CoordinatorView,
    FilesView,
    MembersView,
    MemberView,
    RunView,
    ShowView,
    StatusView,
    StepView,
    StoreStatus,
    TargetView,
)
from ckpt.protocol.coordinator.attempts import Attempt, AttemptBook
from ckpt.protocol.coordinator.catalog import RowState
from ckpt.protocol.coordinator.checkpoints import Checkpoint, Checkpoints
from ckpt.protocol.coordinator.drain_views import UNSERVED_US
from ckpt.protocol.coordinator.members import Members
from ckpt.protocol.coordinator.membership import Membership, Target, TargetState


class Views:
    """I render the machine's state; I change nothing."""

    def __init__(
        self,
        cluster: str,
        members: Membership,
        checkpoints: Checkpoints,
        book: AttemptBook,
        files: Members,
        code: Code,
        stores: Callable[[], tuple[StoreStatus, ...]],
    ) -> None:
        self._cluster = cluster
        self._members = members
        self._checkpoints = checkpoints
        self._book = book
        self._files = files
        self._code = code
        self.stores = stores
        self.coordinator = CoordinatorView()
        self.own_checks: Callable[[], tuple[Check, ...]] = tuple
        """What the coordinator's shell says of its own process."""

    def answer(self, what: str, run: RunName | None, step: Step | None) -> bytes:
        """The JSON for a question.

        Raises Refused for an unknown one, NotFound for an unknown run or step.
        """
        view: object
        match what:
            case "status":
                view = self.status()
            case "runs":
                view = self.runs()
            case "steps" if run is not None:
                view = self.steps(run)
            case "show" if run is not None and step is not None:
                view = self.show(run, step)
            case "files":
                view = self.files(run)
            case "members" if run is not None and step is not None:
                view = self.members(run, step)
            case _:
                raise Refused(
                    f"{what!r} is not one of status, runs, steps (run), show (run, step), "
                    "files, members (run, step)"
                )
        return msgspec.json.encode(view)

    def status(self) -> StatusView:
        stores = self.stores()
        checks = (*self.own_checks(), *self._checks(), *_drain_checks(stores))
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
            targets=tuple(_target_view(t) for t in self._members.targets.values()),
            runs=self.runs(),
            attempts=tuple(_attempt_view(attempt) for attempt in self._book.open()),
            stores=stores,
        )

    def runs(self) -> tuple[RunView, ...]:
        return tuple(self._run_view(run) for run in self._checkpoints.runs())

    def steps(self, run: RunName) -> tuple[StepView, ...]:
        """Committed and damaged generations, ascending. A run that never was has none."""
        held = self._checkpoints.of_run(run, RowState.COMMITTED, RowState.DAMAGED)
        committed = [c for c in held if c.state is RowState.COMMITTED]
        newest = committed[-1] if committed else None
        return tuple(self._step_view(c, c is newest) for c in held)

    def show(self, run: RunName, step: Step) -> ShowView:
        held = self._checkpoints.of_step(run, step, RowState.COMMITTED, RowState.DAMAGED)
        if not held:
            raise NotFound(f"{run}@{step} has no committed checkpoint", hint="see ckpt ls")
        views = tuple(view for view in self.steps(run) if view.step == step)
        return ShowView(views, self._columns(held[-1]))

    def files(self, below: RunName | None) -> tuple[FilesView, ...]:
        """Checkpoints of files, of the run and of those whose name it begins with a `/` behind it;
        of all runs without one.
        """
        found: list[FilesView] = []
        for run in self._checkpoints.runs():
            if below is None or run == below or run.startswith(f"{below}/"):
                committed = self._checkpoints.of_run(run, RowState.COMMITTED)
                newest = {checkpoint.id.step: checkpoint.info for checkpoint in committed}
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
        held = self._checkpoints.of_run(run, RowState.COMMITTED)
        return RunView(
            run=run,
            steps=len({c.id.step for c in held}),
            latest=held[-1].id.step if held else None,
            bytes=sum(c.info.payload_bytes for c in held),
            committed_at_s=held[-1].info.committed_at_s if held else 0.0,
        )

    def _step_view(self, checkpoint: Checkpoint, newest: bool) -> StepView:
        now = self._checkpoints.redundancy(checkpoint)
        info = checkpoint.info
        return StepView(
            run=info.checkpoint.run,
            step=info.checkpoint.step,
            generation=str(info.checkpoint.generation),
            state=checkpoint.state.value,
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
            stall_s=info.stall_us / 1e6,
            commit_s=info.commit_us / 1e6,
            fault_in_s=info.fault_in_us / 1e6,
            committed_at_s=info.committed_at_s,
            slowest_rank=info.slowest_rank,
            slowest_target=info.slowest_target,
            pinned=bool(checkpoint.pins),
            reason=checkpoint.reason,
            targets_survivable_at_commit=info.targets_survivable,
            domains_survivable_at_commit=info.domains_survivable,
            warnings=info.warnings,
            referenced_bytes=info.referenced_bytes,
            homes=tuple(home.step for home in info.homes),
        )

    def _columns(self, checkpoint: Checkpoint) -> tuple[ColumnsView, ...]:
        views = []
        for rank, columns in sorted(checkpoint.placement.items()):
            now = set(self._checkpoints.columns_now(checkpoint, rank))
            live = tuple(j in now for j in range(len(columns)))
            views.append(ColumnsView(rank, columns, live))
        return tuple(views)

    def _checks(self) -> tuple[Check, ...]:
        checks: list[Check] = []
        targets = list(self._members.targets.values())
        down = [t.id for t in targets if t.state is TargetState.DOWN]
        if down:
            remedy = "ckptd target on its host; ckpt target release if it is held"
            checks.append(Check("TARGET_DOWN", "warning", f"down: {', '.join(down)}", remedy))
        live = len(self._members.live())
        if live < self._code.floor:
            text = f"{live} targets are live, a save needs {self._code.floor} for {self._code}"
            checks.append(Check("TOO_FEW_TARGETS", "error", text, "start the missing targets"))
        full = [
            f"{t.id} (descriptor limit {t.counters.get('descriptor_limit', 0)})"
            for t in targets
            if t.state is TargetState.LIVE and t.counters.get("connections_full")
        ]
        if full:
            text = f"no room for trainers and readers: {', '.join(full)}"
            checks.append(Check("CONNECTIONS_FULL", "error", text, DESCRIPTORS_REMEDY))
        lost = [str(c.id) for c in self._checkpoints.all() if c.state is RowState.DAMAGED]
        if lost:
            text = f"damaged beyond repair: {', '.join(lost)}"
            checks.append(Check("CHECKPOINT_LOST", "error", text, "ckpt fetch or ckpt rm RUN@STEP"))
        checks.extend(self._redundancy_checks())
        return tuple(checks)

    def _redundancy_checks(self) -> list[Check]:
        unreadable: list[str] = []
        degraded: list[str] = []
        for checkpoint in self._checkpoints.all():
            if checkpoint.state is not RowState.COMMITTED:
                continue
            now = self._checkpoints.redundancy(checkpoint)
            if now.targets < 0:
                unreadable.append(str(checkpoint.id))
            elif now.columns_missing:
                degraded.append(str(checkpoint.id))
        checks = []
        if unreadable:
            text = f"{len(unreadable)} checkpoints are out of reach: {', '.join(unreadable[-3:])}"
            checks.append(Check("CHECKPOINT_UNREACHABLE", "error", text, "start the targets"))
        if degraded:
            text = f"{len(degraded)} checkpoints have less redundancy: {', '.join(degraded[-3:])}"
            checks.append(Check("REDUNDANCY_LOW", "warning", text, "start the targets"))
        return checks


def _drain_checks(stores: tuple[StoreStatus, ...]) -> Iterator[Check]:
    for store in stores:
        if store.error:
            text = f"{store.url}: {store.error}"
            yield Check("DRAIN_FAILING", "warning", text, "see the drain's log")
        elif store.backlog and store.unserved_s * 1e6 >= UNSERVED_US:
            text = f"{store.backlog} checkpoints wait for {store.url}, and no worker serves it"
            remedy = f"start ckptd drain, or: ckpt drain forget {store.url}"
            yield Check("DRAIN_STOPPED", "warning", text, remedy)


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
    )
