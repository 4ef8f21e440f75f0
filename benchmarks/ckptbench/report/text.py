"""The report as people of fio know it, and below each job what a checkpoint adds."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from ckpt.base.units import format_bytes, format_seconds
from ckptbench.figures import Spread
from ckptbench.report.entries import DIRECTIONS, Entry, Flow, entries, make_entry
from ckptbench.report.mlperf import submission_lines, submissions
from ckptbench.report.numbers import both_rates, both_sizes, msec, rate, scaled, size, time_unit
from ckptbench.report.side_by_side import side_by_side_lines
from ckptbench.report.summary import Phases, Slowest, Summary, summarize
from ckptbench.results import END_WORDS, SAVES, JobResult, Machine, RunResult
from ckptbench.stats import LatencyHistogram, Quarters

PER_LINE: Final = 4
"""Percentiles in a line."""
LATENCY_STEPS: Final = (2, 4, 10, 20, 50, 100, 250, 500, 750, 1000)
LATENCY_UNITS: Final = (("nsec", 1), ("usec", 1000), ("msec", 1_000_000))


def run_text(found: RunResult) -> str:
    """All jobs, then the groups, then the goals and what is wrong."""
    lines = [machine_line(found.machine)]
    for job in found.jobs:
        for entry in entries(job):
            lines += _entry(entry)
        lines += _checkpoint(summarize(job))
    for group in sorted({job.group for job in found.jobs}):
        jobs = [job for job in found.jobs if job.group == group]
        lines += ["", *_group(group, jobs), *side_by_side_lines(jobs)]
    for submission in submissions(found):
        lines += ["", *submission_lines(submission)]
    goals = [] if found.rules else _goals(found.jobs)
    verdict = [*goals, *(f"ERROR  {error}" for error in found.errors)]
    return "\n".join([*lines, *([""] if verdict else []), *verdict])


def machine_line(machine: Machine) -> str:
    """What the figures depend on."""
    return (
        f"{machine.cpu}, {machine.cores} cores, {format_bytes(machine.memory_bytes)}, "
        f"Linux {machine.kernel}, Python {machine.python}, {machine.codec}"
    )


# --------------------------------------------------------------------------- as fio has it


def _entry(entry: Entry) -> Iterator[str]:
    job = entry.job
    when = time.asctime(time.gmtime(job.started_at_s))
    yield (
        f"{job.name}: (groupid={job.group}, jobs={len(entry.ranks) or job.world_size}): "
        f"err={job.exit_code:2d}: pid={job.pid}: {when}"
    )
    for name in DIRECTIONS:
        flow = entry.flows[name]
        if flow.total:
            yield from _flow(name, flow, job.percentiles)
    merged = LatencyHistogram()
    for flow in entry.flows.values():
        merged.merge(flow.lat)
    yield from _distribution(merged)
    usage = entry.usage
    yield (
        f"  cpu          : usr={entry.user_percent:.2f}%, sys={entry.system_percent:.2f}%, "
        f"ctx={usage.switches}, majf={usage.major_faults}, minf={usage.minor_faults}"
    )
    totals = ",".join(str(entry.flows[name].total) for name in DIRECTIONS)
    yield f"     issued rwts: total={totals},0,0 short=0,0,0,0 dropped=0,0,0,0"


def _flow(name: str, flow: Flow, percentiles: Sequence[float]) -> Iterator[str]:
    runtime_ms = flow.runtime_ns // 1_000_000
    yield (
        f"  {name}: IOPS={scaled(flow.iops, '', base=1000)}, BW={both_rates(flow.bytes_per_s)}"
        f"({size(flow.io_bytes)}/{runtime_ms}msec)"
    )
    for label, found in (("slat", flow.slat), ("clat", flow.clat), (" lat", flow.lat)):
        if found.count:
            yield f"    {label} {_latency(found)}"
    yield from _percentiles(flow.lat, percentiles)
    if flow.rates:
        mean = sum(flow.rates) / len(flow.rates)
        yield (
            f"   bw (  KiB/s): min={min(flow.rates):5.0f}, max={max(flow.rates):5.0f}, "
            f"per=100.00%, avg={mean:.2f}, stdev={flow.rate_deviation:.2f}, "
            f"samples={len(flow.rates):5d}"
        )


def _latency(found: LatencyHistogram) -> str:
    unit, size_ns = time_unit(found.least, found.most)
    return (
        f"({unit}): min={found.least // size_ns}, max={found.most // size_ns}, "
        f"avg={found.mean / size_ns:.2f}, stdev={found.stddev / size_ns:.2f}"
    )


def _percentiles(found: LatencyHistogram, wanted: Sequence[float]) -> Iterator[str]:
    unit, size_ns = time_unit(found.least, found.most)
    yield f"    lat percentiles ({unit}):"
    cells = [f"{one:5.2f}th=[{found.percentile(one) // size_ns:5d}]" for one in wanted]
    for start in range(0, len(cells), PER_LINE):
        end = "," if start + PER_LINE < len(cells) else ""
        yield "     | " + ", ".join(cells[start : start + PER_LINE]) + end


def _distribution(found: LatencyHistogram) -> Iterator[str]:
    """Which part of all latencies lies below each step, as fio groups them."""
    for unit, shares in latency_shares(found).items():
        shown = [f"{step}={share:.2f}%" for step, share in shares.items() if share]
        if shown:
            yield f"  lat ({unit})   : {', '.join(shown)}"


def latency_shares(found: LatencyHistogram) -> dict[str, dict[str, float]]:
    """Percent of all by unit and step; those beyond 2 s are `>=2000` ms."""
    shares: dict[str, dict[str, float]] = {}
    values = [(value, count) for value, count in found.by_value().items()]
    for unit, size_ns in LATENCY_UNITS:
        low = 0 if unit == "nsec" else size_ns
        shares[unit] = {}
        for step in (*LATENCY_STEPS, *((2000,) if unit == "msec" else ())):
            high = step * size_ns
            seen = sum(count for value, count in values if low <= value < high)
            shares[unit][str(step)] = 100 * seen / found.count if found.count else 0.0
            low = high
    over = sum(count for value, count in values if value >= 2_000_000_000)
    shares["msec"][">=2000"] = 100 * over / found.count if found.count else 0.0
    return shares


def _group(group: int, jobs: Sequence[JobResult]) -> Iterator[str]:
    yield f"Run status group {group} (all jobs):"
    for direction in DIRECTIONS:
        # Ranks are to a group what jobs are in fio: the least and the greatest of them.
        parts = [
            flow
            for job in jobs
            for rank in range(job.world_size)
            if (flow := _rank_flow(job, rank, direction)).total
        ]
        whole = [flow for job in jobs if (flow := _rank_flow(job, None, direction)).total]
        if not whole:
            continue
        total = sum(flow.io_bytes for flow in whole)
        longest = max(flow.runtime_ns for flow in whole)
        rates = [flow.bytes_per_s for flow in parts]
        least, most = min(rates), max(rates)
        runs = [flow.runtime_ns // 1_000_000 for flow in parts]
        yield (
            f"{direction.upper():>7}: bw={both_rates(total * 1e9 / longest)}, "
            f"{rate(least)}-{rate(most)} ({_decimal(least)}-{_decimal(most)}), "
            f"io={both_sizes(total)}, run={min(runs)}-{max(runs)}msec"
        )


def _rank_flow(job: JobResult, rank: int | None, direction: str) -> Flow:
    return make_entry(job, None if rank is None else (rank,)).flows[direction]


def _decimal(bytes_per_s: float) -> str:
    return f"{scaled(bytes_per_s, 'B', base=1000)}/s"


# --------------------------------------------------------------------------- ours


def _checkpoint(found: Summary) -> Iterator[str]:
    sizes = format_bytes(found.rank_bytes_least)
    if found.rank_bytes_most != found.rank_bytes_least:
        sizes += f" to {format_bytes(found.rank_bytes_most)}"
    ranks = f"{found.world_size} rank{'s' * (found.world_size != 1)}"
    yield f"  checkpoint   : {found.engine}, {ranks} x {sizes}"
    yield f"    durable    : {found.durability}"
    for phase in found.phases:
        yield from _phases(phase)
    yield from _bounds(found)
    if found.first is not None:
        fault_in = format_seconds(found.first.fault_in_s)
        yield f"    first save : {format_seconds(found.first.seconds)} and {fault_in} for memory"
    compared = {True: "every byte equal", False: "BYTES DIFFER", None: "not compared"}
    yield (
        f"    outside    : generator {format_seconds(found.generator_s)}; "
        f"compared: {compared[found.verified]}; "
        f"drain: {'measured' if found.drained else 'not run'}"
        + (f"; {found.failed} checkpoints failed" if found.failed else "")
        + (f"; {found.thrown_away} thrown away for drift" if found.thrown_away else "")
    )


def _phases(phase: Phases) -> Iterator[str]:
    yield f"    {phase.kind} (msec), {phase.count} of them, median of each:"
    rows: Iterable[tuple[str, Quarters | None]] = (
        ("stall", phase.stall),
        ("sealed", phase.sealed),
        (END_WORDS.get(phase.kind, "loaded"), phase.done),
    )
    for name, row in rows:
        if row is not None:
            yield (
                f"     | {name:<9}: first={msec(row.first)}, p50={msec(row.p50)}, "
                f"p99={msec(row.p99)}, last={msec(row.last)}, tail={100 * row.tail:.0f}%"
            )
    mean = phase.mean_of_rates
    yield (
        f"     | rates    : mean of rates {mean.mean:.3g} GB/s [{mean.low:.3g} - {mean.high:.3g}], "
        f"bytes/time {phase.bytes_by_time:.3g} GB/s, cv {phase.variation:.2f}"
    )
    slowest = [one for one in (phase.slowest_rank, phase.slowest_target) if one is not None]
    if slowest:
        yield f"     | slowest  : {', '.join(_slowest(one) for one in slowest)}"
    if phase.kind in SAVES:
        yield f"     | lost     : {phase.lost_rank_s:.3g} rank-seconds for each save"
    if phase.pace is not None:
        yield f"     | pace     : {phase.pace:.2f} of a training's alone, beside the save"
    if phase.slower_s is not None:
        yield (
            f"     | slower   : {phase.slower_s:.3g} s, the loop's loss: by so much its steps were "
            "longer than without the save, stall and pace"
        )
    ratios = [
        f"{name} {value:.3f} x payload"
        for name, value in (
            ("wire", phase.wire_by_payload),
            ("all traffic of the hosts", phase.hosts_by_payload),
            ("device", phase.device_by_payload),
        )
        if value is not None
    ]
    if ratios:
        yield f"     | bytes    : {', '.join(ratios)}"
    yield f"     | CPU s/GB : {_stages(phase.cpu_s_per_gb)}"
    state = [*(f"cache {one}" for one in phase.cache), *(f"from {one}" for one in phase.sources)]
    if phase.rebuilt_bytes:
        state.append(f"{format_bytes(phase.rebuilt_bytes)} from parity")
    if state:
        yield f"     | state    : {', '.join(state)}"
    for note in phase.faults:
        yield f"     | fault    : {note}"


def _bounds(found: Summary) -> Iterator[str]:
    rows = (
        (f"save / {found.bound_by}", found.save_eta),
        ("load / R*", found.load_eta),
        ("degraded / healthy", found.degraded_ratio),
        ("stall / warm copy", found.stall_ratio),
    )
    for name, value in rows:
        if value is not None:
            yield f"    {name:<19}: {_spread(value)}"
    if found.cpu_eta is not None:
        yield f"    {'CPU must / did':<19}: {found.cpu_eta:.3g} (eta, had every core been ours)"


def _goals(jobs: Sequence[JobResult]) -> Iterator[str]:
    for job in jobs:
        # Goals are stated for runs that measure their own bounds.
        if job.bounds is not None:
            for goal in summarize(job).goals:
                yield f"{goal} ({job.name})"


def _stages(costs: Mapping[str, float]) -> str:
    """The stages; after the stager its threads, in parentheses."""
    threads = [f"{cost:.3f}" for name, cost in costs.items() if "thread" in name]
    listed = f" (threads {' + '.join(threads)})" if threads else ""
    return ", ".join(
        f"{name} {cost:.3f}{listed if name == 'stager' else ''}"
        for name, cost in costs.items()
        if "thread" not in name
    )


def _slowest(one: Slowest) -> str:
    return f"{one.name} ({one.ratio:.2f}x)"


def _spread(values: Spread) -> str:
    return f"{values.median:.3g} [{values.low:.3g} - {values.high:.3g}, {values.count} runs]"
