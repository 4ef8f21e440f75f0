"""What the benchmarks tell people: plain text, figures as ratios of one run with their spread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ckpt.base.units import format_bytes, format_seconds
from ckptbench.burst import BurstReport, SinkReport
from ckptbench.figures import Costs, Goal, Spread
from ckptbench.restore import RestoreReport
from ckptbench.roofline import Machine, Roofline


def roofline_text(found: Roofline) -> str:
    """The costs, and the bounds that follow."""
    return "\n".join(
        [
            *_machine(found.machine),
            "",
            "CPU seconds per GB            TCP     Unix",
            *(
                f"  {name:<24} {tcp:8.4f} {unix:8.4f}"
                for (name, tcp), (_, unix) in zip(
                    _costs(found.tcp), _costs(found.unix), strict=True
                )
            ),
            "",
            f"warm copies, {found.ranks} at once      {found.copy_gb_per_s:.3g} GB/s",
            f"device, O_DIRECT write      {found.disk.gb_per_s:.3g} GB/s "
            f"({found.disk.tool}, {found.disk.writers} x {format_bytes(found.disk.block_bytes)})",
            f"device, O_DIRECT read       {found.disk_read_gb_per_s:.3g} GB/s (one reader, 1 MiB)",
            f"G* (save, {found.code}, TCP)        {found.save_bound_gb_per_s:.3g} GB/s, user data",
            f"R* (restore, TCP)           {found.restore_bound_gb_per_s:.3g} GB/s, user data",
        ]
    )


def burst_text(found: BurstReport) -> str:
    """Each sink with its spread, then the goals."""
    lines = [
        *_machine(found.machine),
        f"{found.ranks} ranks x {format_bytes(found.rank_bytes)}, {found.code}, "
        f"{found.targets} targets",
    ]
    for sink in found.sinks:
        lines += ["", *_sink(sink)]
    return "\n".join([*lines, "", *_verdict(found.goals, found.errors)])


def restore_text(found: RestoreReport) -> str:
    """Healthy, degraded, then the goals."""
    rebuilt = sum(load.rebuilt_bytes for load in found.degraded) / len(found.degraded)
    return "\n".join(
        [
            *_machine(found.machine),
            f"{found.ranks} ranks x {format_bytes(found.rank_bytes)}, {found.code}, "
            f"{found.targets} targets, over {found.transport}; stagers gone, caches dropped",
            "",
            f"  healthy          {_spread(found.healthy_gb_per_s)} GB/s",
            f"  with m dead      {_spread(found.degraded_gb_per_s)} GB/s, "
            f"{format_bytes(rebuilt)} from parity",
            f"  R*               {found.bound_gb_per_s:.3g} GB/s "
            f"(the device reads {found.disk_read_gb_per_s:.3g} GB/s)",
            f"  eta              {_spread(found.eta)}",
            f"  degraded/healthy {_spread(found.degraded_ratio)}",
            "  CPU s/GB         " + _groups(found.cpu_s_per_gb),
            "",
            *_verdict(found.goals, found.errors),
        ]
    )


def _sink(found: SinkReport) -> Iterator[str]:
    bound = "G*" if found.raw is None else "raw disk"
    eta = "eta_cpu" if found.raw is None else "eta_disk"
    first = found.first
    yield f"sink {found.sink}, over {found.transport}"
    yield f"  user rate        {_spread(found.user_gb_per_s)} GB/s, n/k of it on the wire"
    yield f"  {bound:<16} {found.bound_gb_per_s:.3g} GB/s" + _raw(found)
    yield f"  {eta:<16} {_spread(found.eta)}"
    yield f"  stall/warm copy  {_spread(found.stall_ratio)}"
    yield f"  committed after  {_spread(found.commit_s)} s"
    yield "  CPU s/GB         " + _groups(found.cpu_s_per_gb)
    yield f"  CPU must / did   {found.cpu_eta:.3g} (eta, had every core been ours)"
    yield (
        f"  memory           stager {format_bytes(found.stager_private_bytes)} private, "
        f"daemon {format_bytes(found.daemon_bytes)}"
    )
    yield (
        f"  first save       {format_seconds(first.last_sealed_s)}, of which memory "
        f"{format_seconds(first.fault_in_s)} (not counted above)"
    )


def _raw(found: SinkReport) -> str:
    if found.raw is None:
        return ""
    raw = found.raw
    return (
        f" ({raw.tool}, {raw.writers} x {format_bytes(raw.block_bytes)}); "
        f"{found.thrown_away} repetitions thrown away for drift"
    )


def _verdict(goals: Sequence[Goal], errors: Sequence[str]) -> Iterator[str]:
    yield from (str(goal) for goal in goals)
    yield from (f"ERROR  {error}" for error in errors)


def _machine(machine: Machine) -> Iterator[str]:
    yield (
        f"{machine.cpu}, {machine.cores} cores, {format_bytes(machine.memory_bytes)}, "
        f"Linux {machine.kernel}, Python {machine.python}, {machine.codec}"
    )


def _costs(costs: Costs) -> list[tuple[str, float]]:
    return [
        ("copy (warm)", costs.copy),
        ("encode", costs.ec),
        ("fingerprint xxh3-128", costs.fingerprint),
        ("CRC-32", costs.crc),
        ("send", costs.tx),
        ("receive", costs.rx),
        ("read, O_DIRECT", costs.read),
        ("first touch", costs.touch),
    ]


def _groups(cpu_s_per_gb: dict[str, float]) -> str:
    return ", ".join(f"{name} {cost:.3f}" for name, cost in cpu_s_per_gb.items())


def _spread(values: Spread) -> str:
    return f"{values.median:.3g} [{values.low:.3g} - {values.high:.3g}, {values.count} runs]"
