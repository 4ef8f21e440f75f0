"""How are all jobs of one call run? Group after group, the jobs of a group at the same time, each
storage started once and kept until no job that comes after uses it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from ckpt.base.errors import CkptError, Refused
from ckpt.erasure.code import Code
from ckptbench.checks import find_errors
from ckptbench.engines import RESHARDS, check_packages, make_storage
from ckptbench.faults.inject import check_netem
from ckptbench.job.jobs import Job, JobList
from ckptbench.job.options import STORE_VERBS, JobOptions
from ckptbench.rank import RankPlan
from ckptbench.ranks import RankGroup
from ckptbench.results import Bounds, JobResult, RunResult
from ckptbench.roofline import RooflinePlan, describe_machine, measure_bounds
from ckptbench.run.object_store import FILE, check_store
from ckptbench.run.section import SectionOutcome, SectionRun, wanted_faults
from ckptbench.run.shelf import Context, MakeRanks, StepShelf, state_plan
from ckptbench.run.turns import Seat, Turns

NETWORKED: Final = ("fsspec", "s3")
"""Engines whose storage lies beyond this host's loopback."""
URLS: Final = ("ckpt", "fsspec", "s3")
"""Engines that can be given a URL that all hosts see."""

INTERRUPTED_CODE: Final = 128 + signal.SIGINT
"""Of a job that a signal has cut off."""

Key = tuple[object, ...]


class Interrupted(KeyboardInterrupt):
    """A signal has ended the run; `found` is what had been measured by then."""

    def __init__(self, found: RunResult, cause: KeyboardInterrupt) -> None:
        super().__init__(*cause.args)
        self.found = found


def may_isolate(jobs: JobList) -> bool:
    """Whether nothing that the jobs need lies outside a network namespace of the run's own."""
    return not any(
        job.options.ioengine in NETWORKED
        or (job.options.ioengine == "ckpt" and job.options.url)
        or (job.options.rw in STORE_VERBS and not _is_here(job.options.durable))
        for job in jobs.jobs
    )


def _is_here(durable: str) -> bool:
    """An object store that is a directory."""
    return not durable or durable.startswith(FILE)


def check_all(jobs: JobList, *, isolated: bool, hosts: int = 1) -> None:
    """Everything that can be known to fail before anything is started. Raises Refused, and what
    an object store that cannot be used says.
    """
    for job in jobs.jobs:
        options = job.options
        if hosts > 1 and not (options.url if options.ioengine in URLS else options.directory):
            raise Refused(
                f"[{job.name}]: ranks on {hosts} hosts need a storage that all of them see",
                hint="url= of a cluster or store, or directory= on a shared file system",
            )
        check_packages(options.ioengine)
        if options.ioengine == "ckpt" and options.ckpt_mode == "torch":
            check_packages("dcp", "ckpt_mode=torch")
            if hosts > 1:
                raise Refused(f"[{job.name}]: ranks of ckpt_mode=torch meet on one host")
        if options.rw in STORE_VERBS and options.durable:
            check_store(options.durable)
        if options.directory and not _is_or_can_be_made(Path(options.directory)):
            raise Refused(f"[{job.name}]: directory={options.directory} cannot be made")
        check_netem(wanted_faults(options), isolated=isolated)
        reshards = options.rw == "reshard" or (
            job.loads and options.readers not in (0, options.ranks)
        )
        if reshards and options.ioengine not in RESHARDS:
            raise Refused(
                f"[{job.name}]: ioengine={options.ioengine} reads whole files: it cannot reshard",
                hint=f"one of {', '.join(sorted(RESHARDS))}",
            )
    for group in jobs.groups:
        if len({job.options.interleave for job in group}) > 1:
            alone = next(job.name for job in group if not job.options.interleave)
            raise Refused(
                f"[{alone}] would run beside jobs that take turns",
                hint="say interleave=1 for all jobs of a group, or a stonewall between them",
            )
        savers = [(_key(job.options), job.options.run) for job in group if job.saves]
        if len(savers) != len(set(savers)):
            raise Refused(
                f"jobs of one group save the same run={group[0].options.run} at the same time",
                hint="give each a run= of its own, or a stonewall between them",
            )


def _is_or_can_be_made(directory: Path) -> bool:
    """Whether the part of the path that is there lets the rest be made."""
    there = next(one for one in (directory, *directory.absolute().parents) if one.exists())
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def run_jobs(jobs: JobList, context: Context) -> RunResult:
    """All of it. Raises CkptError when a piece does not come up; a checkpoint that fails is in the
    result. Raises Interrupted after a signal, once anything was measured.
    """
    found: list[JobResult] = []
    try:
        with Session(context) as session:
            groups = jobs.groups
            for number, group in enumerate(groups):
                session.run_group(group, found)
                session.end_unused([job for later in groups[number + 1 :] for job in later])
    except KeyboardInterrupt as end:
        if not any(job.checkpoints for job in found):
            raise
        raise Interrupted(_run_result(jobs, found), end) from None
    return _run_result(jobs, found)


def _run_result(jobs: JobList, found: Sequence[JobResult]) -> RunResult:
    return RunResult(
        describe_machine(), tuple(found), dict(jobs.shared), time.time(), jobs.passed_over
    )


@dataclass(slots=True)
class Session:
    """I own the storages."""

    context: Context
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    #: Storages that were started, by what decides whether two jobs can share one.
    _shelves: dict[Key, StepShelf] = field(default_factory=dict)
    #: What ends each of them; `_stack` ends those that are left.
    _ends: dict[Key, contextlib.ExitStack] = field(default_factory=dict)
    #: What was measured of the machine, by what decides whether it holds for a job.
    _bounds: dict[Key, Bounds] = field(default_factory=dict)
    #: Every group of ranks that was started. Only its owner speaks with it; an interrupt kills all.
    _ranks: list[RankGroup] = field(default_factory=list)
    _interrupted: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Session:
        self.context = replace(self.context, make_ranks=self._noted(self.context.make_ranks))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def run_group(self, group: Sequence[Job], found: list[JobResult]) -> None:
        """All jobs of a group, begun at the same time; interleaved ones take turns. Adds what they
        led to, also when they are interrupted.
        """
        self.context.on_begun([job.name for job in group])
        shelves = [self._shelf(job.options) for job in group]
        bounds = [self._bound(job, shelf) for job, shelf in zip(group, shelves, strict=True)]
        gate = threading.Barrier(len(group))
        turns = Turns(len(group)) if group[0].options.interleave else None
        running: list[Future[JobResult]] = []
        try:
            with ThreadPoolExecutor(len(group)) as pool:
                try:
                    for number, each in enumerate(zip(group, shelves, bounds, strict=True)):
                        seat = Seat(turns, number)
                        running.append(pool.submit(self._run_job, *each, gate, seat))
                    wait(running)
                except BaseException:
                    # The jobs' threads wait for ranks, which are killed; they end at once.
                    self._interrupted.set()
                    gate.abort()
                    for ranks in self._ranks:
                        ranks.abandon()
                    raise
        except KeyboardInterrupt:
            found += [one.result() for one in running if one.exception() is None]
            raise
        found += [one.result() for one in running]

    def end_unused(self, later: Sequence[Job]) -> None:
        """End the storages that none of these jobs uses: idle daemons wake up beside what is
        measured, and hold memory.
        """
        for key in self._shelves.keys() - {_key(job.options) for job in later}:
            del self._shelves[key]
            self._ends.pop(key).close()

    def _noted(self, make_ranks: MakeRanks) -> MakeRanks:
        def make(
            plans: Sequence[RankPlan], environment: Mapping[str, str], log_directory: Path
        ) -> RankGroup:
            if self._interrupted.is_set():
                raise CkptError("interrupted")
            found = make_ranks(plans, environment, log_directory)
            self._ranks.append(found)
            if self._interrupted.is_set():
                # While they started; whoever did not see them here yet has not ended them.
                found.abandon()
            return found

        return make

    def _run_job(
        self, job: Job, shelf: StepShelf, bounds: Bounds | None, gate: threading.Barrier, seat: Seat
    ) -> JobResult:
        gate.wait()
        started, began = time.time(), time.monotonic()
        section = SectionRun(job, shelf, self.context, seat)
        try:
            with seat:
                outcome = section.run()
        except CkptError as error:
            if self._interrupted.is_set():
                outcome = section.ended_by("interrupted", INTERRUPTED_CODE)
            else:
                outcome = section.ended_by(str(error), error.exit_code)
        found = self._result(job, shelf, outcome, bounds, started, time.monotonic() - began)
        errors = (*found.errors, *find_errors(found))
        exit_code = found.exit_code or int(bool(errors))
        return replace(found, errors=errors, exit_code=exit_code)

    def _result(
        self, job: Job, shelf: StepShelf, outcome: SectionOutcome, bounds: Bounds | None,
        started_s: float, elapsed_s: float,
    ) -> JobResult:  # fmt: skip
        options, own = job.options, shelf.cluster is not None
        plan = state_plan(options, self.context.hosts)
        return JobResult(
            name=job.name,
            group=job.group,
            engine=options.ioengine,
            verb=options.rw,
            durability=shelf.storage.durability(options),
            given=dict(job.given),
            world_size=plan.world_size,
            rank_bytes=plan.rank_bytes,
            reader=options.reader,
            readers=options.readers or plan.world_size,
            code=options.code if own else "",
            targets=options.targets if own else 0,
            transport=("tcp" if options.tcp else "unix") if own else "",
            percentiles=options.percentile_list,
            group_reporting=options.group_reporting,
            log_avg_msec=options.log_avg_msec,
            checkpoints=tuple(outcome.checkpoints),
            started_at_s=started_s,
            elapsed_s=elapsed_s,
            pid=os.getpid(),
            hosts=self.context.addresses,
            start_skew_s=self.context.start_skew_s,
            discards=options.sink == "null" and own,
            interleaved=options.interleave,
            preset=options.preset,
            model=options.model,
            scale=str(options.scale),
            synced=options.end_fsync,
            read_gap_s=outcome.read_gap_s,
            raw=outcome.raw,
            thrown_away=outcome.thrown_away,
            bounds=bounds,
            daemon_bytes=outcome.daemon_bytes,
            verified=outcome.verified,
            errors=tuple(outcome.errors),
            exit_code=outcome.exit_code,
        )

    def _shelf(self, options: JobOptions) -> StepShelf:
        key = _key(options)
        if key not in self._shelves:
            if options.directory:
                Path(options.directory).mkdir(parents=True, exist_ok=True)
            end = self._ends[key] = self._stack.enter_context(contextlib.ExitStack())
            self._shelves[key] = StepShelf(end.enter_context(make_storage(options)))
        return self._shelves[key]

    def _bound(self, job: Job, shelf: StepShelf) -> Bounds | None:
        """G* and R*, when they were asked for; measured while nothing else runs."""
        options = job.options
        if not options.roofline:
            return None
        key = (options.code, options.ranks, options.quick, options.tcp, _key(options))
        if key not in self._bounds:
            plan = RooflinePlan(
                ranks=options.ranks, code=Code.parse(options.code), quick=options.quick
            )
            directory = Path(shelf.storage.log_directory)
            self._bounds[key] = measure_bounds(plan, directory, tcp=options.tcp)
        return self._bounds[key]


def _key(options: JobOptions) -> Key:
    """Jobs with equal ones share a storage."""
    of_cluster = (options.code, options.targets, options.cell, options.tcp, options.sink)
    return (
        options.ioengine,
        options.url,
        options.directory,
        *(of_cluster if options.ioengine == "ckpt" and not options.url else ()),
    )
