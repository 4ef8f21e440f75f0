"""What `ckptbench repair` is to do, and what it finds. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ckpt.base.units import MiB
from ckpt.erasure.code import Code
from ckptbench.figures import Costs


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """What one run of `ckptbench repair` measures."""

    code: Code = field(default_factory=lambda: Code(4, 2))
    targets: int = 7
    """More than the code has columns: a target may stay away."""
    size: int = 64 * MiB
    """Of each payload."""
    payloads: int = 32
    """That are held: with fewer, the first one's connections and memory are what a target costs."""
    large: int = 256 * MiB
    """Of one payload more, whose column is timed alone: several windows."""
    burst: int = 256 * MiB
    """Of each rank of a burst."""
    loops: int = 5
    bursts: int = 20
    """Beside rebuilds: the worst of them counts."""
    floor_s: float = 10.0
    """So long saves go on while it is seen what repair gets."""
    sources: int = 200
    """Small payloads, of which each loses one column: do all targets give the same?"""
    lost_columns: int = 100_000
    """For the coordinator to queue."""
    rebuild_after_s: int = 2
    cell_bytes: int = 0
    directory: Path | None = None
    """On the device to measure; None takes the temporary directory."""
    quick: bool = False
    """Small probes for the roofline: figures are rough."""


@dataclass(frozen=True, slots=True)
class ColumnMade:
    """How one column of the large payload was made again."""

    read_s: float
    """Its sources, by the same windows."""
    made_s: float
    """The same, and the column made, sent and durable."""
    bytes: int
    """Of it."""


@dataclass(frozen=True, slots=True)
class TargetMade:
    """What targets had lost, made again by one worker."""

    seconds: float
    payloads: int
    columns: int
    bytes: int
    """Of these columns."""
    needed_bytes: int
    """k columns of each payload; of one that moves the data column alone, which is copied."""
    read_bytes: int
    """By the targets from their disks."""
    written_bytes: int
    cpu_s: float
    """Of worker and targets; the coordinator answers this run's own questions as well."""
    worker_bytes: int
    """The worker's memory at its peak."""
    given_bytes: Mapping[str, int]
    """By each target that has columns of these payloads."""

    @property
    def unevenness(self) -> float:
        """The most that one target gave, over the mean."""
        given = self.given_bytes.values()
        return max(given) * len(given) / sum(given)


@dataclass(frozen=True, slots=True)
class BurstTimes:
    """Two saves of one round, from the call to the commit; None: it was over before the save."""

    alone_s: float
    during_scrub_s: float | None


@dataclass(frozen=True, slots=True)
class BesideRebuilds:
    """Saves while columns are made again, and what repair gets meanwhile."""

    alone_s: tuple[float, ...]
    """The same saves with nothing beside them, among the others."""
    beside_s: tuple[float, ...]
    """Of those alone that a rebuild outlasted."""
    floor_bytes_per_s: float
    """Of sources' bytes: what repair is to get while somebody saves."""
    read_bytes_per_s: float | None
    """And what it got; None: nothing was left to be made before the saves ended."""


@dataclass(frozen=True, slots=True)
class Kill:
    """A target that stays away."""

    seconds: float
    """Until nothing lacks."""
    bytes: int
    """Of what it held."""


@dataclass(frozen=True, slots=True)
class RepairRound:
    """One round of several alike."""

    column: ColumnMade
    target: TargetMade
    kill: Kill
    bursts: BurstTimes


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """What a loss costs the coordinator, by its own machine without network or disk."""

    columns: int
    queue_s: float
    """To find all that is due, and put it in its order."""
    queue_cpu_s: float
    leased: int
    """Columns that were handed out, made and named, each beside all others that wait."""
    lease_cpu_s: float
    """For these."""


@dataclass(frozen=True, slots=True)
class RepairFigures:
    """All figures of a run."""

    rounds: tuple[RepairRound, ...]
    several: TargetMade | None
    """m targets at once; None where m is 1."""
    even: TargetMade
    """Of the payloads for which sources are compared."""
    queue: QueueFigures
    costs: Costs
    bound_gb_per_s: float
    """B*."""
    cores: int
    beside: BesideRebuilds
    moved: TargetMade | None = None
    """What a target had that was drained."""
