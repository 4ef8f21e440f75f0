"""An answer that no frame takes is the business of who asked, and of nobody else."""

from __future__ import annotations

import pytest

from ckpt.aio.net.rpc import RpcClient
from ckpt.base.errors import Refused
from ckpt.format.messages.asking import Answer, Ask
from ckpt.format.messages.hello import Role
from ckpt.protocol.handshake import Caller
from tests.e2e.cluster import Cluster
from tests.waiting import wait_until

TARGETS = 3
CLUSTER_OPTIONS = f"targets={TARGETS}&code=2+1&restart=never"
LONG = "\0" * 20_000
"""Quoted in an error it has four times as many bytes, more than a frame has for words."""


def test_who_asks_hears_that_its_answer_is_too_long_and_no_target_is_cut_off_for_it(
    cluster: Cluster,
) -> None:
    """It is answered once a target has confirmed the coordinator: within that target's frame."""
    wait_until(lambda: len(cluster.live()) == TARGETS, "all targets are live")
    before = cluster.status()
    secret = bytes.fromhex((cluster.directory / "secret").read_text())
    caller = Caller(secret, Role.ADMIN, "test")
    with RpcClient(str(cluster.ready()["address"]), caller) as client:
        with pytest.raises(Refused, match="does not fit one frame"):
            client.call(Ask(LONG))
        assert isinstance(client.call(Ask("runs"))[0], Answer)
    assert cluster.status().epoch == before.epoch, "nobody came or went"
