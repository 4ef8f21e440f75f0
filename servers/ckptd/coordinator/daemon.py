"""`ckptd coordinator`: one process, and the terms in which it leads.

With a catalog in a file it has one term: start: lock and load the catalog, begin a term (durable
before the port is open), recover, listen, print one ready line. With a catalog in etcd it may stand
by and lead in turns (`contender`). Stop on SIGTERM or SIGINT: store and acknowledge what waits,
free the catalog, close the port.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence

from ckpt.aio.secret import read_secret
from ckpt.protocol.target.term import PROCESS_BYTES
from ckptd import config as options
from ckptd import event_loop
from ckptd.catalog.sqlite import SqliteCatalog
from ckptd.coordinator.alone import Alone
from ckptd.coordinator.config import CoordinatorConfig
from ckptd.coordinator.front import listening, say_ready
from ckptd.coordinator.process_end import ProcessEnd
from ckptd.coordinator.shell import CoordinatorShell
from ckptd.directory import check_no_target, check_owner, close_to_others, make_directory
from ckptd.fail_stop import FailStop
from ckptd.log import Reporter, configure, reporter


def main(argv: Sequence[str]) -> int:
    """`ckptd coordinator …`; returns the exit code, raises CkptError for what ended it."""
    loaded = options.load(
        CoordinatorConfig,
        program="coordinator",
        description="Plan saves, commit checkpoints, keep the catalog of a ckpt cluster.",
        example="ckptd coordinator --directory /var/lib/ckpt --listen 10.0.0.1:7070 --code 4+2",
        argv=argv,
    )
    configure(loaded.config.log_level)
    secret = read_secret(loaded.secret_file)
    event_loop.run(run_coordinator(loaded.config, secret))
    return 0


async def run_coordinator(config: CoordinatorConfig, secret: bytes) -> None:
    """Serve until SIGTERM or SIGINT. Raises why it had to stop otherwise, or could not start."""
    report = reporter("ckptd.coordinator.daemon")
    report("info", "starting", {k: str(v) for k, v in options.as_text(config).items()})
    check_no_target(config.directory)
    make_directory(config.directory)
    check_owner(config.directory)
    close_to_others(config.directory, report)
    end = ProcessEnd()
    defects = FailStop(asyncio.get_running_loop(), report, end.stop.set)
    if config.catalog:
        # aiohttp's client, which a coordinator with a file does without.
        from ckptd.coordinator.contender import contend

        await contend(config, secret, report, end)
    else:
        await _lead_alone(config, secret, report, end)
    defects.check()
    if end.failure is not None:
        raise end.failure
    report("info", "stopped", {})


async def _lead_alone(
    config: CoordinatorConfig, secret: bytes, report: Reporter, end: ProcessEnd
) -> None:
    # It blocks: nothing else runs before there is a catalog.
    catalog = SqliteCatalog.open(config.directory, config.cluster or None, secrets.token_hex(8))
    try:
        catalog.image.process = secrets.token_bytes(PROCESS_BYTES)
        policy = config.policy(catalog.cluster)
        shell = CoordinatorShell(policy, catalog, config.directory, secret, report, end.fail)
        async with listening(config, secret, catalog.cluster) as front:
            front.people = Alone(front, str(config.directory), catalog.image.term)
            front.lead(shell)
            end.on_signals()
            say_ready(front, term=catalog.image.term)
            await front.run(end.stop)
            front.retire()
            await shell.finish()
    finally:
        await catalog.close()
