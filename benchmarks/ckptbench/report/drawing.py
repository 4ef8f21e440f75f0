"""What is drawn of a checkpoint: bars over time for ranks, marks and rates for targets.

One drawing for SVG and for PNG, in units of time and rows; how it becomes pixels is theirs. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ckptbench.results import SAVES, CheckpointFigures, JobResult, Sample

ROWS_MAX: Final = 64
"""Of ranks; with more, the slowest of them."""
POINTS_MAX: Final = 60
"""Of a lane, so that a rate is seen and not each write."""
COLOURS: Final = {
    "stall": "#d1495b", "durable": "#8fb8de", "loaded": "#66a182", "drained": "#66a182",
    "committed": "#66a182",
}  # fmt: skip
"""Of a bar's kind, in every format."""
LANE_COLOUR: Final = "#e8c07d"
MEANINGS: Final = {
    "stall": "training stands still",
    "durable": "until durable, beside training",
    "loaded": "until the state is there",
    "drained": "until an object store holds it, verified",
    "committed": "until the tier holds it again",
}


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch of time, milliseconds."""

    kind: str
    """stall, durable, loaded, drained or (a fetch) committed."""
    begin_ms: float
    end_ms: float


@dataclass(frozen=True, slots=True)
class Row:
    """The row of one rank."""

    name: str
    bars: tuple[Bar, ...]
    end_ms: float
    ratio: float
    """Its end against the median rank's: above 1 it makes others wait."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One target, or a rank that writes itself: its rate over time."""

    name: str
    points: tuple[tuple[float, float], ...]
    """(ms, MB/s) at the end of each interval."""
    marks_ms: tuple[float, ...]
    """When columns were sealed."""
    strikes: tuple[tuple[float, str], ...] = ()
    """(ms, kind) of faults that were done to it."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """The drawing of one checkpoint."""

    title: str
    direction: str
    end_word: str
    """What a rank's end is called."""
    width_ms: float
    rows: tuple[Row, ...]
    lanes: tuple[Lane, ...]
    peak: float
    """MB/s of the fastest lane."""
    notes: tuple[str, ...]


def draw(job: JobResult) -> list[Drawing]:
    """The slowest checkpoint of each kind that counts, in which the tail is seen best."""
    found = []
    for kind in dict.fromkeys(one.kind for one in job.checkpoints):
        counted = [o for o in job.checkpoints if o.kind == kind and o.counts and not o.error]
        if counted:
            found.append(draw_checkpoint(job, max(counted, key=lambda one: one.seconds)))
    return found


def draw_checkpoint(job: JobResult, one: CheckpointFigures) -> Drawing:
    """Draw one checkpoint."""
    ends = sorted(rank.done_ns for rank in one.ranks)
    middle = ends[len(ends) // 2] or 1
    slowest = sorted(one.ranks, key=lambda rank: -rank.done_ns)[:ROWS_MAX]
    rows = []
    for rank in sorted(slowest, key=lambda rank: rank.rank):
        begin, staged, done = (ns / 1e6 for ns in (rank.begun_ns, rank.staged_ns, rank.done_ns))
        bars = (
            (Bar("stall", begin, staged), Bar("durable", staged, done))
            if one.kind in SAVES
            else (Bar(one.end_word, begin, done),)
        )
        rows.append(Row(f"rank {rank.rank}", bars, done, rank.done_ns / middle))
    last_ns = max([one.last_ns, *(seal.at_ns for seal in one.seals)])
    lanes = _lanes(one, every_ns=last_ns // POINTS_MAX)
    peak = max((rate for lane in lanes for _, rate in lane.points), default=0.0)
    return Drawing(
        title=_title(one),
        direction=one.direction,
        end_word=one.end_word,
        width_ms=last_ns / 1e6,
        rows=tuple(rows),
        lanes=tuple(lanes),
        peak=peak,
        notes=(f"{job.name}, step {one.step}: {job.engine}, {job.durability}", *one.faults),
    )


def _title(one: CheckpointFigures) -> str:
    """What the picture shows, in one line."""
    count = f"{len(one.ranks)} ranks" if len(one.ranks) > 1 else "1 rank"
    what = f"{one.kind.capitalize()} of {one.bytes / 1e9:.2f} GB by {count}"
    if one.kind not in SAVES:
        return f"{what}: {one.end_word} in {one.seconds:.2f} s"
    stall_ms = max(rank.staged_ns - rank.begun_ns for rank in one.ranks) / 1e6
    return f"{what}: {stall_ms:.0f} ms of stall, durable in {one.seconds:.2f} s"


def _lanes(one: CheckpointFigures, every_ns: int) -> list[Lane]:
    names = dict.fromkeys([*(s.name for s in one.samples), *(s.target for s in one.seals)])
    return [
        Lane(
            name,
            rates([sample for sample in one.samples if sample.name == name], every_ns),
            tuple(seal.at_ns / 1e6 for seal in one.seals if seal.target == name),
            tuple((it.at_ns / 1e6, it.kind) for it in one.strikes if it.target == name),
        )
        for name in sorted(names, key=_natural)
    ]


def rates(samples: Sequence[Sample], every_ns: int = 0) -> tuple[tuple[float, float], ...]:
    """(ms, MB/s) between samples of one process that are so far apart at least."""
    points, last_ns, last_bytes = [], 0, 0
    for sample in samples:
        if sample.at_ns > last_ns + every_ns or (sample is samples[-1] and sample.at_ns > last_ns):
            moved, took = sample.bytes - last_bytes, sample.at_ns - last_ns
            points.append((sample.at_ns / 1e6, moved / 1e6 * 1e9 / took))
            last_ns, last_bytes = sample.at_ns, sample.bytes
    return tuple(points)


def _natural(name: str) -> tuple[str, int]:
    """`t2` before `t10`."""
    head = name.rstrip("0123456789")
    return head, int(name[len(head) :] or 0)
