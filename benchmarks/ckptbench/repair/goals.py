"""What follows from what `ckptbench repair` found: ratios of one run, and which goals they meet.
Pure.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Final

from ckpt.base.units import MiB
from ckptbench.figures import Goal, Spread, cpu_eta, gb_per_s, spread
from ckptbench.repair.plan import RepairFigures, RepairPlan, TargetMade

COLUMN_MAX: Final = 1.3
TARGET_MIN: Final = 0.8
ETA_GOALS: Final = (0.5, 0.8)
READ_MAX: Final = 1.01
WRITTEN_MAX: Final = 1.005
SOURCES_MAX: Final = 1.1
DURING_REBUILD_MAX: Final = 1.10
DURING_REBUILD_WORST_MAX: Final = 1.5
FLOOR_KEPT_MIN: Final = 0.9
DURING_SCRUB_MAX: Final = 1.05
KILL_SLACK_S: Final = 10.0
KILL_BYTES: Final = 1.25
WORKER_MIB_MAX: Final = 256
QUEUE_S_MAX: Final = 1.0
COLUMN_CPU_MS_MAX: Final = 0.2
QUEUE_COLUMNS: Final = 100_000


def column_ratio(found: RepairFigures) -> Spread:
    """A column made again over its sources read."""
    return spread([one.column.made_s / one.column.read_s for one in found.rounds])


def column_rate(found: RepairFigures) -> Spread:
    """GB/s of lost columns, one by itself."""
    return spread([gb_per_s(one.column.bytes, one.column.made_s) for one in found.rounds])


def target_rate(found: RepairFigures) -> Spread:
    """GB/s of all that a target held."""
    return spread([gb_per_s(one.target.bytes, one.target.seconds) for one in found.rounds])


def target_ratio(found: RepairFigures) -> Spread:
    """That of a whole target over that of a column, round by round."""
    pairs = [(one.target, one.column) for one in found.rounds]
    return spread([(a.bytes / a.seconds) / (column.bytes / column.made_s) for a, column in pairs])


def eta(found: RepairFigures) -> Spread:
    """A column's rate over what the machine's cores can do."""
    return spread(
        [
            gb_per_s(one.column.bytes, one.column.made_s) / found.bound_gb_per_s
            for one in found.rounds
        ]
    )


def eta_of_cpu(found: RepairFigures) -> Spread:
    """CPU seconds that a lost GB must cost over those of a whole target's: worker and
    targets."""
    costs = [one.target.cpu_s / one.target.bytes * 1e9 for one in found.rounds]
    return spread([cpu_eta(found.bound_gb_per_s, found.cores, cost) for cost in costs])


def read_ratio(made: Sequence[TargetMade]) -> float:
    """Bytes read over k columns of each payload."""
    return sum(one.read_bytes for one in made) / sum(one.needed_bytes for one in made)


def written_ratio(made: Sequence[TargetMade]) -> float:
    """Bytes written over those that were lost."""
    return sum(one.written_bytes for one in made) / sum(one.bytes for one in made)


def worker_bytes(found: RepairFigures) -> int:
    """The most that a worker ever had."""
    return max(one.worker_bytes for one in _all_made(found))


def during_rebuild(found: RepairFigures) -> Spread | None:
    """Saves beside a rebuild over those alone; None where none was beside it to the end."""
    alone = statistics.median(found.beside.alone_s)
    ratios = [seconds / alone for seconds in found.beside.beside_s]
    return spread(ratios) if ratios else None


def floor_kept(found: RepairFigures) -> float | None:
    """What repair read while saves went on, over its floor; None: it was over before them."""
    read = found.beside.read_bytes_per_s
    return None if read is None else read / found.beside.floor_bytes_per_s


def during_scrub(found: RepairFigures) -> Spread | None:
    """Likewise, each beside one alone of its round."""
    bursts = [one.bursts for one in found.rounds]
    ratios = [b.during_scrub_s / b.alone_s for b in bursts if b.during_scrub_s is not None]
    return spread(ratios) if ratios else None


def kill_bounds_s(found: RepairFigures, plan: RepairPlan) -> list[float]:
    """How long each may take, at the rate of a whole target."""
    rate = target_rate(found).median * 1e9
    return [
        plan.rebuild_after_s + KILL_SLACK_S + KILL_BYTES * one.kill.bytes / rate
        for one in found.rounds
    ]


def kill_ratio(found: RepairFigures, plan: RepairPlan) -> Spread:
    """From a kill to full redundancy, over its bound."""
    bounds = kill_bounds_s(found, plan)
    return spread(
        [one.kill.seconds / bound for one, bound in zip(found.rounds, bounds, strict=True)]
    )


def queue_cpu_ms(found: RepairFigures) -> float:
    """Of a lost column: to find it, and to hand it out and name it."""
    queue = found.queue
    return 1000 * (queue.queue_cpu_s / queue.columns + queue.lease_cpu_s / queue.leased)


def find_goals(found: RepairFigures, plan: RepairPlan) -> list[Goal]:
    """All that could be judged."""
    return [*_rate_goals(found, plan), *_byte_goals(found), *_burst_goals(found)]


def _rate_goals(found: RepairFigures, plan: RepairPlan) -> Iterator[Goal]:
    yield Goal("a column / its sources read", column_ratio(found).median, COLUMN_MAX, False)
    yield Goal("a whole target's rate / a column's", target_ratio(found).median, TARGET_MIN, True)
    yield Goal("eta_rebuild", eta(found).median, ETA_GOALS[0], True, ETA_GOALS[1])
    yield Goal("kill to redundancy / bound", kill_ratio(found, plan).median, 1.0, False)
    yield Goal("worker's memory, MiB", worker_bytes(found) / MiB, WORKER_MIB_MAX, False)
    queued_s = found.queue.queue_s * QUEUE_COLUMNS / found.queue.columns
    yield Goal("100,000 columns queued, s", queued_s, QUEUE_S_MAX, False)
    yield Goal("CPU of a column, ms", queue_cpu_ms(found), COLUMN_CPU_MS_MAX, False)


def _byte_goals(found: RepairFigures) -> Iterator[Goal]:
    one = [each.target for each in found.rounds]
    yield Goal("read / needed, 1 lost", read_ratio(one), READ_MAX, False)
    yield Goal("written / lost, 1 lost", written_ratio(one), WRITTEN_MAX, False)
    if found.several is not None:
        yield Goal("read / needed, m lost", read_ratio([found.several]), READ_MAX, False)
        yield Goal("written / lost, m lost", written_ratio([found.several]), WRITTEN_MAX, False)
    if found.moved is not None:
        yield Goal("read / needed, moved", read_ratio([found.moved]), READ_MAX, False)
        yield Goal("written / moved", written_ratio([found.moved]), WRITTEN_MAX, False)
    yield Goal("sources, max / mean", found.even.unevenness, SOURCES_MAX, False)


def _burst_goals(found: RepairFigures) -> Iterator[Goal]:
    beside = during_rebuild(found)
    if beside is not None:
        yield Goal("burst during a rebuild / alone", beside.median, DURING_REBUILD_MAX, False)
        name = f"the worst of {beside.count}"
        yield Goal(name, beside.high, DURING_REBUILD_WORST_MAX, False)
    kept = floor_kept(found)
    if kept is not None:
        yield Goal("a rebuild during saves / its floor", kept, FLOOR_KEPT_MIN, True)
    scrub = during_scrub(found)
    if scrub is not None:
        yield Goal("burst during a scrub / alone", scrub.median, DURING_SCRUB_MAX, False)


def _all_made(found: RepairFigures) -> list[TargetMade]:
    others = [one for one in (found.several, found.moved) if one is not None]
    return [*(one.target for one in found.rounds), *others, found.even]


def median_kill_s(found: RepairFigures) -> float:
    """Seconds."""
    return statistics.median(one.kill.seconds for one in found.rounds)
