"""`ckptd repair`: make lost columns again, so that redundancy returns by itself.

One for a host or two of a cluster; each has two payloads in hand at once. What there is to do, and
who does it, the coordinator says.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from ckpt.aio.net.address import parse_addresses
from ckpt.aio.net.rpc import RpcClient
from ckpt.aio.secret import read_secret
from ckpt.base.errors import Refused
from ckpt.erasure.selftest import self_test_once
from ckpt.format.messages.hello import Role
from ckpt.objects.pace import WritePace
from ckpt.protocol.handshake import Caller
from ckptd import config as options
from ckptd.log import configure, reporter, write_ready_line
from ckptd.repair.worker import HANDS, RepairProcess, RepairWorker
from ckptd.worker_process import set_by_signals, worker_name


@dataclass(frozen=True, slots=True)
class RepairConfig:
    """Options of `ckptd repair`, from TOML, environment or flags."""

    coordinator: Annotated[str, "HOST:PORT[,HOST:PORT...]"]
    """The cluster's coordinators, of which one leads."""
    poll_s: float = 1.0
    """How often to ask for work."""
    bandwidth_bytes: Annotated[int, "BYTES/S"] = 0
    """Most bytes to read from targets in a second; 0 is no cap."""
    log_level: Annotated[str, "info|warning|error"] = "info"
    """Log events of this severity and above."""

    def __post_init__(self) -> None:
        parse_addresses(self.coordinator)
        if self.poll_s <= 0 or self.bandwidth_bytes < 0:
            raise Refused("poll_s is above 0, bandwidth_bytes at least 0")


def main(argv: Sequence[str]) -> int:
    """`ckptd repair …`; returns the exit code, raises CkptError for what ended it."""
    loaded = options.load(
        RepairConfig,
        program="repair",
        description="Make lost columns again, so that redundancy returns by itself.",
        example="ckptd repair --coordinator 10.0.0.1:7070",
        argv=argv,
    )
    configure(loaded.config.log_level)
    self_test_once()
    run_repair(loaded.config, read_secret(loaded.secret_file))
    return 0


def run_repair(config: RepairConfig, secret: bytes) -> None:
    """Serve until SIGTERM or SIGINT."""
    stopped = set_by_signals()
    pace = WritePace(config.bandwidth_bytes or None, is_stopped=stopped.is_set)
    process = RepairProcess(secret, worker_name("repair"), pace)
    write_ready_line({"ready": "repair", "pid": os.getpid()})
    failed: list[BaseException] = []
    others = [
        threading.Thread(target=_run_hand, args=(config, process, stopped, failed))
        for _ in range(HANDS - 1)
    ]
    for thread in others:
        thread.start()
    _run_hand(config, process, stopped, failed)
    for thread in others:
        thread.join()
    if failed:
        raise failed[0]
    reporter("ckptd.repair.daemon")("info", "stopped", {})


def _run_hand(
    config: RepairConfig,
    process: RepairProcess,
    stopped: threading.Event,
    failed: list[BaseException],
) -> None:
    """What none foresaw in one hand ends the process, as it would end a process of one."""
    try:
        with RpcClient(config.coordinator, Caller(process.secret, Role.DRAIN, process.name)) as rpc:
            RepairWorker(rpc, process).run(config.poll_s, stopped)
    except BaseException as error:
        failed.append(error)
        stopped.set()
