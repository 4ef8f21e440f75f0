"""Is every byte of a checkpoint still what was written? Each target reads its own columns and compares."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

import msgspec

from ckpt.aio.rpc import RpcClient
from ckpt.base.errors import CkptError, PeerError
from ckpt.base.ids import (
    CheckpointId,
    ColumnId,
    ColumnNumber,
    Generation,
    PayloadId,
    Rank,
    RunName,
    Step,
    TargetId,
)
from ckpt.protocol.messages import ColumnVerified, Resolved, Role, TargetAddress, VerifyColumn
from ckpt.protocol.views import ColumnsView, ShowView
from ckpt_client.control import Control
from ckpt_client.locate import client_name

COLUMN_TIMEOUT_S = 600.0
RESOLVE_TIMEOUT_S = 10.0
_show_decoder = msgspec.json.Decoder(ShowView)


@dataclass(frozen=True, slots=True)
class Finding:
    """A column that is not as it should be."""

    rank: int
    column: int
    target: str | None
    problem: str


@dataclass(frozen=True, slots=True)
class Verification:
    """What a full read found. `ok` says that every column of every rank is there and whole."""

    run: str
    step: int
    generation: Generation
    columns_checked: int
    bytes_read: int
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return not self.findings


def verify_step(control: Control, run: RunName, step: Step) -> Verification:
    """Verify the newest generation of a step. Raises NotFound, Unavailable."""
    resolved, _ = control.resolve(
        run, step, launch=None, rank=None, world_size=None,
        timeout_s=RESOLVE_TIMEOUT_S, fallback=False,
    )  # fmt: skip
    try:
        shown = _show_decoder.decode(control.ask("show", run, step))
        return _verify(control, resolved, shown.columns)
    finally:
        control.release(resolved.pin)


def _verify(
    control: Control, resolved: Resolved, payloads: tuple[ColumnsView, ...]
) -> Verification:
    checkpoint = resolved.info.checkpoint
    checked = read = 0
    findings: list[Finding] = []
    with ExitStack() as stack:
        peers = {
            where.target: stack.enter_context(_dial(control, where)) for where in resolved.targets
        }
        for payload in payloads:
            for column, target in enumerate(payload.targets):
                column_bytes, problem = _check(checkpoint, payload.rank, column, target, peers)
                checked += 1
                read += column_bytes
                if problem:
                    findings.append(Finding(payload.rank, column, target, problem))
    return Verification(
        checkpoint.run, checkpoint.step, checkpoint.generation, checked, read, tuple(findings)
    )


def _check(
    checkpoint: CheckpointId,
    rank: int,
    column: int,
    target: str | None,
    peers: dict[TargetId, RpcClient],
) -> tuple[int, str]:
    """Bytes that the target read, and what is wrong (empty when nothing)."""
    peer = peers.get(TargetId(target)) if target is not None else None
    if peer is None:
        return 0, "its target is not live" if target is not None else "never written"
    wanted = ColumnId(PayloadId(checkpoint, Rank(rank)), ColumnNumber(column))
    try:
        answer, _ = peer.call(VerifyColumn(wanted), timeout_s=COLUMN_TIMEOUT_S)
    except CkptError as error:
        return 0, str(error)
    if not isinstance(answer, ColumnVerified):
        raise PeerError(f"target {target} answered with a {type(answer).__name__}")
    if answer.missing:
        return 0, "missing"
    damage = ", ".join(f"[{one.start}, {one.end})" for one in answer.damaged)
    return answer.column_bytes, f"damaged bytes {damage}" if damage else ""


def _dial(control: Control, where: TargetAddress) -> RpcClient:
    return RpcClient(
        f"unix:{where.unix}" if where.unix else where.address,
        secret=control.secret,
        role=Role.READER,
        name=client_name(),
        server_role=Role.TARGET,
        server_name=where.target,
    )
