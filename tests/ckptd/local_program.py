"""What stands for `ckptd` in the supervisor's tests: the real coordinator and `local`, and a target
that registers and renews but stores nothing, so that these tests are about processes alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from ckptd import supervise
from ckptd.coordinator import CoordinatorConfig, run_coordinator
from ckptd.local import LocalConfig, run_local

from ckpt.aio.channel import Bulk
from ckpt.aio.dial import Dialer
from ckpt.aio.secret import read_secret
from ckpt.base.errors import CkptError
from ckpt.base.ids import BootId, TargetId
from ckpt.protocol.events import Session
from ckpt.protocol.handshake import Established
from ckpt.protocol.messages import (
    ColumnsListed,
    ListColumns,
    Message,
    RegisterTarget,
    RenewLease,
    Role,
)

PROGRAM = (sys.executable, "-m", "tests.ckptd.local_program")


def report(level: str, text: str, fields: Mapping[str, str | int | float]) -> None:
    sys.stderr.write(json.dumps({"level": level, "text": text, **fields}) + "\n")
    sys.stderr.flush()


class IdleTarget:
    """I am live and empty."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._boot = BootId(secrets.randbits(63) | 1)
        self.dialer = Dialer(
            self,
            address=options.coordinator,
            secret=read_secret(Path(options.secret_file)),
            role=Role.TARGET,
            name=options.id,
            cluster=options.cluster,
        )
        self.session: Session | None = None

    def opened(self, session: Session, peer: Established) -> None:
        self.session = session
        register = RegisterTarget(
            target=TargetId(self._options.id), boot=self._boot, address="127.0.0.1:1", unix="",
            domain=self._options.domain, directory=self._options.directory, pid=os.getpid(),
            bytes_total=1 << 30, bytes_free=1 << 30, bytes_used=0, term_seen=0,
        )  # fmt: skip
        self.dialer.send(session, 1, register)

    def received(self, session: Session, request: int, message: Message, bulk: Bulk | None) -> None:
        if isinstance(message, ListColumns):
            self.dialer.send(session, request, ColumnsListed((), (), ""))

    def closed(self, session: Session, reason: str) -> None:
        self.session = None

    def renew(self) -> None:
        if self.session is not None:
            renewal = RenewLease(TargetId(self._options.id), self._boot, 1 << 30, 0)
            self.dialer.send(self.session, 2, renewal)


async def run_target(options: argparse.Namespace) -> None:
    if (Path(options.directory) / "broken").exists():
        raise CkptError("its disk is broken")
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    target = IdleTarget(options)
    target.dialer.start()
    ready = {"ready": "target", "address": "127.0.0.1:1", "pid": os.getpid()}
    os.write(1, json.dumps(ready).encode() + b"\n")
    while not stopped.is_set():
        target.renew()
        try:
            await asyncio.wait_for(stopped.wait(), 0.5)
        except TimeoutError:
            continue
    await target.dialer.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command")
    coordinator = commands.add_parser("coordinator")
    for name in ("directory", "secret-file"):
        coordinator.add_argument(f"--{name}", type=Path)
    for name in ("cluster", "code", "level", "listen", "http"):
        coordinator.add_argument(f"--{name}")
    for name in ("cell-bytes", "keep"):
        coordinator.add_argument(f"--{name}", type=int)
    target = commands.add_parser("target")
    for name in ("id", "directory", "coordinator", "listen", "secret-file", "cluster", "domain"):
        target.add_argument(f"--{name}")
    local = commands.add_parser("local")
    local.add_argument("directory", type=Path)
    local.add_argument("--targets", type=int)
    local.add_argument("--code")
    local.add_argument("--restart")
    local.add_argument("--linger-s", type=float)
    options = parser.parse_args()
    values = {name: value for name, value in vars(options).items() if name != "command"}
    supervise.BACKOFF_FIRST_S, supervise.BACKOFF_LAST_S = 0.02, 0.2  # type: ignore[misc]
    try:
        match options.command:
            case "coordinator":
                secret = read_secret(values.pop("secret_file"))
                asyncio.run(run_coordinator(CoordinatorConfig(**values), secret))
            case "target":
                asyncio.run(run_target(options))
            case _:
                told = {name: value for name, value in values.items() if value is not None}
                run_local(LocalConfig(**told), report=report, program=PROGRAM)
    except CkptError as error:
        report("error", str(error), {})
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
