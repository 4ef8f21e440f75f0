"""`ckptbench repair`: how fast lost redundancy comes back, and what that costs saves."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from ckpt.base.printable import printable
from ckpt.base.units import parse_bytes
from ckpt.erasure.code import Code
from ckptbench import proc
from ckptbench.repair.goals import find_goals
from ckptbench.repair.measure import measure_repair
from ckptbench.repair.plan import RepairPlan
from ckptbench.report.repair_text import repair_text
from ckptbench.roofline import describe_machine

BYTES: Final = (
    ("--size", "64Mi", "of each payload"),
    ("--large", "256Mi", "of one more, whose column is timed by itself"),
    ("--burst", "256Mi", "of each of two ranks of a burst"),
)
COUNTS: Final = (
    ("--payloads", 32, "that are held"),
    ("--loops", 5, "rounds; medians of them"),
    ("--bursts", 20, "saves that begin during rebuilds; the worst counts"),
    ("--floor-s", 10, "seconds of saves during a rebuild"),
    ("--sources", 200, "payloads over which sources are compared"),
    ("--columns", 100_000, "that are lost before a coordinator"),
    ("--rebuild-after-s", 2, "how long a target that was killed is waited for"),
)


def main(argv: Sequence[str]) -> int:
    """The exit code; with --strict 1 where a goal is missed."""
    options = _parser().parse_args(argv)
    plan = RepairPlan(
        code=Code.parse(options.code),
        targets=options.targets or Code.parse(options.code).n + 1,
        size=options.size,
        payloads=options.payloads,
        large=options.large,
        burst=options.burst,
        loops=options.loops,
        bursts=options.bursts,
        floor_s=options.floor_s,
        sources=options.sources,
        lost_columns=options.columns,
        rebuild_after_s=options.rebuild_after_s,
        directory=options.directory,
        quick=options.quick,
    )
    proc.isolate_loopback()
    found = measure_repair(plan, _tell)
    machine, goals = describe_machine(), find_goals(found, plan)
    judged = [{**dataclasses.asdict(goal), "met": goal.met} for goal in goals]
    document = {"machine": machine, "plan": plan, "figures": found, "goals": judged}
    text = (
        msgspec.json.format(msgspec.json.encode(document, enc_hook=str)).decode()
        if options.json
        else repair_text(found, plan, machine)
    )
    print(text)
    return int(options.strict and not all(goal.met for goal in goals))


def _tell(text: str) -> None:
    print(printable(f"ckptbench: {text}"), file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ckptbench repair",
        description="Targets of a cluster of its own lose what they hold, one after the other; "
        "`ckptd repair` makes it again. Rates beside reading the same sources and beside what the "
        "cores can do, bytes, bursts beside rebuilds and a scrub, from a kill to full "
        "redundancy, and what many lost columns cost a coordinator.",
        epilog="ckptbench repair --loops=2 --bursts=4 --size=8Mi --burst=8Mi --quick takes a "
        "minute or two.",
    )
    parser.add_argument("--code", default="4+2", metavar="K+M", help="erasure code [4+2]")
    for name, default, text in BYTES:
        parser.add_argument(
            name, type=parse_bytes, default=default, metavar="BYTES", help=f"{text} [{default}]"
        )
    for name, number, text in COUNTS:
        parser.add_argument(
            name, type=int, default=number, metavar="COUNT", help=f"{text} [{number}]"
        )
    parser.add_argument(
        "--targets", type=int, metavar="COUNT", help="at least k + m + 1, so that one may stay away"
    )
    parser.add_argument("--directory", type=Path, metavar="DIR", help="on the device to measure")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--strict", action="store_true", help="exit code 1 where a goal is missed")
    parser.add_argument(
        "--quick", action="store_true", help="small probes for what the cores can do: rough"
    )
    return parser
