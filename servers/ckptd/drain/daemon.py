"""`ckptd drain`: copy committed checkpoints to object stores, each exactly once, verified.

One thread for each store. Credentials come from the environment, as the store's library wants
them. What there is to do, and who does it, the coordinator's queue says; what is done lies in the
stores (docs/drain.md).
"""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from ckpt.aio.net.address import parse_addresses
from ckpt.aio.net.rpc import RpcClient
from ckpt.aio.secret import read_secret
from ckpt.base.errors import CkptError, Refused
from ckpt.base.units import MiB
from ckpt.format.messages.hello import Role
from ckpt.objects.pace import WritePace
from ckpt.objects.planning import WriteOptions
from ckpt.objects.sinks.retry import Patience
from ckpt.objects.sinks.stores import open_sink
from ckpt.objects.writer import WriteLimits
from ckpt.plan.drains import StorePolicy, parse_policies
from ckpt.protocol.handshake import Caller
from ckptd import config as options
from ckptd.drain.watch import BurstWatch, CoordinatorWatch
from ckptd.drain.worker import Reach, StoreWorker
from ckptd.log import configure, reporter, write_ready_line
from ckptd.worker_process import set_by_signals, wait_stopped, worker_name

STOP_GRACE_S: Final = 5.0
"""How long workers may take to abort what they began; the next process cleans up the rest."""


@dataclass(frozen=True, slots=True)
class DrainConfig:
    """Options of `ckptd drain`, from TOML, environment or flags."""

    to: Annotated[str, "URLS"]
    """Object stores, with spaces between: URL?every=N&keep=N&runs=PATTERN&checksum=md5 each."""
    coordinator: Annotated[str, "HOST:PORT[,HOST:PORT...]"]
    """The cluster's coordinators, of which one leads."""
    poll_s: float = 1.0
    """How often to look for new commits."""
    threads: int = 2
    """Shards written to each store at once; as many again are read back at the same time."""
    memory_bytes: int = 256 * MiB
    """Memory for bytes on their way to each store."""
    bandwidth_bytes: Annotated[int, "BYTES/S"] = 0
    """Most bytes to each store in a second; 0 is no cap."""
    patience_s: float = 120.0
    """How long one request to a store is tried before its checkpoint waits for another turn."""
    compression: Annotated[str, "auto|none|always"] = "auto"
    """Whether to compress arrays; auto decides by samples."""
    portable_dtypes: bool = False
    """Write bfloat16 and float8 as integers, for Zarr readers without consolidated metadata."""
    abandon_s: float = 3600.0
    """When the tier deleted a step that was half drained, remove its parts once nobody has written
    to them for this long."""
    aside: bool = True
    """Pause while a save is under way."""
    log_level: Annotated[str, "info|warning|error"] = "info"
    """Log events of this severity and above."""

    def __post_init__(self) -> None:
        parse_policies(self.to)
        parse_addresses(self.coordinator)
        if min(self.poll_s, self.abandon_s, self.patience_s) <= 0 or self.bandwidth_bytes < 0:
            raise Refused("poll_s, abandon_s, patience_s are above 0, bandwidth_bytes at least 0")
        WriteOptions(compression=self.compression)
        WriteLimits(self.threads, self.memory_bytes)

    @property
    def policies(self) -> tuple[StorePolicy, ...]:
        """The stores."""
        return parse_policies(self.to)


def main(argv: Sequence[str]) -> int:
    """`ckptd drain …`; returns the exit code, raises CkptError for what ended it."""
    loaded = options.load(
        DrainConfig,
        program="drain",
        description="Copy committed checkpoints to object stores, each exactly once.",
        example="ckptd drain --coordinator 10.0.0.1:7070 --to 's3://bucket/runs?keep=20'",
        argv=argv,
    )
    configure(loaded.config.log_level)
    run_drain(loaded.config, read_secret(loaded.secret_file))
    return 0


def run_drain(config: DrainConfig, secret: bytes) -> None:
    """Serve until SIGTERM or SIGINT. Raises Refused for a store that cannot be opened, CkptError
    for a defect: whoever runs this starts it again.
    """
    report = reporter("ckptd.drain.daemon")
    stopped = set_by_signals()
    name = worker_name("drain")
    reach = Reach(config.coordinator, secret, name)
    rpc = RpcClient(config.coordinator, Caller(secret, Role.DRAIN, name))
    workers = [_worker(config, policy, rpc, reach) for policy in config.policies]
    defects: list[BaseException] = []

    def serve(worker: StoreWorker) -> None:
        try:
            worker.run(config.poll_s, stopped)
        except BaseException as error:  # Without this thread nobody serves its store.
            lines = "".join(traceback.format_exception(error))
            report("error", "defect: a store's worker failed", {"traceback": lines})
            defects.append(error)
            stopped.set()

    threads = [threading.Thread(target=serve, args=(worker,), daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    write_ready_line(
        {"ready": "drain", "pid": os.getpid(), "to": [worker.url for worker in workers]}
    )
    wait_stopped(stopped)
    for thread in threads:
        thread.join(STOP_GRACE_S)
    rpc.close()
    report("info", "stopped", {})
    if defects:
        raise CkptError(
            f"stopped by a defect: {type(defects[0]).__name__}: {defects[0]}",
            hint="nothing durable is harmed; start it again and report the logged traceback",
        )


def _worker(config: DrainConfig, policy: StorePolicy, rpc: RpcClient, reach: Reach) -> StoreWorker:
    pace = WritePace(config.bandwidth_bytes or None)
    if config.aside:
        pace.is_burst = BurstWatch(CoordinatorWatch(rpc))
    return StoreWorker(
        policy,
        open_sink(policy.url, None, Patience(config.patience_s), policy.checksum),
        rpc,
        reach,
        WriteOptions(portable=config.portable_dtypes, compression=config.compression),
        WriteLimits(config.threads, config.memory_bytes, pace),
        quiet_s=config.abandon_s,
    )
