"""`ckptbench roofline`: CPU seconds per GB of each stage, alone."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ckpt.erasure.code import Code
from ckptbench.report.roofline_text import roofline_text
from ckptbench.roofline import RooflinePlan, measure


def main(argv: Sequence[str]) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(
        prog="ckptbench roofline",
        description="Measures what each stage costs alone, and the bounds that follow.",
    )
    parser.add_argument(
        "--ranks", type=int, default=4, metavar="COUNT", help="processes at once [4]"
    )
    parser.add_argument("--code", default="4+2", metavar="K+M", help="erasure code [4+2]")
    parser.add_argument("--directory", type=Path, metavar="DIR", help="on the device to measure")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--quick", action="store_true", help="small probes: figures are rough")
    options = parser.parse_args(argv)
    found = measure(
        RooflinePlan(
            ranks=options.ranks,
            code=Code.parse(options.code),
            directory=options.directory,
            quick=options.quick,
        )
    )
    document = msgspec.json.format(msgspec.json.encode(found)).decode()
    print(document if options.json else roofline_text(found))
    return 0
