"""Show which coordinators run and which one leads; let another one lead.

ls          one line each: id, where it listens, whether it leads, since when, in which term; and
            how the members of the etcd are that has their catalog.
step-down   who leads stores and acknowledges what waits, then another one leads: before an update
            of its host, say. With an ID only if that one leads. Refused when nobody stands by.
"""

from __future__ import annotations

import argparse

from ckpt.base.errors import Refused
from ckpt.base.units import format_seconds
from ckpt.protocol.coordinator.reading.coordinator_answers import (
    CatalogMember,
    CoordinatorRow,
    CoordinatorsView,
)
from ckpt_client.cli.cluster import conversation
from ckpt_client.cli.exits import ExitCode
from ckpt_client.cli.output import Output

EXAMPLE = (
    "ckpt coordinator ls --store ckpt://10.0.0.1:7070,10.0.0.2:7070,10.0.0.3:7070\n"
    "ckpt coordinator step-down node1"
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("ls", "step-down"), help="what to do")
    parser.add_argument(
        "id", metavar="ID", nargs="?", default="", help="step-down: only if this one leads"
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    if arguments.action == "step-down":
        return _step_down(arguments, output)
    if arguments.id:
        raise Refused("ls takes no ID: it shows all of them")
    with conversation(arguments, output) as talk:
        view = talk.coordinators()
    output.document(view)
    _show(view, output)
    return ExitCode.OK


def _step_down(arguments: argparse.Namespace, output: Output) -> int:
    with conversation(arguments, output) as talk:
        done = talk.step_down(arguments.id)
    output.document({"id": done.coordinator, "term": done.term})
    output.line(f"{done.coordinator} leads no more; its term was {done.term}")
    return ExitCode.OK


def _show(view: CoordinatorsView, output: Output) -> None:
    head = ("coordinator", "address", "state", ">for", ">term", ">lag", "host", "version")
    output.table(head, [_row(each) for each in view.coordinators], spare=("host", "lag"))
    output.line()
    output.line(f"catalog  {view.catalog}")
    if view.members:
        output.table(("etcd", ">answers in", "why not"), [_member(each) for each in view.members])


def _row(one: CoordinatorRow) -> tuple[str, ...]:
    seconds = one.led_s if one.led_s is not None else one.runs_s
    return (
        one.id or "-", one.address, one.state, _for_text(seconds),
        *("-" if each is None else str(each) for each in (one.term, one.lag)),
        f"{one.host} pid {one.pid}", one.version,
    )  # fmt: skip


def _for_text(seconds: float | None) -> str:
    return "-" if seconds is None else format_seconds(round(seconds))


def _member(one: CatalogMember) -> tuple[str, ...]:
    answered = "-" if one.answered_s is None else format_seconds(one.answered_s)
    return one.address, answered, one.reason
