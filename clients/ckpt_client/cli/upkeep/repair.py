"""Show what lacks columns, who makes them again, and the results; pause repair, or set its pace.

`ckptd repair` does the work, in one process or more for a cluster; a local cluster starts it by
itself. Repair waits for targets that are away (`rebuild_after_s` of the coordinator), unless a
payload can lose no more columns.

`pause` ends the repairs under way and begins none until `resume`. `set` limits the bytes a second
that repair may take of each target: the floor while somebody saves or loads, the cap while nobody
does (0: no cap); --as-configured returns to the options. All of this is durable.

`--wait` waits until nothing is due; columns on targets that repair still waits for are not due.
"""

from __future__ import annotations

import argparse
from typing import Final

from ckpt.base.errors import Refused
from ckpt.base.units import counted, format_bytes, format_seconds, parse_bytes
from ckpt.format.messages.repairs import SetRepair
from ckpt.protocol.coordinator.reading.repair_answers import RepairTaskView, RepairView
from ckpt_client.cli.cluster import conversation
from ckpt_client.cli.exits import ExitCode
from ckpt_client.cli.output import Output, age_text
from ckpt_client.cli.upkeep.waiting import wait_for_repair
from ckpt_client.url import LocalUrl

EXAMPLE = (
    "ckpt repair\n"
    "ckpt repair --json --store ckpt://10.0.0.1:7070\n"
    "ckpt repair --wait\n"
    "ckpt repair pause\n"
    "ckpt repair set --floor-bytes 4MiB --cap-bytes 200MB"
)
NOTHING_SAID = SetRepair()
NAMED_MAX: Final = 3
"""Most targets that one line names."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        choices=("ls", "pause", "resume", "set"),
        nargs="?",
        default="ls",
        help="what to do [ls]",
    )
    parser.add_argument(
        "--floor-bytes", metavar="SIZE", type=parse_bytes,
        help="bytes a second of each target, while somebody saves or loads",
    )  # fmt: skip
    parser.add_argument(
        "--cap-bytes",
        metavar="SIZE",
        type=parse_bytes,
        help="the same while nobody does; 0: no cap",
    )
    parser.add_argument("--wait", action="store_true", help="ls: wait until nothing is due")
    parser.add_argument(
        "--as-configured", action="store_true", help="back to the coordinator's options"
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    wanted = _wanted(arguments)
    with conversation(arguments, output) as talk:
        if wanted != NOTHING_SAID:
            talk.set_repair(wanted)
        if arguments.wait:
            view = wait_for_repair(talk, output, "repairing", _due)
        else:
            view = talk.repair()
            output.document(view)
        _show(view, output, is_local=isinstance(talk.url, LocalUrl))
    return ExitCode.OK


def _due(view: RepairView) -> str:
    """What is left to do, as progress; nothing when all is done."""
    if not (view.payloads_due or view.tasks):
        return "; ".join(view.soon)
    waits = "; ".join(f"{name}: {why}" for name, why in view.problems[:1])
    due = f"{counted(view.columns_due, 'column')} of {counted(view.payloads_due, 'payload')} due"
    if view.tasks:
        due = f"{due}, {counted(len(view.tasks), 'payload')} in hand"
    return f"{due}{_left_text(view)}{waits and '; '}{waits}"


def _wanted(arguments: argparse.Namespace) -> SetRepair:
    """Raises Refused for what does not belong together."""
    if arguments.wait and arguments.action != "ls":
        raise Refused(f"--wait, and {arguments.action}", hint="ckpt repair --wait")
    limits = SetRepair(
        floor_bytes=arguments.floor_bytes,
        cap_bytes=arguments.cap_bytes,
        as_configured=arguments.as_configured,
    )
    is_set = arguments.action == "set"
    if is_set is (limits == NOTHING_SAID):
        problem = "set says nothing" if is_set else f"a limit, and {arguments.action}"
        raise Refused(problem, hint="ckpt repair set --floor-bytes SIZE --cap-bytes SIZE")
    match arguments.action:
        case "pause":
            return SetRepair(paused=True)
        case "resume":
            return SetRepair(paused=False)
    return limits


def _show(view: RepairView, output: Output, *, is_local: bool) -> None:
    if view.tasks:
        output.table(
            ("payload", "columns", "to", ">read", ">at most", ">for"),
            [_row(task) for task in view.tasks],
        )
        output.line()
    due = f"{counted(view.columns_due, 'column')} of {counted(view.payloads_due, 'payload')}"
    output.line("; ".join((f"due     {due}{_left_text(view)}", *view.soon)))
    output.line(
        f"made    {counted(view.columns_made, 'column')}, {format_bytes(view.bytes_made)}, "
        f"{counted(view.documents_made, 'document')}; "
        f"{view.failed} failed"
    )
    if view.measured is not None:
        output.line(
            f"rate    {format_bytes(view.measured.bytes_per_s)}/s of lost columns, measured"
            f" {age_text(view.measured.at_s)}"
        )
    if view.balance.asked or view.balance.columns_left:
        balance = view.balance
        output.line(
            f"moves   {counted(balance.columns_left, 'column')} of these for balance; "
            f"{counted(balance.columns_moved, 'column')}, {format_bytes(balance.bytes_moved)} moved"
        )
    cap = f"{format_bytes(view.cap_bytes)}/s" if view.cap_bytes else "no cap"
    floor = f"{format_bytes(view.floor_bytes)}/s"
    output.line(f"takes   {floor} of each target beside saves and loads, else {cap}")
    output.line(f"waits   {_waits_text(view)}")
    if view.paused_at_s is not None:
        output.line(f"paused  {age_text(view.paused_at_s)}: ckpt repair resume")
    output.line(f"worker  {_worker_text(view.worker_heard_s, is_local=is_local)}")
    for name, why in (*view.problems, *view.skipped):
        output.line(f"{name}: {why}")


def _worker_text(heard_s: float | None, *, is_local: bool) -> str:
    if heard_s is not None:
        return f"heard {format_seconds(heard_s)} ago"
    return f"none was heard: {'one starts when it is needed' if is_local else 'run ckptd repair'}"


def _waits_text(view: RepairView) -> str:
    """For whom, before what they have is made again."""
    if view.rebuild_after_s is None:
        return "nothing is ever made again (repair = false of the coordinator)"
    named = [f"{one.target}: {format_seconds(one.left_s)} more" for one in view.awaited[:NAMED_MAX]]
    if len(view.awaited) > NAMED_MAX:
        named.append(f"and {len(view.awaited) - NAMED_MAX} targets")
    after = format_seconds(view.rebuild_after_s)
    rule = f"{after} for a target that is away, unless no more may be lost"
    return "; ".join((rule, *named))


def _left_text(view: RepairView) -> str:
    """How much that is, and when it will be done."""
    if not view.bytes_left:
        return ""
    left = f"; {format_bytes(view.bytes_left)} left"
    if view.left_s is None:
        return f"{left}, how long is unknown"
    return f"{left}, about {format_seconds(view.left_s)} at {format_bytes(view.bytes_per_s)}/s"


def _row(task: RepairTaskView) -> tuple[str, ...]:
    read = f"{format_bytes(task.read_bytes)} of {format_bytes(task.payload_bytes)}"
    columns = ",".join(map(str, task.columns))
    most = f"{format_bytes(task.bytes_per_s_max)}/s" if task.bytes_per_s_max else "-"
    seconds = format_seconds(task.leased_s)
    return task.payload, columns, ",".join(task.targets), read, most, seconds
