"""What `ckptbench repair` tells people."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Final

from ckpt.base.units import MiB, format_bytes
from ckptbench.figures import Spread
from ckptbench.repair import goals
from ckptbench.repair.plan import RepairFigures, RepairPlan, TargetMade
from ckptbench.report.text import machine_line
from ckptbench.results import Machine

NEVER: Final = "never measured: it was over before the saves; raise --payloads"


def repair_text(found: RepairFigures, plan: RepairPlan, machine: Machine) -> str:
    """Medians, with least and greatest; then the goals."""
    judged = map(str, goals.find_goals(found, plan))
    return "\n".join(
        [
            machine_line(machine),
            f"{plan.code} on {plan.targets} targets, {plan.payloads} payloads of "
            f"{format_bytes(plan.size)} and one of {format_bytes(plan.large)}; "
            f"medians of {plan.loops} [least, greatest]",
            "",
            *_rates(found),
            *_bytes(found),
            *_bursts(found, plan),
            *_times(found, plan),
            "",
            *judged,
        ]
    )


def _rates(found: RepairFigures) -> Iterator[str]:
    yield _line("a column made again", _gb(goals.column_rate(found)))
    yield _line("  over its sources read", _ratio(goals.column_ratio(found)))
    yield _line("a whole target", _gb(goals.target_rate(found)))
    yield _line("  over a column", _ratio(goals.target_ratio(found)))
    yield _line("B*, what the cores can do", f"{found.bound_gb_per_s:.3g} GB/s of lost columns")
    yield _line("eta_rebuild", _ratio(goals.eta(found)))
    yield _line("CPU must / did", _ratio(goals.eta_of_cpu(found)))


def _bytes(found: RepairFigures) -> Iterator[str]:
    made = [one.target for one in found.rounds]
    yield _line("read / lost, 1 column lost", _moved(made))
    if found.several is not None:
        yield _line("read / lost, m targets lost", _moved([found.several]))
    if found.moved is not None:
        yield _line("read / moved, 1 drained", _moved([found.moved]))
    even = found.even
    given = ", ".join(format_bytes(each) for each in even.given_bytes.values())
    yield _line(
        "sources, max / mean", f"{even.unevenness:.3f} over {even.payloads} payloads ({given})"
    )


def _moved(made: list[TargetMade]) -> str:
    lost = sum(one.bytes for one in made)
    read = sum(one.read_bytes for one in made) / lost
    needed = sum(one.needed_bytes for one in made) / lost
    written = goals.written_ratio(made)
    return f"{read:.3f} of {needed:.3f} needed; written / lost {written:.4f}"


def _bursts(found: RepairFigures, plan: RepairPlan) -> Iterator[str]:
    alone = statistics.median(one.bursts.alone_s for one in found.rounds)
    yield _line("a burst alone", f"{1000 * alone:.0f} ms")
    for name, ratio, tries in (
        ("rebuild", goals.during_rebuild(found), plan.bursts),
        ("scrub", goals.during_scrub(found), plan.loops),
    ):
        if ratio is None:
            text = f"never measured: no {name} outlasted a burst; raise --payloads"
        else:
            text = f"{_ratio(ratio)}, {ratio.count} of {tries} that it outlasted"
        yield _line(f"  during a {name} / alone", text)
    read, floor = found.beside.read_bytes_per_s, found.beside.floor_bytes_per_s / MiB
    text = f"{read / MiB:.1f} of {floor:.1f} MiB/s read" if read is not None else NEVER
    yield _line("a rebuild during saves", text)


def _times(found: RepairFigures, plan: RepairPlan) -> Iterator[str]:
    kills = statistics.median(goals.kill_bounds_s(found, plan))
    yield _line(
        "from a kill to redundancy",
        f"{goals.median_kill_s(found):.1f} s of {kills:.1f} s ({plan.rebuild_after_s} s wait)",
    )
    yield _line("worker's memory", f"{goals.worker_bytes(found) / MiB:.0f} MiB at most")
    queue = found.queue
    yield _line(
        f"{queue.columns} columns queued",
        f"{queue.queue_s:.2f} s, {1000 * queue.queue_cpu_s / queue.columns:.4f} ms CPU each; "
        f"{1000 * queue.lease_cpu_s / queue.leased:.3f} ms to hand one out and name it",
    )


def _line(name: str, text: str) -> str:
    return f"{name:<28}{text}"


def _gb(found: Spread) -> str:
    return f"{found.median:.3g} GB/s [{found.low:.3g}, {found.high:.3g}]"


def _ratio(found: Spread) -> str:
    return f"{found.median:.3f} [{found.low:.3f}, {found.high:.3f}]"
