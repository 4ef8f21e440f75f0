"""Show the targets; empty one, take it out for good, or say which directory it is.

ls              each target, how it stands, and what it has; and which directories are refused a
                target's place.
drain, undrain  the target gets nothing new, and `ckptd repair` makes its columns again on other
                targets; they count where they are until then. undrain takes that back.
out, in         the same for a target that may not come back: what it held is made again at once,
                without waiting for it. in takes that back.
balance         `ckptd repair` moves columns from full devices to empty ones until all are about
                equally full, after all that is lost was made again. A coordinator that takes over
                goes on with it. --stop leaves where it is what has not moved yet.
remove          take the target out of the cluster for good: end its process first (a local cluster
                does that for you). Deletions no longer wait for it; its name and its directory are
                refused from then on.
add             in a local cluster, make an empty directory on another device one more target. It is
                started at once, and takes its share of the next saves. In other clusters start
                `ckptd target` on a storage node.
replace         a directory that was emptied, or another one, asks for the place of target ID
                (DIRECTORY_UNKNOWN in `ckpt status`): make it the target from now on. What the old
                directory holds no longer counts, even if it comes back.
hold, release   in a local cluster: a held target is not restarted. If it runs it goes on until it
                exits; end it by its process id, which `ckpt status` shows.

If something speaks against drain, out, remove or replace, the command says so and changes nothing:
a save would lack places for its columns, bytes would have no room, or checkpoints could not be read
any more. --dry-run says it beforehand, --force overrides it.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Final

from msgspec.structs import asdict

from ckpt.aio.local_targets import leave_place
from ckpt.base.errors import Busy, CkptError, Refused, Unavailable
from ckpt.base.ids import TargetId
from ckpt.base.shell_words import quoted
from ckpt.base.units import counted, format_bytes, format_seconds
from ckpt.format.messages.asking import TargetChanged
from ckpt.format.messages.balancing import DeviceShare
from ckpt.protocol.coordinator.reading.answers import TargetView
from ckpt.protocol.coordinator.reading.repair_answers import BalanceView, RepairView
from ckpt_client.cli.cluster import Conversation, conversation, is_running, named_local, read_made
from ckpt_client.cli.exits import ExitCode
from ckpt_client.cli.output import Output
from ckpt_client.cli.tables import Tone
from ckpt_client.cli.upkeep.foresight import (
    document_of,
    foresee,
    foresee_replacement,
    tell_foreseen,
    what_is_there,
)
from ckpt_client.cli.upkeep.holding import end_process, hold, is_held, mark_held, pid_of
from ckpt_client.cli.upkeep.waiting import (
    LOOK_S,
    RECORD_S,
    copies_held,
    going_on,
    held_up,
    wait_for_repair,
)
from ckpt_client.local.adding import LocalPlaces
from ckpt_client.local.cluster import is_supervised
from ckpt_client.url import LocalUrl, parse_url

EXAMPLE = (
    "ckpt target ls\n"
    "ckpt target drain node7-nvme0 --dry-run\n"
    "ckpt target drain node7-nvme0 --wait\n"
    "ckpt target remove node7-nvme0\n"
    "ckpt target balance --dry-run\n"
    "ckpt target balance --wait\n"
    "ckpt target add /mnt/nvme1/burst --store ckpt+local:///scratch/burst\n"
    "ckpt target replace node8-nvme1 --store ckpt://10.0.0.1:7070\n"
    "ckpt target hold t3 --store ckpt+local:///scratch/burst"
)
STANDINGS: Final = {
    "drain": "draining",
    "undrain": "in",
    "out": "out",
    "in": "in",
    "remove": "removed",
}
ACTIONS: Final = ("ls", *STANDINGS, "balance", "add", "replace", "hold", "release")
WHOLE: Final = ("ls", "balance")
"""Actions that concern all targets."""
WAITED: Final = ("drain", "out", "balance")
"""Actions that take a while."""
EMPTIED: Final = ("draining", "out")
"""Standings whose columns move to other targets."""
REFUSED: Final = ("DIRECTORY_UNKNOWN", "DIRECTORY_COPIED", "TARGET_REMOVED")
"""Health checks about processes that would be a target and may not."""
POLL_S: Final = 0.1


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=ACTIONS, help="what to do")
    parser.add_argument("id", metavar="ID", nargs="?", help="the target; add: its directory")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="drain, out, in, remove, replace, balance: only say what would follow",
    )
    parser.add_argument(
        "--stop", action="store_true", help="balance: end it; what has not moved yet stays"
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="drain, out, remove, replace: even so; add: on a device that has a target",
    )
    parser.add_argument(
        "--wait",
        action="store_true",
        help="drain, out: until all that it has is elsewhere; balance: until it has ended",
    )
    parser.add_argument("--name", metavar="ID", help="add: name of the new target, such as t7")
    parser.add_argument(
        "--incarnation", metavar="HEX", help="replace: which directory, when several ask"
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    action = arguments.action
    if action != "add" and (action in WHOLE) is (arguments.id is not None):
        raise Refused(f"{action} takes no ID" if arguments.id else f"{action} of which target?")
    _check_flags(arguments)
    if action == "ls":
        return _list(arguments, output)
    if action == "balance":
        return _balance(arguments, output)
    if action == "add":
        return _add(arguments, output)
    if action == "replace":
        return _replace(arguments, output)
    if action in STANDINGS:
        return _change(arguments, output)
    return hold(arguments, output)


def _check_flags(arguments: argparse.Namespace) -> None:
    """A word that would do nothing is a mistake."""
    action = arguments.action
    if arguments.incarnation and action != "replace":
        raise Refused("only replace takes --incarnation")
    if arguments.name and action != "add":
        raise Refused("only add takes --name")
    if arguments.force and action not in (*STANDINGS, "add", "replace"):
        raise Refused(f"{action} takes neither --dry-run nor --force")
    if arguments.stop and (action != "balance" or arguments.dry_run):
        raise Refused("only balance takes --stop, without --dry-run")
    if arguments.dry_run and action not in (*STANDINGS, "balance", "replace"):
        raise Refused(f"{action} takes no --dry-run")
    if arguments.wait and (action not in WAITED or arguments.dry_run or arguments.stop):
        raise Refused("only drain, out and balance take --wait, without --dry-run and --stop")


# --------------------------------------------------------------------------- how they stand


def _list(arguments: argparse.Namespace, output: Output) -> int:
    with conversation(arguments, output) as talk:
        status = talk.status()
        balance = talk.repair().balance
    targets = status.targets
    refused = [check for check in status.checks if check.name in REFUSED]
    output.document({"targets": targets, "balance": balance, "refused": refused})
    head = ("target", "stands", "state", ">columns", ">used", ">free", "domain", "directory")
    local = Path(talk.url.directory) if isinstance(talk.url, LocalUrl) else None
    output.table(head, [_row(target, local) for target in targets], spare=("domain", "columns"))
    for check in refused:
        text = f"refused: {check.message}; {check.remedy}: {check.command}"
        output.line(output.tone(text, Tone.WARN))
    if balance.asked or balance.columns_left:
        left = f"{counted(balance.columns_left, 'column')} ({format_bytes(balance.bytes_left)})"
        output.line(
            f"balance: {left} are to move now, {_moved(balance)} have moved; see ckpt repair"
        )
    return ExitCode.OK


def _balance(arguments: argparse.Namespace, output: Output) -> int:
    with conversation(arguments, output) as talk:
        state = talk.balance_targets(dry_run=arguments.dry_run, stop=arguments.stop)
        if arguments.wait:
            ended = wait_for_repair(talk, output, "balancing", _balance_left).balance
            output.line(f"{_moved(ended)} have moved; ckpt target ls shows how full all are")
            return ExitCode.OK
    output.document({**asdict(state), "dry_run": arguments.dry_run})
    rows = [
        (", ".join(one.targets), _share(one), format_bytes(one.used_bytes),
         format_bytes(one.total_bytes), one.device)
        for one in state.devices
    ]  # fmt: skip
    output.table(("targets", ">full", ">used", ">of", "device"), rows)
    if arguments.stop:
        output.line("nothing more is moved")
        return ExitCode.OK
    verb = "are to move" if state.running else "would move"
    seconds = "" if state.left_s is None else f", in about {format_seconds(state.left_s)}"
    output.line(f"about {format_bytes(state.bytes_left)} {verb}{seconds}")
    if state.running:
        output.line("ckpt repair and ckpt target ls show how far that is")
    return ExitCode.OK


def _balance_left(view: RepairView) -> str:
    balance = view.balance
    if not balance.asked:
        return ""
    left = f"{counted(balance.columns_left, 'column')} ({format_bytes(balance.bytes_left)})"
    return f"{_moved(balance)} have moved, {left} are planned"


def _moved(balance: BalanceView) -> str:
    return f"{counted(balance.columns_moved, 'column')} ({format_bytes(balance.bytes_moved)})"


def _share(one: DeviceShare) -> str:
    return f"{one.used_bytes / one.total_bytes:.0%}"


def _row(target: TargetView, local: Path | None) -> tuple[str, ...]:
    """Of a cluster of this machine as `ckpt status` shows it."""
    prefix = "" if local is None else f"{local}/"
    held = local is not None and is_held(local, target.id)
    used, free = format_bytes(target.bytes_used), format_bytes(target.bytes_free)
    columns = str(target.columns)
    where = target.domain, target.directory.removeprefix(prefix)
    state = f"{target.state} (held)" if held else target.state
    return target.id, target.standing, state, columns, used, free, *where


def _change(arguments: argparse.Namespace, output: Output) -> int:
    standing = STANDINGS[arguments.action]
    with conversation(arguments, output) as talk:
        if arguments.action == "undrain":
            _check_not_out(talk, arguments.id)
        local = isinstance(talk.url, LocalUrl) and standing == "removed" and not arguments.dry_run
        changed = (_remove_local if local else _changed)(talk, arguments)
        foresight = foresee(talk, changed) if arguments.dry_run else None
        if arguments.wait:
            _wait(talk, changed, output)
            output.record("summary", asdict(changed))
    if not arguments.wait:
        output.document(document_of(changed, foresight))
    if foresight is not None:
        tell_foreseen(changed, foresight, output)
    else:
        _tell_change(changed, arguments, output)
    return ExitCode.OK


def _changed(talk: Conversation, arguments: argparse.Namespace) -> TargetChanged:
    id, standing = TargetId(arguments.id), STANDINGS[arguments.action]
    return talk.change_target(id, standing, force=arguments.force, dry_run=arguments.dry_run)


def _remove_local(talk: Conversation, arguments: argparse.Namespace) -> TargetChanged:
    """What speaks against it is heard before its process ends. It leaves its place: there its
    supervisor would start it again, and it would be refused, for ever.
    """
    directory, id = named_local(arguments, "target remove"), arguments.id
    try:
        changed = _changed(talk, arguments)
    except Busy:
        changed = _ended_first(talk, directory, arguments)
    leave_place(directory, id)
    return changed


def _ended_first(
    talk: Conversation, directory: Path, arguments: argparse.Namespace
) -> TargetChanged:
    """Its process goes, for good; when it is not removed all the same it comes back."""
    deadline_s = time.monotonic() + arguments.timeout
    pid = pid_of(directory, arguments.id)
    was_held = mark_held(directory, arguments.id, is_held=True)
    try:
        end_process(directory, arguments.id)
        while True:
            try:
                if not is_running(pid):
                    return _changed(talk, arguments)
            except Busy:
                # Its coordinator has not heard that yet.
                if time.monotonic() >= deadline_s:
                    raise
            if time.monotonic() >= deadline_s:
                raise Busy(f"process {pid} of {arguments.id} has not ended yet")
            time.sleep(POLL_S)
    except (CkptError, KeyboardInterrupt):
        mark_held(directory, arguments.id, is_held=was_held)
        raise


def _check_not_out(talk: Conversation, id: str) -> None:
    """That one somebody said otherwise; of one that is in there is nothing to take back."""
    standing = {target.id: target.standing for target in talk.status().targets}.get(id)
    if standing == "out":
        raise Refused(f"target {id} is not draining, it is out", hint=f"ckpt target in {id}")


def _wait(talk: Conversation, changed: TargetChanged, output: Output) -> None:
    """Until nothing is there any more. Ctrl-C ends the waiting alone."""
    left, copies, said_s = changed, 0, 0.0
    standing = changed.standing
    view = talk.repair()

    def held() -> str:
        read = "" if left.columns or not copies else f"; {copies_held(copies)}"
        return f"{held_up(view)}{read}"

    def text() -> str:
        waits = "".join(f"; {name}: {why}" for name, why in view.problems[:1])
        return f"{what_is_there(left)}{held()}{waits}"

    id, back = changed.target, "in" if standing == "out" else "undrain"
    stays = f"{id} stays {standing}; ckpt target {back} {id} takes that back"
    with going_on(stays), output.waiting(f"emptying {id}", text):
        while True:
            left = talk.change_target(changed.target, standing, force=False, dry_run=True)
            copies = _columns_of(talk, changed.target)
            if not (left.columns or left.documents or copies):
                return
            if left.was not in EMPTIED:
                raise CkptError(
                    f"{changed.target} is {left.was} now, not {standing}: somebody has said so"
                    " meanwhile",
                    hint="ckpt target ls",
                )
            if time.monotonic() - said_s >= RECORD_S:
                said_s, view = time.monotonic(), talk.repair()
                said = {"held_up": held()[2:], "problems": view.problems}
                output.record("progress", {**asdict(left), **said})
            time.sleep(LOOK_S)


def _columns_of(talk: Conversation, id: str) -> int:
    """That it has still, whether they are named there or not; 0 if it is not here."""
    return next((target.columns for target in talk.status().targets if target.id == id), 0)


def _tell_change(changed: TargetChanged, arguments: argparse.Namespace, output: Output) -> None:
    id, what = changed.target, what_is_there(changed)
    output.line(f"{id} is {changed.standing}; it was {changed.was}")
    if arguments.wait:
        # A local cluster ends the process itself.
        end = "" if isinstance(parse_url(arguments.store), LocalUrl) else "end its process, then: "
        output.line(f"all that it had is elsewhere; {end}ckpt target remove {id}")
    elif changed.columns and changed.standing not in ("in", "removed"):
        output.line(f"{what} are made again on other targets; ckpt repair shows how far that is")


# --------------------------------------------------------------------------- one more


def _add(arguments: argparse.Namespace, output: Output) -> int:
    url = parse_url(arguments.store)
    if not isinstance(url, LocalUrl):
        raise Refused(
            f"{url.address} is no cluster of this machine: its targets are started where they are",
            hint=f"on the storage node: ckptd target --id ID --directory DIR"
            f" --coordinator {quoted(url.address)} --domain POWER/RACK/HOST/DEVICE",
        )
    directory = Path(url.directory)
    made = read_made(directory)
    if not is_supervised(directory):
        raise Refused(
            f"the cluster in {directory} does not run", hint=f"start it: ckptd local {directory}"
        )
    wanted = None if arguments.id is None else Path(arguments.id)
    places = LocalPlaces(directory, made.targets)
    id = places.add(wanted, arguments.name, force=arguments.force)
    with conversation(arguments, output) as talk:
        view = _live(talk, id, arguments, output)
    output.document({"id": id, "directory": str(places.place(id).resolve()), "target": view})
    output.line(f"{id} is a target, in {places.place(id).resolve()}")
    return ExitCode.OK


def _live(talk: Conversation, id: str, arguments: argparse.Namespace, output: Output) -> TargetView:
    """Once it counts. It stays added when that takes too long."""
    deadline_s = time.monotonic() + arguments.timeout
    with output.waiting(f"starting {id}"):
        while True:
            for view in talk.status().targets:
                if view.id == id and view.state == "live":
                    return view
            if time.monotonic() >= deadline_s:
                log = named_local(arguments, "target add") / "logs" / f"{id}.log"
                raise Unavailable(
                    f"{id} is added, and not live yet", hint=f"see {log}; ckpt target ls"
                )
            time.sleep(POLL_S)


# --------------------------------------------------------------------------- which directory


def _replace(arguments: argparse.Namespace, output: Output) -> int:
    try:
        incarnation = bytes.fromhex(arguments.incarnation or "")
    except ValueError:
        raise Refused(f"--incarnation {arguments.incarnation} is no hexadecimal number") from None
    with conversation(arguments, output) as talk:
        if arguments.dry_run:
            foresee_replacement(talk, arguments.id, output)
            return ExitCode.OK
        done = talk.replace_target(TargetId(arguments.id), incarnation, force=arguments.force)
    output.document(
        {
            "id": done.target,
            "directory": done.directory,
            "domain": done.domain,
            "incarnation": done.incarnation.hex(),
        }
    )
    output.line(f"{done.target} is {done.directory} from now on; it joins within seconds")
    return ExitCode.OK
