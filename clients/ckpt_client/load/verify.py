"""Is every byte of a checkpoint still what was written? Each target reads its own columns and
compares, also those of earlier generations that hold bytes of it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from ckpt.aio.net.rpc import RpcClient
from ckpt.base.errors import CkptError
from ckpt.base.ids import (
    CheckpointId,
    ColumnId,
    ColumnNumber,
    Generation,
    Home,
    RunName,
    Step,
    TargetId,
)
from ckpt.base.limits import PAYLOAD_BYTES_MAX
from ckpt.base.units import US_PER_S
from ckpt.format.messages.hello import Role
from ckpt.format.messages.loading import Resolve, TargetAddress
from ckpt.format.messages.reading import ByteRange, ColumnVerified, VerifyColumn
from ckpt.plan.reads import PayloadKey
from ckpt.protocol.coordinator.keeping.judging import most_bad
from ckpt.protocol.handshake import Caller
from ckpt.transfer.payload_finder import FoundPayload, PayloadFinder
from ckpt.transfer.target_links import nearest_address
from ckpt_client.load.pin import Pinned
from ckpt_client.load.reader_context import ReaderContext

COLUMN_TIMEOUT_S: Final = 600.0
"""To read one column whole, after all others that its target was asked for."""
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
    """Ranges of the column, in bytes, that do not match their checksums."""
    home: str = ""
    """`STEP#GENERATION` of the earlier checkpoint whose column it is; empty for this one's own."""


@dataclass(frozen=True, slots=True)
class PayloadHealth:
    """One rank's payload: `healthy`, `degraded`, `lost` or `unknown`."""

    rank: int
    state: str
    home: str = ""
    """As of its columns."""


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
    """All of them, by rank and column; those of homes after its own."""
    bytes_read: int
    """Fragment bytes that targets compared."""
    seconds: float


_ORDER: Final = ("healthy", "degraded", "unknown", "lost")


def verify(
    context: ReaderContext,
    run: RunName,
    step: Step,
    *,
    timeout_s: float = 10.0,
    only: Generation | None = None,
) -> VerifyReport:
    """Verify a generation of a step, the newest or `only` that one, and the payloads of its homes
    that it refers to, all targets at once. Raises NotFound, Unavailable, Lost."""
    begun_s = time.monotonic()
    question = Resolve(run, step, timeout_us=int(timeout_s * US_PER_S), only=only)
    pinned = Pinned(context, question, timeout_s)
    try:
        checkpoint = pinned.record.info.checkpoint
        payloads = _payloads(pinned.finder, refers=bool(pinned.record.info.homes))
        addresses = {where.target: where for where in pinned.resolved.targets}
        found = _ask_all(context, checkpoint, payloads, addresses)
    finally:
        pinned.close()
    columns = tuple(health for health, _ in found)
    of_payload: defaultdict[tuple[str, int], list[ColumnHealth]] = defaultdict(list)
    for column in columns:
        of_payload[column.home, column.rank].append(column)
    parity = [payload.entry.code.m for payload in payloads]
    healths = tuple(
        PayloadHealth(rank, _judge(m, of_payload[home, rank]), home)
        for m, (home, rank) in zip(parity, of_payload, strict=True)
    )
    worst = max((_ORDER.index(health.state) for health in healths), default=0)
    bytes_read = sum(count for _, count in found)
    return VerifyReport(
        checkpoint, _ORDER[worst], healths, columns, bytes_read, time.monotonic() - begun_s
    )


def _payloads(finder: PayloadFinder, *, refers: bool) -> list[FoundPayload]:
    """Its own, and each payload of a home that holds bytes of it, once."""
    own = finder.own()
    if not refers:
        return own
    keys = {
        PayloadKey(location.generation, location.rank)
        for tensor in finder.index.tensors()
        for box in tensor.boxes
        for location in box.locations
        if location.generation is not None
    }
    return own + [finder.find(key) for key in sorted(keys, key=lambda key: key.order)]


def _home(payload: FoundPayload, checkpoint: CheckpointId) -> str:
    return "" if payload.id.checkpoint == checkpoint else str(Home.of(payload.id.checkpoint))


def _ask_all(
    context: ReaderContext,
    checkpoint: CheckpointId,
    payloads: Sequence[FoundPayload],
    addresses: Mapping[TargetId, TargetAddress],
) -> list[tuple[ColumnHealth, int]]:
    with ExitStack() as stack:
        peers = {
            target: stack.enter_context(_dial(context, where))
            for target, where in addresses.items()
        }
        questions = [
            (ColumnId(payload.id, ColumnNumber(j)), target, _home(payload, checkpoint))
            for payload in payloads
            for j, target in enumerate(payload.columns)
        ]
        with ThreadPoolExecutor(AT_ONCE_MAX, thread_name_prefix="ckpt-verify") as pool:
            return list(pool.map(lambda each: _ask(each[0], each[1], each[2], peers), questions))


def _ask(
    id: ColumnId, target: TargetId | None, home: str, peers: Mapping[TargetId, RpcClient]
) -> tuple[ColumnHealth, int]:
    """The column's health, and how many bytes of it were compared."""
    state, damaged, column_bytes = _state(id, target, peers)
    rank, column = int(id.payload.rank), int(id.column)
    return ColumnHealth(rank, column, target, state, damaged, home), column_bytes


def _state(
    id: ColumnId, target: TargetId | None, peers: Mapping[TargetId, RpcClient]
) -> tuple[str, tuple[ByteRange, ...], int]:
    if target is None:
        return "missing", (), 0
    peer = peers.get(target)
    if peer is None:
        return "away", (), 0
    try:
        answer, _ = peer.call(VerifyColumn(id), timeout_s=COLUMN_TIMEOUT_S)
    except CkptError:
        return "away", (), 0
    match answer:
        case ColumnVerified(missing=True):
            return "missing", (), 0
        case ColumnVerified(_, _, column_bytes, damaged):
            return "damaged" if damaged else "whole", damaged, column_bytes
        case _:
            return "away", (), 0


def _judge(m: int, columns: Sequence[ColumnHealth]) -> str:
    """Lost is only what is proved: a column out of reach may be whole."""
    proved = [_EVERYWHERE if c.state == "missing" else c.damaged for c in columns]
    away = [_EVERYWHERE for c in columns if c.state == "away"]
    if most_bad(proved) > m:
        return "lost"
    if most_bad([*proved, *away]) > m:
        return "unknown"
    return "healthy" if all(c.state == "whole" for c in columns) else "degraded"


def _dial(context: ReaderContext, where: TargetAddress) -> RpcClient:
    return RpcClient(
        nearest_address(where),
        Caller(
            context.secret,
            Role.READER,
            context.name,
            server_role=Role.TARGET,
            server_name=where.target,
        ),
    )
