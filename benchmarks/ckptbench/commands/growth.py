"""`ckptbench growth`: CPU seconds of a save as bytes, ranks, targets or tensors grow."""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import msgspec

from ckpt.base.errors import CkptError
from ckpt.base.printable import printable
from ckptbench import proc
from ckptbench.commands.goals import settings_of
from ckptbench.commands.run import local_ranks, reserved_words, show_passed_over
from ckptbench.growth import AXES, Growth, Point, growth_rows, growth_text
from ckptbench.job import fio
from ckptbench.job.flags import parse_flags
from ckptbench.job.grammar import Section, Setting
from ckptbench.job.jobs import build_jobs
from ckptbench.results import JobResult
from ckptbench.run.session import check_all, run_jobs
from ckptbench.run.shelf import Context

COMMON: Final = "rw=save code=4+2 targets=6 warmups=2 loops=5 verify=0"


def main(argv: Sequence[str]) -> int:
    """The exit code; with --strict 1 where cost grew faster than what grew."""
    parser = argparse.ArgumentParser(
        prog="ckptbench growth",
        description="CPU seconds of a save along an axis, a cluster of its own for each size.",
        epilog="Every flag of a job may follow: --sink=null leaves the disk out, --loops=9, "
        "--directory=DIR.",
        allow_abbrev=False,  # --size= is the job's.
    )
    parser.add_argument("--axis", action="append", choices=sorted(AXES), help="[all]")
    parser.add_argument(
        "--sizes", type=_sizes, metavar="SIZE,SIZE,…", help="ascending, not the axis's own"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--strict", action="store_true", help="exit code 1 at a cliff")
    options, flags = parser.parse_known_args(argv)
    everywhere = parse_flags(flags, reserved_words(os.environ)).everywhere
    show_passed_over(fio.passed_over(everywhere))
    isolated = proc.isolate_loopback()
    found = []
    for axis in options.axis or AXES:
        sizes = options.sizes or AXES[axis].sizes
        points = tuple(_point(axis, size, everywhere, isolated=isolated) for size in sizes)
        found.append(Growth(axis, points))
    print(msgspec.json.encode(growth_rows(found)).decode() if options.json else growth_text(found))
    return int(options.strict and any(one.cliffs for one in found))


def _sizes(text: str) -> tuple[int, ...]:
    try:
        found = tuple(map(int, text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not like 4,8,16") from None
    if found[0] < 1 or any(late <= early for early, late in pairwise(found)):
        raise argparse.ArgumentTypeError(f"{text!r} does not ascend from 1 or more")
    return found


def _point(axis: str, size: int, everywhere: Sequence[Setting], *, isolated: bool) -> Point:
    """Raises CkptError when the job cannot run or has an error."""
    text = f"{COMMON} {AXES[axis].settings(size)}"
    section = Section(f"{axis}-{size}", settings_of(text, "growth"), "growth")
    jobs = build_jobs([[section]], everywhere)
    check_all(jobs, isolated=isolated)
    (job,) = run_jobs(jobs, Context(isolated, local_ranks, 1, lambda name, one: None)).jobs
    if job.errors:
        raise CkptError(f"{job.name}: {job.errors[0]}")
    print(printable(f"ckptbench: {job.name} is measured"), file=sys.stderr)
    return _median(size, job)


def _median(size: int, job: JobResult) -> Point:
    saves = job.counted("write")
    stages = [stage for stage in saves[0].spent.cpu_s if "thread" not in stage]
    cpu = {stage: statistics.median(one.spent.cpu_s[stage] for one in saves) for stage in stages}
    return Point(size, saves[0].bytes, cpu)
