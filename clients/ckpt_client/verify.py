"""Is every byte of a checkpoint still what was written? Each target reads its own columns and
compares."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from ckpt.aio.rpc import RpcClient
from ckpt.base.errors import CkptError
from ckpt.base.ids import CheckpointId, ColumnId, ColumnNumber, PayloadId, RunName, Step, TargetId
from ckpt.base.limits import PAYLOAD_BYTES_MAX
from ckpt.format.index import IndexPayload
from ckpt.format.messages import (
    ByteRange,
    ColumnVerified,
    Resolve,
    Role,
    TargetAddress,
    VerifyColumn,
)
from ckpt.protocol.coordinator.judging import most_bad
from ckpt.transfer.target_links import nearest_address
from ckpt_client.pinned import Pinned, ReaderContext

COLUMN_TIMEOUT_S: Final = 600.0
"""To read one column whole, behind all others that its target was asked for."""
AT_ONCE_MAX: Final = 32
"""Columns under way; a target reads its own one after another."""
_EVERYWHERE: Final = (ByteRange(0, PAYLOAD_BYTES_MAX),)


@dataclass(frozen=True, slots=True)
class ColumnHealth:
    """One column as its target found it."""

    rank: int
    column: int
    target: str | None
    """None: there was none at the commit."""
    state: str
    """`whole`, `damaged`, `missing`, or `away` when its target did not answer."""
    damaged: tuple[ByteRange, ...] = ()


@dataclass(frozen=True, slots=True)
class PayloadHealth:
    """One rank's payload: `healthy`, `degraded`, `lost` or `unknown`."""

    rank: int
    state: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a full read found; `state` is the worst of its payloads."""

    checkpoint: CheckpointId
    state: str
    """`healthy`: all whole. `degraded`: readable from the others. `lost`: proved not to be
    readable.
    `unknown`: not readable from what was reached, and nothing is proved."""
    payloads: tuple[PayloadHealth, ...]
    columns: tuple[ColumnHealth, ...]
    """All of them, by rank and column."""
    bytes_read: int
    """Fragment bytes that targets compared."""
    seconds: float


_ORDER: Final = ("healthy", "degraded", "unknown", "lost")


def verify(
    context: ReaderContext, run: RunName, step: Step, *, timeout_s: float = 10.0
) -> VerifyReport:
    """Verify the newest generation of a step, all targets at once. Raises NotFound, Unavailable,
    Lost."""
    begun_s = time.monotonic()
    pinned = Pinned(context, Resolve(run, step, timeout_us=int(timeout_s * 1e6)), timeout_s)
    try:
        checkpoint = pinned.record.info.checkpoint
        payloads = pinned.index.payloads()
        addresses = {where.target: where for where in pinned.resolved.targets}
        found = _ask_all(context, checkpoint, payloads, addresses)
    finally:
        pinned.close()
    columns = tuple(health for health, _ in found)
    healths = tuple(
        PayloadHealth(payload.rank, _judge(payload, [c for c in columns if c.rank == payload.rank]))
        for payload in payloads
    )
    worst = max((_ORDER.index(health.state) for health in healths), default=0)
    bytes_read = sum(count for _, count in found)
    return VerifyReport(
        checkpoint, _ORDER[worst], healths, columns, bytes_read, time.monotonic() - begun_s
    )


def _ask_all(
    context: ReaderContext,
    checkpoint: CheckpointId,
    payloads: Sequence[IndexPayload],
    addresses: Mapping[TargetId, TargetAddress],
) -> list[tuple[ColumnHealth, int]]:
    with ExitStack() as stack:
        peers = {
            target: stack.enter_context(_dial(context, where))
            for target, where in addresses.items()
        }
        questions = [
            (ColumnId(PayloadId(checkpoint, payload.rank), ColumnNumber(j)), target)
            for payload in payloads
            for j, target in enumerate(payload.columns)
        ]
        with ThreadPoolExecutor(AT_ONCE_MAX, thread_name_prefix="ckpt-verify") as pool:
            return list(pool.map(lambda each: _ask(each[0], each[1], peers), questions))


def _ask(
    id: ColumnId, target: TargetId | None, peers: Mapping[TargetId, RpcClient]
) -> tuple[ColumnHealth, int]:
    """The column's health, and how many bytes of it were compared."""
    rank, column = int(id.payload.rank), int(id.column)
    if target is None:
        return ColumnHealth(rank, column, None, "missing"), 0
    peer = peers.get(target)
    if peer is None:
        return ColumnHealth(rank, column, target, "away"), 0
    try:
        answer, _ = peer.call(VerifyColumn(id), timeout_s=COLUMN_TIMEOUT_S)
    except CkptError:
        return ColumnHealth(rank, column, target, "away"), 0
    match answer:
        case ColumnVerified(missing=True):
            return ColumnHealth(rank, column, target, "missing"), 0
        case ColumnVerified(_, _, column_bytes, damaged):
            state = "damaged" if damaged else "whole"
            return ColumnHealth(rank, column, target, state, damaged), column_bytes
        case _:
            return ColumnHealth(rank, column, target, "away"), 0


def _judge(payload: IndexPayload, columns: Sequence[ColumnHealth]) -> str:
    """Lost is only what is proved: a column out of reach may be whole."""
    proved = [_EVERYWHERE if c.state == "missing" else c.damaged for c in columns]
    away = [_EVERYWHERE for c in columns if c.state == "away"]
    if most_bad(proved) > payload.code.m:
        return "lost"
    if most_bad([*proved, *away]) > payload.code.m:
        return "unknown"
    return "healthy" if all(c.state == "whole" for c in columns) else "degraded"


def _dial(context: ReaderContext, where: TargetAddress) -> RpcClient:
    return RpcClient(
        nearest_address(where),
        secret=context.secret,
        role=Role.READER,
        name=context.name,
        server_role=Role.TARGET,
        server_name=where.target,
    )
