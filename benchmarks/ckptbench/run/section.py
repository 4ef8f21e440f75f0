"""How does one job run? Its loops over one shelf, and a last load that compares every byte."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Final

from ckpt.base.errors import CkptError
from ckpt.base.units import MiB
from ckpt.erasure.code import Code
from ckptbench import figures, proc
from ckptbench.faults.words import Before, Fault, FaultKind, parse_faults
from ckptbench.job.jobs import Job
from ckptbench.job.options import STORE_VERBS, JobOptions
from ckptbench.ranks import RankGroup
from ckptbench.raw_disk import DiskRate, best_write, repeat_write
from ckptbench.results import CheckpointFigures
from ckptbench.roofline import measure_touch
from ckptbench.run.checkpoints import Bench, Moment
from ckptbench.run.object_store import ObjectStore
from ckptbench.run.schedule import Loop, Schedule, pause_s
from ckptbench.run.shelf import Context, ShelvedStep, StepShelf, start_ranks, state_plan
from ckptbench.run.turns import Seat
from ckptbench.workload import StatePlan

DISCARDED_MAX: Final = 5
"""Repetitions that may be thrown away because the raw disk drifted."""
NULL_COMPARE_BYTES: Final = 8 * MiB
"""Of a rank, in the last save of a run whose targets drop fragments."""


@dataclass(slots=True)
class SectionOutcome:
    """What the loops of a job led to."""

    checkpoints: list[CheckpointFigures] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    exit_code: int = 0
    raw: DiskRate | None = None
    thrown_away: int = 0
    verified: bool | None = None
    read_gap_s: float | None = None
    daemon_bytes: int = 0


class SectionRun:
    """I run one job, all of it in turns of its seat."""

    def __init__(self, job: Job, shelf: StepShelf, context: Context, seat: Seat) -> None:
        self._job, self._options = job, job.options
        self._bench = Bench(context, shelf, job.options)
        self._shelf, self._context, self._seat = shelf, context, seat
        self._plan = state_plan(job.options, context.hosts)
        self._faults = wanted_faults(job.options)
        self._outcome = SectionOutcome()
        self._began_s = time.monotonic()
        #: The object store of a job that has one (`durable=`), while it runs.
        self._durable: ObjectStore | None = None

    def run(self) -> SectionOutcome:
        """All loops. A checkpoint that fails is an error of the outcome, not of the call."""
        if self._options.rw not in STORE_VERBS:
            return self._run()
        assert self._shelf.cluster is not None, "checked before the run"
        with ObjectStore(self._shelf.cluster, self._options) as self._durable:
            return self._run()

    def ended_by(self, error: str, exit_code: int) -> SectionOutcome:
        """What it had measured when that kept it from going on."""
        self._outcome.errors.append(error)
        self._outcome.exit_code = exit_code
        return self._outcome

    # ----------------------------------------------------------------------- loops

    def _run(self) -> SectionOutcome:
        with contextlib.ExitStack() as stack:
            with self._seat.turn():
                self._prepare()
                ranks = stack.enter_context(self._start(self._plan)) if self._job.saves else None
            if ranks is not None:
                self._loop(lambda moment: self._saving(ranks, moment))
            else:
                self._loop(self._fetching if self._options.rw == "fetch" else self._loading)
            with self._seat.turn():
                self._conclude(ranks)
        return self._outcome

    def _prepare(self) -> None:
        """What must lie there before the first loop, and how fast the raw device is."""
        time.sleep(self._options.startdelay)
        if self._job.loads and self._options.run not in self._shelf.saved:
            self._lay_out()
        if self._options.rw in ("fetch", "stored") and self._durable is not None:
            self._durable.put(self._shelf.saved[self._options.run])
        if self._options.baseline and self._job.saves and self._options.sink == "disk":
            directory = self._shelf.storage.log_directory
            self._outcome.raw = best_write(directory, self._stored_bytes(), self._writer_count())
        self._began_s = time.monotonic()

    def _conclude(self, ranks: RankGroup | None) -> None:
        if ranks is not None and not self._outcome.errors:
            ranks.finish()
        self._outcome.daemon_bytes = self._largest_daemon()
        stores = self._job.saves or self._options.rw == "fetch"
        if stores and self._options.verify != "0" and not self._outcome.errors:
            self._verify()

    def _loop(self, perform: Callable[[Moment], list[CheckpointFigures]]) -> None:
        schedule, number = Schedule(self._options), 0
        while (loop := schedule.following(time.monotonic() - self._began_s)) is not Loop.END:
            with self._seat.turn():
                found = perform(Moment(number, loop is Loop.COUNTED, self._began_s))
                if loop is Loop.COUNTED and self._is_thrown_away(found):
                    schedule.discard()
                    found = [replace(one, counts=False) for one in found]
                self._note(found)
            if any(one.error for one in found) and not self._options.continue_on_error:
                return
            number += 1
            last, rank_bytes = found[-1], max(self._plan.rank_bytes)
            time.sleep(pause_s(self._options, last.direction, rank_bytes, last.seconds))

    def _note(self, found: Sequence[CheckpointFigures]) -> None:
        outcome = self._outcome
        outcome.checkpoints += found
        for one in found:
            self._context.on_checkpoint(self._job.name, one)
            if one.error:
                outcome.errors.append(f"{one.kind} of step {one.step}: {one.error}")
                outcome.exit_code = outcome.exit_code or one.exit_code
            if one.equal is not None:
                outcome.verified = one.equal and outcome.verified is not False
            if one.equal is False:
                outcome.errors.append(f"{one.kind} of step {one.step}: loaded bytes differ")

    def _is_thrown_away(self, found: Sequence[CheckpointFigures]) -> bool:
        """The raw disk drifted around it. Past the limit it has no steady rate here; the spread
        will show it.
        """
        rates = [one.raw_gb_per_s for one in found if one.raw_gb_per_s is not None]
        drifted = any(figures.drift(*pair) > figures.DISK_DRIFT_MAX for pair in rates)
        if not drifted or self._outcome.thrown_away >= DISCARDED_MAX:
            return False
        self._outcome.thrown_away += 1
        return True

    def _saving(self, ranks: RankGroup, moment: Moment) -> list[CheckpointFigures]:
        """One save; then its drain, or another beside a drain; or with a load of the step before at
        the same moment.
        """
        if self._durable is not None:
            both = self._draining if self._options.rw == "drain" else self._aside
            return both(self._durable, ranks, moment)
        previous = self._shelf.saved.get(self._options.run)
        if self._options.rw != "mixed" or previous is None:
            return [self._bench.save(ranks, self._plan, moment, self._faults, self._raw)]
        moment = replace(moment, together=threading.Barrier(2))
        with self._start(previous.plan, self._bench.readers(previous)) as fresh:
            return _at_once(
                lambda: self._bench.save(ranks, self._plan, moment, self._faults, self._raw),
                lambda: self._bench.load(fresh, previous, "load", moment),
            )

    def _draining(
        self, durable: ObjectStore, ranks: RankGroup, moment: Moment
    ) -> list[CheckpointFigures]:
        """A fault strikes the drain: what it does to a save is rw=save's to measure."""
        durable.hold()
        save = self._bench.save(ranks, self._plan, moment, (), self._raw)
        if save.error:
            return [save]
        saved = self._shelf.saved[self._options.run]
        return [save, durable.drain(self._bench, saved, moment, self._faults)]

    def _aside(
        self, durable: ObjectStore, ranks: RankGroup, moment: Moment
    ) -> list[CheckpointFigures]:
        """Alone, then while a drain of its own, into an empty place, copies what that committed."""
        alone = self._bench.save(ranks, self._plan, moment, (), self._raw)
        if alone.error:
            return [alone]
        with durable.draining(moment.number):
            beside = self._bench.save(ranks, self._plan, moment, self._faults, self._raw)
        return [alone, replace(beside, kind="aside")]

    def _fetching(self, moment: Moment) -> list[CheckpointFigures]:
        """By a process and stagers as fresh as after a restart."""
        saved, durable = self._shelf.saved[self._options.run], self._durable
        assert durable is not None, "this job fetches"
        self._shelf.storage.forget_readers()
        durable.withdraw(saved)
        with self._start(saved.plan, readers=1) as ranks:
            return [durable.fetch(self._bench, ranks, saved, moment, self._faults)]

    def _loading(self, moment: Moment) -> list[CheckpointFigures]:
        saved = self._shelf.saved[self._options.run]
        if self._outcome.read_gap_s is None:
            self._outcome.read_gap_s = time.monotonic() - saved.ended_s
        kind = "reshard" if self._options.rw == "reshard" else "load"
        if self._durable is not None:
            cache = self._durable.drop_cache()
            return [replace(self._load_fresh(saved, kind, moment, self._faults), cache=cache)]
        if self._options.rw != "degraded":
            return [self._load_fresh(saved, kind, moment, self._faults)]
        healthy = self._load_fresh(saved, kind, moment, ())
        if healthy.error:
            return [healthy]
        return [healthy, self._load_fresh(saved, "degraded", moment, self._faults)]

    def _load_fresh(
        self, saved: ShelvedStep, kind: str, moment: Moment, faults: Sequence[Fault]
    ) -> CheckpointFigures:
        """By processes whose memory is as cold as after a restart, with the savers gone."""
        self._shelf.storage.forget_readers()
        touch = measure_touch(saved.plan.rank_bytes) if self._options.baseline else None
        with self._start(saved.plan, self._bench.readers(saved)) as ranks:
            found = self._bench.load(ranks, saved, kind, moment, faults)
        return replace(found, touch_s_per_gb=touch)

    # ----------------------------------------------------------------------- around them

    def _start(self, plan: StatePlan, readers: int = 0) -> RankGroup:
        durable = "" if self._durable is None else self._durable.url
        return start_ranks(self._context, self._shelf, self._options, plan, readers, durable)

    def _lay_out(self) -> None:
        """Save once, unmeasured, when no job before has left anything to load."""
        with self._start(self._plan) as ranks:
            found = self._bench.save(ranks, self._plan, Moment(0, False, self._began_s))
            if found.error:
                raise CkptError(f"[{self._job.name}] has nothing to load: {found.error}")
            ranks.finish()

    def _verify(self) -> None:
        """Load the last save with nothing but the storage left, and compare every byte."""
        if self._options.sink == "null":
            self._save_small()
        saved = self._shelf.saved[self._options.run]
        found = self._load_fresh(saved, "load", Moment(0, False, self._began_s), ())
        self._outcome.verified = bool(found.equal)
        if found.error:
            self._outcome.errors.append(f"what was saved cannot be loaded: {found.error}")
        elif not found.equal:
            self._outcome.errors.append("what was loaded is not what was saved")

    def _save_small(self) -> None:
        """Targets that drop fragments keep those of one small save."""
        cluster = self._shelf.cluster
        assert cluster is not None, "only they have a sink"
        cluster.keep_file.touch()
        sizes = tuple(min(size, NULL_COMPARE_BYTES) for size in self._plan.rank_bytes)
        small = replace(self._plan, rank_bytes=sizes)
        with self._start(small) as ranks:
            self._bench.save(ranks, small, Moment(0, False, self._began_s))
            ranks.finish()

    def _raw(self) -> float | None:
        """GB/s of the device without us, when it was asked for."""
        like = self._outcome.raw
        if like is None:
            return None
        directory = self._shelf.storage.log_directory
        return repeat_write(directory, self._stored_bytes(), like).gb_per_s

    def _stored_bytes(self) -> int:
        code = Code.parse(self._options.code) if self._shelf.cluster is not None else Code(1, 0)
        return int(figures.stored_bytes(sum(self._plan.rank_bytes), code))

    def _writer_count(self) -> int:
        return self._options.targets if self._shelf.cluster is not None else self._options.ranks

    def _largest_daemon(self) -> int:
        stages = self._shelf.storage.stages()
        pids = [*stages.get("targets", ()), *stages.get("coordinator", ())]
        if self._options.tcp:
            return max((proc.resident_bytes(pid) for pid in pids), default=0)
        return max((proc.private_bytes(pid, without="ckpt-arena") for pid in pids), default=0)


def wanted_faults(options: JobOptions) -> tuple[Fault, ...]:
    """Those that were asked for; without any, `degraded` kills m targets before each load."""
    if options.fault:
        return parse_faults(options.fault, options.targets)
    lost = Code.parse(options.code).m if options.rw == "degraded" else 0
    return (Fault(FaultKind.KILL, None, lost, 1.0, "", Before()),) if lost else ()


def _at_once(*calls: Callable[[], CheckpointFigures]) -> list[CheckpointFigures]:
    """What they return, each called on a thread of its own."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [one.result() for one in [pool.submit(call) for call in calls]]
