"""Read every byte of every column of a checkpoint where it lies, and compare.

Exit code 0: all columns are whole. 3: some are missing or damaged, the checkpoint
is readable from the others. 4: it is lost. 75: targets that hold it are out of
reach, so nothing is proved. Columns of earlier steps that hold what did not change
are read as well.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from ckpt.base.errors import Unavailable
from ckpt_client.cli.cluster import conversation, parse_which
from ckpt_client.cli.exits import ExitCode
from ckpt_client.cli.output import Output, Tone, counted, rate_text
from ckpt_client.locate import client_name

if TYPE_CHECKING:
    from ckpt_client.load.verify import ColumnHealth, VerifyReport

EXAMPLE = "ckpt verify llama/7b@12500\nckpt verify llama/7b@12500 --json | tail -n 1 | jq .state"

_ENDS: Final = {
    "healthy": (ExitCode.OK, Tone.GOOD),
    "degraded": (ExitCode.DEGRADED, Tone.WARN),
    "lost": (ExitCode.LOST, Tone.BAD),
    "unknown": (ExitCode.TRY_LATER, Tone.WARN),
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="RUN[@STEP]", help="which one, also RUN@NAME")


def run(arguments: argparse.Namespace, output: Output) -> int:
    from ckpt_client.load.reader_context import ReaderContext
    from ckpt_client.load.verify import verify

    wanted = parse_which(arguments.checkpoint)
    with conversation(arguments, output) as talk:
        run_name, step, only = talk.which(*wanted)
        control = talk.control
        size = sum(
            view.bytes
            for view in talk.steps(run_name)
            if view.step == step and (only is None or view.generation == str(only))
        )
        context = ReaderContext(
            control.locator.address, control.secret, control.cluster, client_name()
        )
        output.record("progress", {"run": run_name, "step": step, "payload_bytes": size})
        with output.waiting(f"verifying {run_name}@{step}"):
            report = verify(context, run_name, step, timeout_s=arguments.timeout, only=only)
    code, tone = _ENDS[report.state]
    output.record("summary", _summary(report))
    _print(report, tone, output)
    if code is ExitCode.TRY_LATER:
        raise Unavailable(
            f"{run_name}@{step} is not verified: targets that hold it are out of reach",
            hint="see ckpt status",
        )
    return code


def _summary(report: VerifyReport) -> dict[str, object]:
    checkpoint = report.checkpoint
    return {
        "run": checkpoint.run,
        "step": checkpoint.step,
        "generation": str(checkpoint.generation),
        "state": report.state,
        "payloads": report.payloads,
        "columns": [_column(each) for each in report.columns],
        "bytes_read": report.bytes_read,
        "seconds": report.seconds,
    }


def _column(health: ColumnHealth) -> dict[str, object]:
    return {
        "rank": health.rank,
        "column": health.column,
        "target": health.target,
        "state": health.state,
        "damaged": health.damaged,
        "home": health.home,
    }


def _print(report: VerifyReport, tone: Tone, output: Output) -> None:
    output.line(
        f"{report.checkpoint.run}@{report.checkpoint.step}  {output.tone(report.state, tone)}  "
        f"{counted(len(report.columns), 'column')}, "
        f"read {rate_text(report.bytes_read, report.seconds)}"
    )
    wrong = [each for each in report.columns if each.state != "whole"]
    if wrong:
        rows = [
            (
                str(each.rank), str(each.column), each.target or "-", each.state, _damage(each),
                f"of step {each.home}" if each.home else "",
            )
            for each in wrong
        ]  # fmt: skip
        output.table((">rank", ">column", "target", "state", "damage", ""), rows, indent="  ")


def _damage(health: ColumnHealth) -> str:
    ranges = [f"[{each.start}, {each.end})" for each in health.damaged]
    return " ".join([*ranges[:4], "…"] if len(ranges) > 4 else ranges)
