"""`ckptbench compare A.json B.json`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ckpt.base.errors import Refused
from ckpt.base.printable import printable, printable_json
from ckptbench.compare import compare, compare_text, read_report, unlike


def main(argv: Sequence[str]) -> int:
    """The exit code; with --strict 1 when anything became worse."""
    parser = argparse.ArgumentParser(
        prog="ckptbench compare",
        description="How two JSON reports differ, with 95% confidence intervals.",
    )
    parser.add_argument("before", type=Path, metavar="A.json")
    parser.add_argument("after", type=Path, metavar="B.json")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--strict", action="store_true", help="exit code 1 when B is worse")
    options = parser.parse_args(argv)
    try:
        documents = [(path, path.read_bytes()) for path in (options.before, options.after)]
    except OSError as error:
        raise Refused(f"cannot read {error.filename}: {error.strerror}") from None
    before, after = (read_report(text, str(path)) for path, text in documents)
    changes = compare(before, after)
    for job, differ in unlike(before, after).items():
        reasons = "; ".join(differ)
        text = f"ckptbench: {job} is not the same work in both: {reasons}"
        print(printable(text), file=sys.stderr)
    if options.json:
        rows = [{**msgspec.to_builtins(one), "verdict": one.verdict} for one in changes]
        print(printable_json(msgspec.json.format(msgspec.json.encode(rows)).decode()))
    else:
        print(printable(compare_text(changes), keep="\n"))
    return int(options.strict and any(one.verdict == "worse" for one in changes))
