"""Daemons to which the system gives no thread: they say so, as of any lack that may pass."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ckpt.aio.disk import RealDisk
from ckpt.aio.net.rpc import RpcClient
from ckpt.base.ids import CheckpointId, Generation, PayloadId, Rank, RunName, Step
from ckpt.base.system_errors import Scarce
from ckpt.format.messages.hello import Role
from ckpt.format.messages.repairs import RepairLeased
from ckpt.protocol.handshake import Caller
from ckptd.catalog.sqlite import SqliteCatalog
from ckptd.repair.worker import RepairHeartbeat
from ckptd.target.disk_worker import DiskWorker
from tests.no_threads import SAYS, no_threads

PAYLOAD = PayloadId(CheckpointId(RunName("run"), Step(1), Generation(1, 1)), Rank(0))


def test_a_target_does_not_begin_without_its_disk(tmp_path: Path) -> None:
    async def begin() -> None:
        DiskWorker(RealDisk(tmp_path), lambda _: None)

    with no_threads(), pytest.raises(Scarce, match=SAYS):
        asyncio.run(begin())


def test_a_repair_worker_that_cannot_renew_its_lease_leaves_the_payload_and_asks_again() -> None:
    rpc = RpcClient("unix:/nowhere", Caller(bytes(32), Role.DRAIN, "repair"))
    with no_threads(), pytest.raises(Scarce, match=SAYS):
        RepairHeartbeat(rpc, "repair", RepairLeased(PAYLOAD), lambda _: None)
    rpc.close()


def test_a_catalog_that_nobody_writes_is_closed(tmp_path: Path) -> None:
    catalog = SqliteCatalog.open(tmp_path, None, "c1")
    with no_threads(), pytest.raises(Scarce, match=SAYS):
        catalog.start(lambda _: None, lambda _: None)
    asyncio.run(catalog.close())
    again = SqliteCatalog.open(tmp_path, None, "c1")
    asyncio.run(again.close())
