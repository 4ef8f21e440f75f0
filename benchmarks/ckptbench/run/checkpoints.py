"""One save, one load: what comes before the clock, what is on it, what comes after.

A save: new bytes, warm copies and raw disk writes when asked for; then all ranks at one moment, and
the clock runs until the last one is durable. A load: caches dropped; then all at one moment; then
every byte compared.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ckpt.base.errors import Unavailable
from ckptbench.faults.words import Fault
from ckptbench.job.options import JobOptions
from ckptbench.rank import RankAnswer, Usage
from ckptbench.ranks import NOW, RankGroup
from ckptbench.results import CheckpointFigures, RankTimes, Seal
from ckptbench.roofline import warm_free_memory
from ckptbench.run.shelf import Context, ShelvedStep, StepShelf
from ckptbench.run.watch import RunWatch
from ckptbench.workload import StatePlan

SEAL_TIMEOUT_S: Final = 60.0
SEAL_POLL_S: Final = 0.005


@dataclass(frozen=True, slots=True)
class Moment:
    """Which loop a checkpoint belongs to."""

    number: int
    counts: bool
    began_s: float
    """Of the job, monotonic."""
    together: threading.Barrier | None = None
    """Another checkpoint begins at the same moment."""

    def meet(self) -> None:
        """Wait for the other one."""
        if self.together is not None:
            self.together.wait()


@dataclass(frozen=True, slots=True)
class Bench:
    """Where a job's checkpoints happen, and how."""

    context: Context
    shelf: StepShelf
    options: JobOptions

    def save(
        self,
        ranks: RankGroup,
        plan: StatePlan,
        moment: Moment,
        faults: Sequence[Fault] = (),
        raw: Callable[[], float | None] = lambda: None,
    ) -> CheckpointFigures:
        """`raw` measures the device without us, before and after, in GB/s."""
        step, world = self.shelf.next_step(self.options.run), plan.world_size
        made = ranks.tell([f"fill {step}"] * world)
        copies = ranks.tell([f"copy {NOW}"] * world) if self.options.baseline else []
        train = [f"think {self.options.think:g}"] * world if self.options.think else []
        alone = ranks.tell(train) if train else []
        before = raw()
        watch = RunWatch(self.shelf, ranks, "write", faults, moment.number)
        moment.meet()
        after_it = ([train] if train else []) + [["wait"] * world]
        begun = watch.begin(
            sum(plan.rank_bytes), lambda: ranks.begin([f"save {step} {NOW}"] * world, *after_it)
        )
        staged = ranks.answers()
        beside = ranks.answers() if train else []
        done = ranks.answers()
        failed = any(one.error for one in (*staged, *done))
        try:
            seals = () if failed else self._wait_sealed(begun, world, done)
        finally:
            watch.stop(_cpu_s([*staged, *done]), counts_wire=self.counts_wire)
        after = raw()
        if not failed:
            self.shelf.put(self.options.run, ShelvedStep(step, plan, time.monotonic()))
        return CheckpointFigures(
            number=moment.number,
            step=step,
            kind="save",
            counts=moment.counts,
            begun_s=begun / 1e9 - moment.began_s,
            ranks=tuple(
                _save_times(rank, *both) for rank, both in enumerate(zip(staged, done, strict=True))
            ),
            seals=seals,
            spent=watch.spent,
            generator_s=max(one.ended_ns for one in made) / 1e9,
            copy_s=max(one.ended_ns - one.begun_ns for one in copies) / 1e9 if copies else None,
            pace=_slowest_pace(beside, alone),
            slower_s=slower_s(staged, beside, alone, self.options.think),
            raw_gb_per_s=None if before is None or after is None else (before, after),
            slowest_target=done[0].slowest_target,
            columns_missing=max(one.columns_missing for one in done),
            faults=watch.notes,
            strikes=watch.strikes,
            samples=watch.samples,
        )

    def load(
        self,
        ranks: RankGroup,
        saved: ShelvedStep,
        kind: str,
        moment: Moment,
        faults: Sequence[Fault] = (),
    ) -> CheckpointFigures:
        """By ranks that were started for it."""
        cache = self._drop_caches(ranks)
        lines = self._load_lines(saved)
        watch = RunWatch(self.shelf, ranks, "read", faults, moment.number)
        if self.options.baseline:
            warm_free_memory(sum(saved.plan.rank_bytes))
        moment.meet()
        begun = watch.begin(sum(saved.plan.rank_bytes), lambda: ranks.begin(lines))
        answers = ranks.answers()
        watch.stop(_cpu_s(answers), counts_wire=self.counts_wire)
        equal = None
        if not any(one.error for one in answers):
            if self.options.verify != "0":
                compared = ranks.tell([f"compare {saved.step}"] * len(lines))
                equal = all(one.equal for one in compared)
            ranks.finish()
        return CheckpointFigures(
            number=moment.number,
            step=saved.step,
            kind=kind,
            counts=moment.counts,
            begun_s=begun / 1e9 - moment.began_s,
            ranks=tuple(load_times(rank, one) for rank, one in enumerate(answers)),
            spent=watch.spent,
            cache=cache,
            rebuilt_bytes=sum(one.rebuilt_bytes for one in answers),
            source=answers[0].source,
            equal=equal,
            faults=watch.notes,
            strikes=watch.strikes,
            samples=watch.samples,
        )

    def readers(self, saved: ShelvedStep) -> int:
        """How many processes load it."""
        return self.options.readers or saved.plan.world_size

    @property
    def counts_wire(self) -> bool:
        """The loopback carries the cluster's bytes and nothing else."""
        return self.context.isolated and self.shelf.cluster is not None

    def _load_lines(self, saved: ShelvedStep) -> list[str]:
        world, readers = saved.plan.world_size, self.readers(saved)
        if self.options.rw in ("drain", "stored"):
            # What is compared at a drain's end is what the object store holds.
            return [f"stored {saved.step} {NOW} {rank}" for rank in range(world)]
        if self.options.rw == "reshard" or readers != world:
            return [f"boxes {saved.step} {NOW} {readers}"] * readers
        shift = 0
        if self.options.reader == "rotate":
            # To the ranks of the next host, or to the next rank where there is one host.
            shift = world // self.context.hosts if self.context.hosts > 1 else 1
        return [f"load {saved.step} {NOW} {(rank + shift) % world}" for rank in range(readers)]

    def _drop_caches(self, ranks: RankGroup) -> str:
        if not self.options.invalidate:
            return "as it was"
        files = self.shelf.storage.files()
        ranks.drop_caches(files)
        return "dropped" if files else "not ours to drop"

    def _wait_sealed(
        self, begun_ns: int, world_size: int, done: Sequence[RankAnswer]
    ) -> tuple[Seal, ...]:
        """Until all columns that the commit counted are on stable storage."""
        cluster = self.shelf.cluster
        if cluster is None:
            return ()
        count = world_size * cluster.plan.code.n - max(one.columns_missing for one in done)
        deadline_s = time.monotonic() + SEAL_TIMEOUT_S
        while True:
            found = cluster.sealed_since(begun_ns)
            if sum(columns for _, _, columns in found) >= count:
                break
            if time.monotonic() >= deadline_s:
                raise Unavailable(f"not all of {count} columns were sealed in time")
            time.sleep(SEAL_POLL_S)
        return tuple(Seal(name, when - begun_ns, columns) for name, when, columns in found)


def _save_times(rank: int, staged: RankAnswer, done: RankAnswer) -> RankTimes:
    fault_in_ns = int(done.fault_in_s * 1e9)
    return RankTimes(
        rank=rank,
        bytes=staged.bytes,
        begun_ns=staged.begun_ns,
        staged_ns=max(0, staged.ended_ns - fault_in_ns),
        done_ns=max(staged.ended_ns, done.ended_ns),
        usage=_both(staged.usage, done.usage),
        fault_in_s=done.fault_in_s,
        host=staged.host,
        error=staged.error or done.error,
        exit_code=staged.exit_code or done.exit_code,
    )


def load_times(rank: int, found: RankAnswer) -> RankTimes:
    return RankTimes(
        rank=rank,
        bytes=found.bytes,
        begun_ns=found.begun_ns,
        staged_ns=found.ended_ns,
        done_ns=found.ended_ns,
        usage=found.usage,
        host=found.host,
        error=found.error,
        exit_code=found.exit_code,
    )


def _slowest_pace(beside: Sequence[RankAnswer], alone: Sequence[RankAnswer]) -> float | None:
    pairs = zip(beside, alone, strict=True)
    return min((one.rounds_per_s / other.rounds_per_s for one, other in pairs), default=None)


def slower_s(
    staged: Sequence[RankAnswer],
    beside: Sequence[RankAnswer],
    alone: Sequence[RankAnswer],
    seconds: float,
) -> float | None:
    """Seconds by which the steps of the rank that lost most were longer than without the save; None
    where none trained.

    seconds: how long each trained beside the save, and alone.
    """
    found = (
        (call.ended_ns - call.begun_ns) / 1e9
        + seconds * (1 - one.rounds_per_s / other.rounds_per_s)
        for call, one, other in zip(staged, beside, alone, strict=False)
    )
    return max(found, default=None) if beside else None


def _both(first: Usage, second: Usage) -> Usage:
    return Usage(
        first.user_s + second.user_s,
        first.system_s + second.system_s,
        first.switches + second.switches,
        first.major_faults + second.major_faults,
        first.minor_faults + second.minor_faults,
    )


def _cpu_s(answers: Sequence[RankAnswer]) -> float:
    return sum(one.usage.cpu_s for one in answers)
