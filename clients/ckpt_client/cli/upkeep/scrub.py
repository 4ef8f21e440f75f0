"""Make targets read all that they keep now, past the page cache, and compare it with its checksums.

Without ID all live targets do. Each target also scrubs by itself, all that it keeps within a week
(`scrub_period_s`); this command begins a pass at once and waits for it. The pass takes the same
small share of the device, and pauses while columns are written or read. Ctrl-C ends the waiting,
not the pass.

Exit code 0: all is whole; what was damaged and made again meanwhile is. 3: something is damaged;
`ckpt verify` says whether a checkpoint can still be read. 75: a target is out of reach.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ckpt.base.errors import CkptError, NotFound, PeerError, Unavailable
from ckpt.base.units import counted, format_bytes, format_seconds
from ckpt_client.cli.cluster import Conversation, conversation
from ckpt_client.cli.exits import ExitCode
from ckpt_client.cli.output import Output
from ckpt_client.cli.tables import Tone, Toned
from ckpt_client.locate import client_name

if TYPE_CHECKING:
    from ckpt.aio.net.rpc import RpcClient
    from ckpt.format.messages.scrubbing import ScrubState
    from ckpt.format.messages.targets import Rot
    from ckpt.protocol.coordinator.reading.answers import TargetView

EXAMPLE = (
    "ckpt scrub --store ckpt+local:///scratch/burst\n"
    "ckpt scrub node7-nvme0 node7-nvme1 --no-wait\n"
    "ckpt scrub --json | tail -n 1 | jq '.targets[].rot'"
)
POLL_S: Final = 0.5
SAY_S: Final = 1.0
"""Between two lines of progress in JSON."""
LIVE: Final = "live"


@dataclass(slots=True)
class _Asked:
    """One target, and what it said last."""

    target: str
    state: str
    """`running`, `whole`, `damaged`, or `away` when it does not answer."""
    files: int = 0
    bytes: int = 0
    """To be read in this pass."""
    bytes_left: int = 0
    is_aside: bool = False
    took_s: float = 0.0
    rot_count: int = 0
    rot: tuple[Rot, ...] = ()
    """The first of them."""
    error: str = ""
    """Why it is away."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ids", metavar="ID", nargs="*", help="targets, as `ckpt status` names them")
    parser.add_argument(
        "--no-wait", action="store_true", help="begin a pass, but do not wait for its end"
    )


def run(arguments: argparse.Namespace, output: Output) -> int:
    with conversation(arguments, output) as talk, ExitStack() as stack:
        targets = _wanted(talk.status().targets, arguments.ids)
        asked = [_Asked(each.id, "running") for each in targets]
        peers = [stack.enter_context(_dial(talk, each)) for each in targets]
        begun_s = time.monotonic()
        pairs = list(zip(asked, peers, strict=True))
        for one, peer in pairs:
            _ask(one, peer, begin=True, timeout_s=arguments.timeout)
        if not arguments.no_wait:
            _wait(pairs, begun_s, output, timeout_s=arguments.timeout)
    output.record("summary", {"targets": asked, "took_s": time.monotonic() - begun_s})
    _show(asked, output)
    return _end(asked)


def _wanted(targets: Sequence[TargetView], ids: Sequence[str]) -> list[TargetView]:
    """Those named, else all that are live. Raises NotFound, Unavailable."""
    known = {each.id: each for each in targets}
    for id in ids:
        if id not in known:
            raise NotFound(f"there is no target {id!r}", hint=f"there are {', '.join(known)}")
        if known[id].state != LIVE:
            raise Unavailable(f"target {id} is {known[id].state}", hint="see ckpt status")
    return [known[id] for id in dict.fromkeys(ids)] or [
        each for each in targets if each.state == LIVE
    ]


def _dial(talk: Conversation, target: TargetView) -> RpcClient:
    from ckpt.aio.net.rpc import RpcClient
    from ckpt.format.messages.hello import Role
    from ckpt.protocol.handshake import Caller

    caller = Caller.of_target(talk.control.secret, Role.READER, client_name(), target.id)
    return RpcClient(target.address, caller)


def _ask(one: _Asked, peer: RpcClient, *, timeout_s: float, begin: bool = False) -> None:
    """What it says now. One that ended its session may be of an earlier version."""
    from ckpt.format.messages.scrubbing import AskScrub, ScrubState

    try:
        answer, _ = peer.call(AskScrub(begin), timeout_s=timeout_s)
        if not isinstance(answer, ScrubState):
            raise PeerError(f"it answered with a {type(answer).__name__}")
    except CkptError as error:
        one.state, one.error = "away", error.message
        return
    _note(one, answer, begin=begin)


def _note(one: _Asked, state: ScrubState, *, begin: bool) -> None:
    if begin:
        one.files, one.bytes = state.files, state.bytes
    one.bytes_left, one.is_aside = state.bytes_left, state.is_aside
    one.rot_count, one.rot = state.report.rot_count, state.report.rot
    if state.is_asked:
        one.state = "running"
    else:
        one.state, one.bytes_left = "damaged" if one.rot_count else "whole", 0


def _wait(
    pairs: Sequence[tuple[_Asked, RpcClient]], begun_s: float, output: Output, *, timeout_s: float
) -> None:
    """Until no pass is under way."""
    asked = [one for one, _ in pairs]
    said_s = begun_s
    with output.waiting("scrubbing", lambda: _progress(asked)):
        while running := [pair for pair in pairs if pair[0].state == "running"]:
            time.sleep(POLL_S)
            for one, peer in running:
                _ask(one, peer, timeout_s=timeout_s)
                one.took_s = time.monotonic() - begun_s
            if time.monotonic() - said_s >= SAY_S:
                said_s = time.monotonic()
                output.record("progress", {"targets": asked})


def _progress(asked: Sequence[_Asked]) -> str:
    left, size = sum(one.bytes_left for one in asked), sum(one.bytes for one in asked)
    running = [one for one in asked if one.state == "running"]
    text = f"{format_bytes(size - left)} of {format_bytes(size)}, {counted(len(running), 'target')}"
    aside = sum(one.is_aside for one in running)
    return f"{text}, {aside} at rest while columns are written or read" if aside else text


def _show(asked: Sequence[_Asked], output: Output) -> None:
    tones = {"whole": Tone.GOOD, "damaged": Tone.BAD, "away": Tone.WARN}
    rows = [
        (
            one.target, Toned(one.state, tones.get(one.state, Tone.WARN)), str(one.files),
            format_bytes(one.bytes), format_seconds(one.took_s) if one.took_s else "-",
            one.error or (counted(one.rot_count, "part") + " damaged" if one.rot_count else ""),
        )
        for one in asked
    ]  # fmt: skip
    output.table(("target", "state", ">files", ">size", ">took", ""), rows)
    damaged = [line for one in asked for line in _damage(one)]
    if damaged:
        output.line()
        output.table(("target", "checkpoint", "file", "region", "bytes", "why"), damaged)


def _damage(one: _Asked) -> Iterator[tuple[str, ...]]:
    for rot in one.rot:
        damage = rot.damage
        file = damage.kind if rot.rank is None else f"rank {rot.rank}, column {rot.column}"
        where = f"[{damage.start}, {damage.end})"
        yield one.target, str(rot.checkpoint), file, damage.region, where, damage.why
    if one.rot_count > len(one.rot):
        yield one.target, f"and {one.rot_count - len(one.rot)} more", "", "", "", ""


def _end(asked: Sequence[_Asked]) -> int:
    """Raises Unavailable where a target did not answer."""
    away = [one.target for one in asked if one.state == "away"]
    if away:
        raise Unavailable(f"out of reach: {', '.join(away)}", hint="see ckpt status")
    return ExitCode.DEGRADED if any(one.rot_count for one in asked) else ExitCode.OK
