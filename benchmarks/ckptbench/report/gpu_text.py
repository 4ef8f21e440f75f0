"""What `ckptbench gpu` tells people."""

from __future__ import annotations

from ckpt.base.units import format_bytes
from ckptbench.gpu.plan import FirstRow, GpuFigures, StagingRow, TrainingRow
from ckptbench.report.text import machine_line
from ckptbench.results import Machine


def gpu_text(found: GpuFigures, machine: Machine) -> str:
    """Tables of first saves, staging and training, and a line of the load."""
    load = found.load
    return "\n".join(
        [
            machine_line(machine),
            f"{found.device}, torch {found.torch}",
            "",
            "first save             call ms  prepared in s",
            *(_first_line(row) for row in found.first),
            "",
            "staging                call ms  staged ms    GB/s  of a plain copy  private memory",
            *(_staging_line(row) for row in found.staging),
            "",
            "training               ms a step  by plain  lost ms a save  guard ms",
            *(_training_line(row) for row in found.training),
            "",
            f"load onto the device   {load.bytes / load.whole_s / 1e9:.3g} GB/s, its first eighth "
            f"in {load.of_share:.2f} of an eighth of the time, "
            f"{format_bytes(load.private_bytes)} more private memory",
        ]
    )


def _first_line(row: FirstRow) -> str:
    name, prepared = ("prepared", f"{row.prepare_s:.2f}") if row.prepare_s else ("alone", "-")
    return f"  {name:<18} {row.call_s * 1e3:9.2f} {prepared:>14}"


def _staging_line(row: StagingRow) -> str:
    return (
        f"  {row.state + ', ' + row.mode:<18} {row.call_s * 1e3:9.2f} {row.staged_s * 1e3:10.2f} "
        f"{row.bytes / row.staged_s / 1e9:7.1f} {row.of_plain:16.2f} "
        f"{format_bytes(row.private_bytes):>15}"
    )


def _training_line(row: TrainingRow) -> str:
    return (
        f"  {row.mode:<18} {row.steps_s / row.steps * 1e3:11.1f} {row.steps_s / row.plain_s:9.3f} "
        f"{row.loss_s * 1e3:15.1f} {row.guard_s * 1e3:9.2f}"
    )
