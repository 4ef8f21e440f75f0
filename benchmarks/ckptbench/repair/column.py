"""What does making a column again add to reading its sources? In this process, by the code of
`ckptd repair`, of a payload that the coordinator leases to it.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Final

from ckpt.aio.net.rpc import RpcClient
from ckpt.base.errors import CkptError, PeerError
from ckpt.format.messages.hello import Role
from ckpt.format.messages.repairs import EndRepair, LeaseRepair, RepairLeased, RepairNoted
from ckpt.plan.sources import SourceLoads
from ckpt.protocol.handshake import Caller
from ckpt.transfer.column_rebuilder import (
    LostColumns,
    RebuildRoom,
    SourceWindows,
    rebuild_columns,
)
from ckpt.transfer.read_job import ReceiverOptions
from ckpt.transfer.target_links import SenderOptions
from ckptbench.repair.plan import ColumnMade
from ckptd.repair.lost import ANSWER_S, located
from ckptd.repair.worker import RepairHeartbeat

NAME: Final = "ckptbench repair"


def measure_column(address: str, secret: bytes) -> ColumnMade:
    """Of the payload that comes first. Raises CkptError when there is none, or it is not made."""
    rpc = RpcClient(address, Caller(secret, Role.DRAIN, NAME))
    try:
        leased, _ = rpc.call(LeaseRepair(NAME), timeout_s=ANSWER_S)
        if not isinstance(leased, RepairLeased) or leased.payload is None:
            raise CkptError("the coordinator leases nothing")
        lease = RepairHeartbeat(rpc, NAME, leased, lambda _pace: None)
        try:
            found = _made(rpc, secret, leased)
        finally:
            lease.close()
        noted, _ = rpc.call(EndRepair(NAME, leased.payload), timeout_s=ANSWER_S)
        if not isinstance(noted, RepairNoted) or noted.counted != len(leased.lost):
            raise PeerError(f"{leased.payload} was made again, and the answer is {noted}")
        return found
    finally:
        rpc.close()


def _made(rpc: RpcClient, secret: bytes, leased: RepairLeased) -> ColumnMade:
    with located(rpc, secret, NAME, leased) as found:
        lost = _with_k_sources(found.lost)
        sending = SenderOptions(secret, NAME, found.cluster)
        with RebuildRoom(ReceiverOptions(secret=secret, name=NAME, cluster=found.cluster)) as room:
            # Once without a clock: memory and connections of a process that begins are no part.
            _read(lost, room)
            begun = time.monotonic()
            _read(lost, room)
            read = time.monotonic()
            rebuild_columns(lost, room, sending, lambda _size: None, lambda: None)
            made = time.monotonic()
    size = lost.source.layout.column_bytes * len(lost.places)
    return ColumnMade(read - begun, made - read, size)


def _with_k_sources(lost: LostColumns) -> LostColumns:
    """The same ones for both."""
    source = lost.source
    layout = source.layout
    spared = SourceLoads().choose(source.columns, lost.places, layout.code.k, layout.column_bytes)
    return replace(lost, source=replace(source, spared=spared))


def _read(lost: LostColumns, room: RebuildRoom) -> None:
    """All of them, by the windows in which they are read to make columns."""
    with SourceWindows(lost, room, lambda _size: None) as windows:
        for _first, _memory in windows:
            continue
