"""What `ckptbench roofline` tells people."""

from __future__ import annotations

from ckpt.base.units import format_bytes
from ckptbench.figures import Costs
from ckptbench.report.text import machine_line
from ckptbench.roofline import Roofline


def roofline_text(found: Roofline) -> str:
    """The costs, and the bounds that follow."""
    pairs = zip(_costs(found.tcp), _costs(found.lent), strict=True)
    return "\n".join(
        [
            machine_line(found.machine),
            "",
            "CPU seconds per GB            TCP     lent",
            *(f"  {name:<24} {tcp:8.4f} {lent:8.4f}" for (name, tcp), (_, lent) in pairs),
            "",
            f"warm copies, {found.ranks} at once      {found.copy_gb_per_s:.3g} GB/s",
            f"device, O_DIRECT write      {found.disk.gb_per_s:.3g} GB/s "
            f"({found.disk.tool}, {found.disk.writers} x {format_bytes(found.disk.block_bytes)})",
            f"device, O_DIRECT read       {found.disk_read_gb_per_s:.3g} GB/s (one reader, 1 MiB)",
            f"G* (save, {found.code}, TCP)        {found.save_bound_gb_per_s:.3g} GB/s, user data",
            f"R* (restore, TCP)           {found.restore_bound_gb_per_s:.3g} GB/s, user data",
        ]
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
