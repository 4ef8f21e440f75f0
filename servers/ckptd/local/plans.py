"""With which words each child of a local cluster is started, and which files hold it back."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ckpt.aio.durable import is_there
from ckpt.aio.local_targets import TARGETS_FOLDER, left_place
from ckpt.base.limits import SCRUB_PERCENT
from ckptd.directory import make_directory
from ckptd.local.children import ChildPlan, JsonObject, RestartPolicy
from ckptd.local.cluster_file import ClusterFile, device_of

HOLD_NAME: Final = "held"
COORDINATOR: Final = "coordinator"
DRAIN: Final = "drain"
REPAIR: Final = "repair"
TARGET: Final = "target"
SCRUB_VARIABLE: Final = "CKPT_TARGET__SCRUB_PERCENT"
"""Whoever sets it decides; else the targets share what one would take."""


class ChildPlans:
    """I plan the children of one DIR, from what it was made as and the files in it."""

    def __init__(self, directory: Path, cluster: ClusterFile, secret_file: Path) -> None:
        self._directory = directory
        self._cluster = cluster
        self._secret_file = secret_file
        self._device = device_of(directory)

    def coordinator(self, ready: Callable[[], JsonObject]) -> ChildPlan:
        """`ready`: what the one before it said, whose ports it takes."""
        cluster = self._cluster
        fixed = [
            COORDINATOR,
            *("--directory", str(self._directory), "--secret-file", str(self._secret_file)),
            *("--cluster", cluster.cluster, "--code", cluster.code),
            *("--cell-bytes", str(cluster.cell_bytes), "--keep", str(cluster.keep)),
            # Columns go to different targets; reports count devices (see ClusterFile.domain).
            *("--level", "target"),
        ]
        if is_there(self._directory / f"{COORDINATOR}.toml"):
            fixed += ["--config", str(self._directory / f"{COORDINATOR}.toml")]

        def argv() -> list[str]:
            known = ready()
            address = str(known.get("address", "127.0.0.1:0"))
            return [*fixed, "--listen", address, "--http", str(known.get("http", "127.0.0.1:0"))]

        return ChildPlan(COORDINATOR, argv, self.log(COORDINATOR))

    def target(self, id: str, address: str) -> ChildPlan:
        """`address`: the coordinator's. Raises OSError where a disk does not say now."""
        cluster = self._cluster
        directory, first = self.place(id), id in cluster.first_ids
        if first:
            make_directory(directory)
        device = self._device if first else device_of(directory)
        argv = [
            TARGET,
            *("--id", id, "--directory", str(directory), "--coordinator", address),
            *("--listen", "127.0.0.1:0", "--secret-file", str(self._secret_file)),
            *("--cluster", cluster.cluster, "--domain", cluster.domain(id, device)),
        ]
        # What one device has is parted among those that DIR was made with.
        shares = device == self._device
        if cluster.capacity_bytes and shares:
            argv += ["--capacity-bytes", str(cluster.capacity_bytes // cluster.targets)]
        if SCRUB_VARIABLE not in os.environ and shares:
            argv += ["--scrub-percent", str(max(1, SCRUB_PERCENT // cluster.targets))]
        policy = RestartPolicy(cluster.restart)
        place = None if first else directory
        holds = directory / HOLD_NAME, left_place(self._directory, id)
        return ChildPlan(id, lambda: argv, self.log(id), policy, holds, place)

    def place(self, id: str) -> Path:
        """The target's directory."""
        return self._directory / TARGETS_FOLDER / id

    def drain(self, address: str) -> ChildPlan:
        """Only where DIR has its options."""
        argv = [
            DRAIN,
            *("--config", str(self._directory / f"{DRAIN}.toml")),
            *("--coordinator", address),
            *("--secret-file", str(self._secret_file)),
        ]
        return ChildPlan(DRAIN, lambda: argv, self.log(DRAIN))

    def repair(self, address: Callable[[], str]) -> ChildPlan:
        """It stays once there was something to do: that costs less than to come and go."""
        fixed = [REPAIR, "--secret-file", str(self._secret_file)]
        if is_there(self._directory / f"{REPAIR}.toml"):
            fixed += ["--config", str(self._directory / f"{REPAIR}.toml")]

        def argv() -> list[str]:
            return [*fixed, "--coordinator", address()]

        return ChildPlan(REPAIR, argv, self.log(REPAIR))

    def log(self, name: str) -> Path:
        """What a child's stderr goes to."""
        return self._directory / "logs" / f"{name}.log"
