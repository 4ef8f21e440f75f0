"""What was measured, as plain records: everything that a report, a plot or a check needs.

Times are nanoseconds from the common beginning of one checkpoint unless a name says otherwise. A
"checkpoint" is one save or one load by all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ckptbench.figures import Costs, JudgedRule
from ckptbench.rank import Usage
from ckptbench.raw_disk import DiskRate


@dataclass(frozen=True, slots=True)
class Machine:
    """Where it was measured, without its name."""

    cpu: str
    cores: int
    memory_bytes: int
    kernel: str
    python: str
    codec: str


@dataclass(frozen=True, slots=True)
class RankTimes:
    """The times of one rank in one checkpoint."""

    rank: int
    bytes: int
    begun_ns: int
    """How late it began."""
    staged_ns: int
    """When training could go on; a load: when the state was there. A first save's fault-in is not
    in it.
    """
    done_ns: int
    """When it was durable; a load: as staged_ns."""
    usage: Usage = field(default_factory=Usage)
    fault_in_s: float = 0.0
    host: str = ""
    error: str = ""
    exit_code: int = 0


@dataclass(frozen=True, slots=True)
class Seal:
    """Columns that a target made durable at once."""

    target: str
    at_ns: int
    columns: int


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault that was done to a target while a checkpoint was under way."""

    target: str
    kind: str
    """kill, stop, slow, device or netem."""
    at_ns: int


@dataclass(frozen=True, slots=True)
class Sample:
    """What one process had moved so far."""

    name: str
    """A target, or `rank N` where ranks write themselves."""
    at_ns: int
    bytes: int


@dataclass(frozen=True, slots=True)
class HostSpent:
    """What one host's agent counted in one checkpoint, of the ranks there and their stagers."""

    machine: str
    """Equal for agents that count the same network interfaces."""
    cpu_s: Mapping[str, float]
    """By stage, without the trainers, which tell theirs."""
    device_read: int
    device_written: int
    received: int
    """Through all its network interfaces, whoever's bytes they were."""
    sent: int
    private_bytes: int
    """Of the largest stager, its arena apart."""
    host: str = ""
    """Its address; set by whoever asked it."""


@dataclass(frozen=True, slots=True)
class Spent:
    """What the cluster's processes and the kernel's counters added up to in one checkpoint."""

    cpu_s: Mapping[str, float] = field(default_factory=dict)
    """By stage: trainer, stager, targets, coordinator; stager threads apart."""
    wire_bytes: int | None = None
    """Of the loopback; None when it is not ours alone."""
    device_read: int | None = None
    device_written: int | None = None
    """Of the processes that write; None when they cannot be counted."""
    private_bytes: int = 0
    """Of the largest stager, its arena apart."""
    hosts: tuple[HostSpent, ...] = ()
    """Where agents ran the ranks; what they counted is in the sums above, but for the network."""

    @property
    def received(self) -> int | None:
        """By all machines together, whoever's bytes they were; None where ranks ran here."""
        return _of_machines([(one.machine, one.received) for one in self.hosts])

    @property
    def sent(self) -> int | None:
        """As `received`."""
        return _of_machines([(one.machine, one.sent) for one in self.hosts])


SAVES: Final = ("save", "aside")
"""Kinds that let training go on before they are done."""
END_WORDS: Final = {**dict.fromkeys((*SAVES, "fetch"), "committed"), "drain": "drained"}
"""By kind: what the last rank's end is called; `loaded` for all others."""


@dataclass(frozen=True, slots=True)
class CheckpointFigures:
    """One save or load by all ranks; a drain or a fetch, whose one mover stands as rank 0."""

    number: int
    """The loop, from 0; warm-ups are counted too."""
    step: int
    kind: str
    """save, load, reshard, degraded, drain, fetch or aside."""
    counts: bool
    """False for warm-ups and within ramp_time."""
    begun_s: float
    """Since the job began."""
    ranks: tuple[RankTimes, ...]
    seals: tuple[Seal, ...] = ()
    spent: Spent = field(default_factory=Spent)
    generator_s: float = 0.0
    """The slowest rank's making of its bytes, outside the clock."""
    copy_s: float | None = None
    """The slowest warm copy of all ranks at once, just before."""
    touch_s_per_gb: float | None = None
    """CPU of first touch by as many fresh processes, just before a load."""
    pace: float | None = None
    """Of the slowest rank's training after its stall, as a part of its pace alone."""
    slower_s: float | None = None
    """The loop's loss: so much longer the steps took than without the save. Its stall, and what
    `think=` lost beside it."""
    raw_gb_per_s: tuple[float, float] | None = None
    """The device without us, before and after."""
    cache: str = ""
    """What was done about the page cache."""
    slowest_target: str = ""
    columns_missing: int = 0
    rebuilt_bytes: int = 0
    source: str = ""
    equal: bool | None = None
    """None: not compared."""
    faults: tuple[str, ...] = ()
    """What was done to the targets, and when, in words."""
    strikes: tuple[Strike, ...] = ()
    """Those of the faults that struck while it was under way."""
    samples: tuple[Sample, ...] = ()

    @property
    def direction(self) -> str:
        """As fio names it, of the tier: a drain reads it, a fetch writes it."""
        return "write" if self.kind in (*SAVES, "fetch") else "read"

    @property
    def bytes(self) -> int:
        """Of all ranks that did not fail."""
        return sum(one.bytes for one in self.ranks if not one.error)

    @property
    def error(self) -> str:
        """Of the first rank that failed."""
        return next((one.error for one in self.ranks if one.error), "")

    @property
    def exit_code(self) -> int:
        """Of the first rank that failed."""
        return next((one.exit_code for one in self.ranks if one.error), 0)

    @property
    def last_ns(self) -> int:
        """When the last rank was done: sealed columns count before the commit that follows."""
        return max(one.done_ns for one in self.ranks)

    @property
    def sealed_ns(self) -> int | None:
        """When the last column of all was on stable storage."""
        return max((one.at_ns for one in self.seals), default=None)

    @property
    def device_bytes(self) -> int | None:
        """What it had devices move: written, by a drain into the object store; or read."""
        written = self.kind in (*SAVES, "fetch", "drain")
        return self.spent.device_written if written else self.spent.device_read

    @property
    def hosts_bytes(self) -> int | None:
        """What the hosts' networks carried: sent by a save or a fetch, else received."""
        return self.spent.sent if self.direction == "write" else self.spent.received

    @property
    def end_word(self) -> str:
        """The word for the end of the last rank."""
        return END_WORDS.get(self.kind, "loaded")

    @property
    def seconds(self) -> float:
        """The clock of the rates: to the last seal where columns are watched, else to the last
        rank's end.
        """
        sealed = self.sealed_ns
        return (self.last_ns if sealed is None else sealed) / 1e9

    @property
    def stall_s(self) -> float:
        """Of the slowest rank."""
        return max(one.staged_ns for one in self.ranks) / 1e9


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds, measured in the same run."""

    costs: Costs
    save_gb_per_s: float
    """G*."""
    restore_gb_per_s: float
    """R*."""
    cores: int


@dataclass(frozen=True, slots=True)
class JobResult:
    """Everything that one job did."""

    name: str
    group: int
    engine: str
    verb: str
    durability: str
    given: Mapping[str, str]
    """fio's "job options"."""
    world_size: int
    rank_bytes: tuple[int, ...]
    reader: str
    readers: int
    code: str
    """Empty where nothing is coded."""
    targets: int
    transport: str
    percentiles: tuple[float, ...]
    group_reporting: bool
    log_avg_msec: int
    checkpoints: tuple[CheckpointFigures, ...]
    started_at_s: float
    """Wall clock, for people."""
    elapsed_s: float
    pid: int
    hosts: tuple[str, ...] = ()
    start_skew_s: float = 0.0
    """No two of them began further apart."""
    discards: bool = False
    """The sink was null."""
    interleaved: bool = False
    """Its loops took turns with those of its group's other jobs."""
    preset: str = ""
    model: str = ""
    scale: str = "1"
    synced: bool = True
    """end_fsync."""
    read_gap_s: float | None = None
    """From the end of the last save of the run to the first load."""
    raw: DiskRate | None = None
    thrown_away: int = 0
    """Repetitions whose two raw disk runs differed too much."""
    bounds: Bounds | None = None
    daemon_bytes: int = 0
    """The largest daemon's memory, at its most."""
    verified: bool | None = None
    """Every byte was compared; None: nothing was."""
    errors: tuple[str, ...] = ()
    exit_code: int = 0

    def counted(self, direction: str) -> list[CheckpointFigures]:
        """Checkpoints of a direction that count and that no rank failed in."""
        return [
            one
            for one in self.checkpoints
            if one.counts and one.direction == direction and not one.error
        ]


@dataclass(frozen=True, slots=True)
class RunResult:
    """Everything that one call of the tool did."""

    machine: Machine
    jobs: tuple[JobResult, ...]
    shared: Mapping[str, str]
    """fio's "global options"."""
    finished_at_s: float
    passed_over: tuple[str, ...] = ()
    """Options of fio that the jobs said and that have no meaning here."""
    rules: tuple[JudgedRule, ...] = ()
    """Those of `ckptbench rules`; they stand in place of the jobs' own goals."""

    @property
    def errors(self) -> list[str]:
        return [f"{job.name}: {error}" for job in self.jobs for error in job.errors]


def _of_machines(counted: Sequence[tuple[str, int]]) -> int | None:
    """Agents of one machine have counted the same bytes: the one that counted longest stands."""
    most: dict[str, int] = {}
    for machine, count in counted:
        most[machine] = max(most.get(machine, 0), count)
    return sum(most.values()) if most else None
