"""Coordinators that share an etcd, and the targets of their cluster."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import msgspec

from ckpt.aio.net.rpc import RpcClient
from ckpt.format.messages.asking import Ask
from ckpt.format.messages.hello import Role
from ckpt.protocol.coordinator.reading.answers import StatusView
from ckpt.protocol.handshake import Caller
from tests.e2e_remote.cluster import Daemon
from tests.ha.coordinators import CODE, Coordinators
from tests.ha.members import LOOPBACK, Etcd, free_ports
from tests.ha.places import Prefix

FOUR = ("h0d0", "h0d1", "h1d0", "h1d1")
SEVEN = (*FOUR, "h2d0", "h2d1", "h3d0")


class SharedCluster(Coordinators):
    """Three coordinators and some targets, two on a host; all are given all addresses."""

    def __init__(
        self, directory: Path, etcd: Etcd, place: Prefix, ids: str = "abc", *,
        targets: Sequence[str] = FOUR, code: str = CODE,
    ) -> None:  # fmt: skip
        super().__init__(directory, etcd, place, ids)
        self.code = code
        self._target_ids = targets
        ports = free_ports(len(ids))
        self.listen = {id: f"127.0.0.1:{port}" for id, port in zip(ids, ports, strict=True)}
        self.targets: dict[str, Daemon] = {}

    @property
    def target_host(self) -> str:
        """Where all targets listen."""
        return LOOPBACK

    @property
    def addresses(self) -> str:
        return ",".join(self.listen.values())

    @property
    def url(self) -> str:
        return f"ckpt://{self.addresses}"

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            for id in self._target_ids:
                self.start_target(id)
            for target in self.targets.values():
                assert target.ready
        except BaseException:
            self.end()
            raise
        return self

    def start_target(self, id: str) -> None:
        self.targets[id] = Daemon(
            "target", "--directory", str(self.directory / id), "--id", id,
            "--coordinator", self.addresses, "--domain", f"power/rack/host{id[1]}/{id[3]}",
            "--capacity-bytes", "4GiB", "--secret-file", str(self.secret_file),
            "--listen", f"{self.target_host}:0", log=self.log_of(id), within=self.within(id),
        )  # fmt: skip

    def client(self) -> RpcClient:
        """Of whoever leads."""
        return RpcClient(self.addresses, Caller(self.secret, Role.ADMIN, "test"))

    def live_count(self) -> int:
        """Of targets, as whoever leads says."""
        with self.client() as client:
            _, bulk = client.call(Ask("status"), timeout_s=30.0)
        view = msgspec.json.decode(bytes(bulk), type=StatusView)
        return sum(one.state == "live" for one in view.targets)

    def end(self) -> None:
        for daemon in self.targets.values():
            if daemon.process.poll() is None:
                os.kill(daemon.process.pid, signal.SIGTERM)
        super().end()
        for daemon in self.targets.values():
            daemon.end()
