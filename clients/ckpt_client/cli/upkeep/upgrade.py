"""Show the protocol version of each member of the cluster, and finish an upgrade.

status   each member that is here or belongs here, its protocol version, and what speaks against
         finishing.
finish   from now on refuse members that speak an older protocol than the coordinator. No earlier
         version can lead this cluster again: there is no way back. From then on columns may move to
         other targets, and targets can be drained, taken out and removed.

finish is refused, and names the reason, while any member is older, or while a target is away that
may come back as it was. --dry-run shows the reasons and changes nothing (exit code 3: it would be
refused). --force ignores targets that are away: each is refused until it is upgraded. A cluster
that this version made counts as finished.
"""

from __future__ import annotations

import argparse

from ckpt.base.errors import Refused
from ckpt.format.messages.upgrading import UpgradeNoted
from ckpt.protocol.coordinator.reading.answers import UpgradeMember, UpgradeView
from ckpt_client.cli.cluster import Conversation, conversation
from ckpt_client.cli.exits import ExitCode
from ckpt_client.cli.output import Output

EXAMPLE = (
    "ckpt upgrade status\n"
    "ckpt upgrade finish --dry-run\n"
    "ckpt upgrade finish --store ckpt://10.0.0.1:7070"
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action", choices=("status", "finish"), nargs="?", default="status",
        help="what to do [status]",
    )  # fmt: skip
    parser.add_argument(
        "--dry-run", action="store_true", help="say what speaks against finishing, change nothing"
    )
    parser.add_argument("--force", action="store_true", help="finish even if targets are away")


def run(arguments: argparse.Namespace, output: Output) -> int:
    if arguments.action == "status" and (arguments.dry_run or arguments.force):
        raise Refused("status takes neither --dry-run nor --force", hint="ckpt upgrade finish")
    with conversation(arguments, output) as talk:
        if arguments.action == "status":
            return _status(talk.upgrade(), output)
        return _finish(talk, output, dry_run=arguments.dry_run, force=arguments.force)


def _status(view: UpgradeView, output: Output) -> int:
    output.document(view)
    output.table(("", "name", "state", ">protocol"), [_row(one) for one in view.members])
    output.line()
    _say_against(view.against, view.away, output)
    if view.finished:
        output.line(f"finished: whoever speaks less than {view.needs} is not let in")
    elif not (view.against or view.away):
        output.line("nothing stands against finishing: ckpt upgrade finish")
    return ExitCode.OK


def _row(one: UpgradeMember) -> tuple[str, ...]:
    protocol = "-" if one.protocol is None else str(one.protocol)
    return one.kind, one.name or "-", one.state, protocol


def _finish(talk: Conversation, output: Output, *, dry_run: bool, force: bool) -> int:
    noted = talk.finish_upgrade(dry_run=dry_run, force=force)
    output.document(noted)
    if not dry_run:
        output.line(f"finished: whoever speaks less than {noted.protocol} is not let in any more")
        return ExitCode.OK
    _say_against(noted.against, noted.away, output)
    if _is_refused(noted, force=force):
        return ExitCode.DEGRADED
    output.line(f"would finish: whoever speaks less than {noted.protocol} would not be let in")
    return ExitCode.OK


def _is_refused(noted: UpgradeNoted, *, force: bool) -> bool:
    return bool(noted.against) or (bool(noted.away) and not force)


def _say_against(against: tuple[str, ...], away: tuple[str, ...], output: Output) -> None:
    for text in against:
        output.line(f"against it: {text}; upgrade it, or end it")
    for text in away:
        output.line(f"against it: {text}; start it with this version, or finish with --force")
