"""Show what lacks columns, who makes them again, and what came of it.

`ckptd repair` does the work, one process or more for a cluster; a local cluster starts it by
itself. What is on targets that are away is waited for (`rebuild_after_s` of the coordinator),
unless its payload can lose no more.
"""

from __future__ import annotations

import argparse

from ckpt.base.units import format_bytes, format_seconds
from ckpt.protocol.coordinator.reading.answers import RepairTaskView, RepairView
from ckpt_client.cli.cluster import conversation
from ckpt_client.cli.exits import ExitCode
from ckpt_client.cli.output import Output, counted

EXAMPLE = "ckpt repair\nckpt repair --json --store ckpt://10.0.0.1:7070"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        choices=("ls",),
        nargs="?",
        default="ls",
        help="what to do [ls]",
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    with conversation(arguments, output) as talk:
        view = talk.repair()
    output.document(view)
    _show(view, output)
    return ExitCode.OK


def _show(view: RepairView, output: Output) -> None:
    if view.tasks:
        output.table(
            ("payload", "columns", "to", ">read", ">for"), [_row(task) for task in view.tasks]
        )
        output.line()
    due = f"{counted(view.columns_due, 'column')} of {counted(view.payloads_due, 'payload')}"
    output.line(f"due     {due}")
    output.line(
        f"made    {counted(view.columns_made, 'column')}, {format_bytes(view.bytes_made)}, "
        f"{counted(view.documents_made, 'document')} copied; "
        f"{view.failed} failed"
    )
    heard = view.worker_heard_s
    output.line(
        "worker  none was heard: run ckptd repair" if heard is None
        else f"worker  heard {format_seconds(heard)} ago"
    )  # fmt: skip
    for payload, why in view.problems:
        output.line(f"{payload}: {why}")


def _row(task: RepairTaskView) -> tuple[str, ...]:
    read = f"{format_bytes(task.read_bytes)} of {format_bytes(task.payload_bytes)}"
    columns = ",".join(map(str, task.columns))
    return task.payload, columns, ",".join(task.targets), read, format_seconds(task.seconds)
