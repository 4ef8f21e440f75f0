"""`ckptbench roofline | burst | restore`: how fast, as ratios of one run.

Exit code: 0; 1 when a byte compare fails, bytes do not add up or a figure is above its bound (and
with --strict when a goal is missed); 2 for options that make no sense; else that of the error.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Final

import msgspec

from ckpt.base.errors import CkptError
from ckpt.base.units import parse_bytes
from ckpt.erasure.code import Code
from ckptbench import proc
from ckptbench.burst import BurstPlan, run_burst
from ckptbench.figures import Goal
from ckptbench.report import burst_text, restore_text, roofline_text
from ckptbench.restore import RestorePlan, run_restore
from ckptbench.roofline import RooflinePlan, measure

INTERRUPTED: Final = 130
SINKS: Final = ("null", "disk")


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    options = parser().parse_args(sys.argv[1:] if argv is None else argv)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return _run(options)
    except CkptError as error:
        print(f"ckptbench {options.program}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("ckptbench: interrupted; everything that it started is gone", file=sys.stderr)
        return INTERRUPTED


def parser() -> argparse.ArgumentParser:
    """All options of all three programs."""
    found = argparse.ArgumentParser(
        prog="ckptbench",
        description="Measures what each stage costs, and how near bursts and restores come to it.",
        epilog="example:\n  ckptbench burst --ranks 4 --bytes 256MiB --code 4+2 --targets 6",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    programs = found.add_subparsers(dest="program", required=True, metavar="PROGRAM")
    roofline = programs.add_parser("roofline", help="CPU seconds per GB of each stage, alone")
    _add_common(roofline)
    burst = programs.add_parser("burst", help="saves of all ranks at once through a real cluster")
    _add_common(burst)
    _add_cluster(burst)
    burst.add_argument(
        "--sink", action="append", choices=SINKS, help="null drops fragments, disk is real; both"
    )
    restore = programs.add_parser("restore", help="cold loads, healthy and with m targets dead")
    _add_common(restore)
    _add_cluster(restore)
    return found


def burst_plan(options: argparse.Namespace, *, isolated: bool) -> BurstPlan:
    """Raises Refused for what cannot be."""
    return BurstPlan(
        ranks=options.ranks,
        bytes=parse_bytes(options.bytes),
        code=Code.parse(options.code),
        targets=options.targets,
        repetitions=options.repetitions,
        sinks=tuple(options.sink or SINKS),
        tcp=options.tcp,
        cell_bytes=parse_bytes(options.cell),
        directory=options.directory,
        isolated=isolated,
        quick=options.quick,
    )


def restore_plan(options: argparse.Namespace) -> RestorePlan:
    """Raises Refused for what cannot be."""
    return RestorePlan(
        ranks=options.ranks,
        bytes=parse_bytes(options.bytes),
        code=Code.parse(options.code),
        targets=options.targets,
        repetitions=options.repetitions,
        tcp=options.tcp,
        cell_bytes=parse_bytes(options.cell),
        directory=options.directory,
        quick=options.quick,
    )


def _run(options: argparse.Namespace) -> int:
    goals: tuple[Goal, ...] = ()
    errors: Sequence[str] = ()
    match options.program:
        case "roofline":
            plan = RooflinePlan(
                ranks=options.ranks,
                code=Code.parse(options.code),
                directory=options.directory,
                quick=options.quick,
            )
            roofline = measure(plan)
            document, text = msgspec.json.encode(roofline), roofline_text(roofline)
        case "burst":
            isolated = proc.isolate_loopback()
            burst = run_burst(burst_plan(options, isolated=isolated))
            document, text = msgspec.json.encode(burst), burst_text(burst)
            goals, errors = burst.goals, burst.errors
            if not isolated:
                text += "\nwire bytes were not checked: the loopback is shared with others here"
        case _:
            restore = run_restore(restore_plan(options))
            document, text = msgspec.json.encode(restore), restore_text(restore)
            goals, errors = restore.goals, restore.errors
    print(msgspec.json.format(document).decode() if options.json else text)
    missed = options.strict and not all(goal.met for goal in goals)
    return 1 if errors or missed else 0


def _add_common(found: argparse.ArgumentParser) -> None:
    found.add_argument("--ranks", type=int, default=4, metavar="N", help="processes at once [4]")
    found.add_argument("--code", default="4+2", metavar="K+M", help="[4+2]")
    found.add_argument(
        "--directory", type=Path, metavar="DIR", help="on the device to measure [temporary]"
    )
    found.add_argument("--json", action="store_true", help="print JSON")
    found.add_argument("--strict", action="store_true", help="a missed goal makes the exit code 1")
    found.add_argument("--quick", action="store_true", help="small probes: figures are rough")


def _add_cluster(found: argparse.ArgumentParser) -> None:
    found.add_argument("--bytes", default="256MiB", metavar="SIZE", help="of a rank [256MiB]")
    found.add_argument("--cell", default="2MiB", metavar="SIZE", help="a fragment [2MiB]")
    found.add_argument("--targets", type=int, default=6, metavar="N", help="[6]")
    found.add_argument("--repetitions", type=int, default=5, metavar="N", help="that count [5]")
    found.add_argument(
        "--tcp",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="--no-tcp uses Unix sockets where it can, a shortcut of one host",
    )


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
