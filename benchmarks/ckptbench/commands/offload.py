"""`ckptbench offload --to URL`: a drain and a load against a plain client with the same bytes; with
--aside, bursts during a drain against bursts alone."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence

import msgspec

from ckpt.base.units import parse_bytes
from ckptbench.drain_aside import DrainAside, measure_aside
from ckptbench.drain_speed import DrainSpeed, measure


def main(argv: Sequence[str]) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="ckptbench offload", description=__doc__)
    parser.add_argument("--to", metavar="URL", required=True, help="file:///DIR or s3://B/PREFIX")
    parser.add_argument(
        "--size", metavar="BYTES", default="512MiB", help="of the checkpoint [512MiB]"
    )
    parser.add_argument("--loops", type=int, default=3, metavar="COUNT", help="rounds [3]")
    parser.add_argument("--json", action="store_true", help="all rounds")
    parser.add_argument("--aside", action="store_true", help="bursts beside a drain instead")
    arguments = parser.parse_args(argv)
    if arguments.aside:
        aside = measure_aside(arguments.to, parse_bytes(arguments.size), arguments.loops, _note)
        print(msgspec.json.encode(aside).decode() if arguments.json else _aside_text(aside))
        return 0
    found = measure(arguments.to, parse_bytes(arguments.size), arguments.loops, _note)
    print(msgspec.json.encode(found).decode() if arguments.json else _text(found))
    return 0


def _note(text: str) -> None:
    """It takes minutes."""
    print(f"ckptbench offload: {text}", file=sys.stderr, flush=True)


def _aside_text(found: DrainAside) -> str:
    alone, draining = map(statistics.median, (found.alone_s, found.draining_s))
    return (
        f"a burst of {found.bytes / 1e9:.2f} GB: {alone:.2f} s alone, {draining:.2f} s during a"
        f" drain, ratio {found.ratio:.2f}; medians of {len(found.alone_s)}"
    )


def _text(found: DrainSpeed) -> str:
    size = found.gigabytes
    cpu = {
        "drain": found.median(lambda r: r.drain_cpu_s) / size,
        "reading the tier": found.median(lambda r: r.tier_cpu_s) / size,
        "writing": found.median(lambda r: r.write_cpu_s - r.back_cpu_s) / size,
        "reading back": found.median(lambda r: r.back_cpu_s) / size,
    }
    return "\n".join(
        [
            f"to {found.url}, {size:.2f} GB, {len(found.rounds)} rounds; plain: {found.plain_up}",
            f"drain {size / found.median(lambda r: r.drain_s):.2f} GB/s, plain upload"
            f" {size / found.median(lambda r: r.plain_up_s):.2f} GB/s, drain / plain"
            f" {found.median(lambda r: r.plain_up_s / r.drain_s):.2f}, drain / bound"
            f" {found.median(lambda r: r.bound_s / r.drain_s):.2f}",
            f"load {size / found.median(lambda r: r.load_s):.2f} GB/s, plain download"
            f" {size / found.median(lambda r: r.plain_down_s):.2f} GB/s, load / plain"
            f" {found.median(lambda r: r.plain_down_s / r.load_s):.2f}",
            "CPU s/GB: " + ", ".join(f"{name} {value:.2f}" for name, value in cpu.items()),
        ]
    )
