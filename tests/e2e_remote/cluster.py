"""Separate daemons as an operator starts them: one coordinator, two targets on each "host"."""

from __future__ import annotations

import json
import os
import secrets
import signal
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from ckpt.aio.net.rpc import RpcClient
from ckpt.base.ids import TargetId
from ckpt.format.messages.asking import Answer, Ask
from ckpt.format.messages.hello import Role
from ckpt.protocol.coordinator.reading.answers import StatusView
from ckpt.protocol.handshake import Caller
from tests.waiting import ASKED_S, wait_until
from tests.warm_child import start_daemon

HOSTS = 4
CODE = "4+2"


class Daemon:
    """One `ckptd` process that has said it is ready; ended by its own id."""

    def __init__(
        self, program: str, *flags: str, log: Path | None = None,
        environment: Mapping[str, str] | None = None, within: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Its log goes to that file; else beside the test's own. `within`: a command that becomes
        the one that follows it, somewhere else.
        """
        with open(2, "ab", closefd=False) if log is None else log.open("ab") as errors:
            self.process = start_daemon(
                [program, *flags], options=("-W", "error"), environment=environment,
                stderr=errors.fileno(), within=within,
            )  # fmt: skip
        self._ready: dict[str, object] = {}

    @property
    def ready(self) -> dict[str, object]:
        """Its ready line, read when first asked for."""
        if not self._ready:
            assert self.process.stdout is not None
            line = self.process.stdout.readline()
            assert line, f"pid {self.process.pid} ended before it was ready"
            self._ready = json.loads(line)
        return self._ready

    @property
    def address(self) -> str:
        return str(self.ready["address"])

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Signal it; it is gone on return."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


class RemoteCluster:
    """I start and end daemons below one directory; nothing of me runs behind `end`."""

    def __init__(
        self, directory: Path, flags: Iterable[str] = (), target_flags: Iterable[str] = (),
        *, hosts: int = HOSTS, code: str = CODE,
    ) -> None:  # fmt: skip
        """`flags`: more of the coordinator's."""
        self.directory = directory
        self._hosts, self._code = hosts, code
        self._flags = tuple(flags)
        self._target_flags = tuple(target_flags)
        self.secret = secrets.token_bytes(32)
        self.secret_file = directory / "secret"
        self.secret_file.touch(mode=0o600)
        self.secret_file.write_text(self.secret.hex())
        self.coordinator_directory = directory / "coordinator"
        self._listen = "127.0.0.1:0"
        self.coordinator: Daemon
        self.targets: dict[str, Daemon] = {}

    @property
    def url(self) -> str:
        return f"ckpt://{self.coordinator.address}"

    @property
    def coordinators(self) -> str:
        """What a target is given."""
        return self._listen

    # ----------------------------------------------------------------------- starting

    def start(self) -> None:
        """Everything runs and is live on return."""
        self.start_coordinator()
        for host in range(self._hosts):
            self.start_host(host)
        self.wait_live()

    def start_coordinator(self) -> None:
        """Always on the port of the first start."""
        self.coordinator = Daemon(
            "coordinator", "--directory", str(self.coordinator_directory),
            "--listen", self._listen, "--code", self._code, "--level", "host", "--max-per-domain", "2",
            "--secret-file", str(self.secret_file), *self._flags,
            log=self.log_of(self.coordinator_directory.name),
            environment=self.environment(self.coordinator_directory),
        )  # fmt: skip
        self._listen = self.coordinator.address

    def start_host(self, host: int) -> None:
        """Both of its targets."""
        for device in range(2):
            self.start_target(f"h{host}d{device}")

    def start_target(self, id: str) -> None:
        host, device = id[1], id[3]
        self.targets[id] = Daemon(
            "target", "--directory", str(self.directory / id), "--id", id,
            "--coordinator", self.coordinators, "--domain", f"power/rack/host{host}/{device}",
            "--capacity-bytes", "4GiB", "--secret-file", str(self.secret_file),
            *self._target_flags,
            log=self.log_of(id), environment=self.environment(self.directory / id),
        )  # fmt: skip

    def log_of(self, name: str) -> Path:
        """Of all daemons that ran on this directory."""
        return self.directory / f"{name}.log"

    def environment(self, directory: Path) -> Mapping[str, str] | None:
        """Of the daemon that this directory belongs to, when it is not the test's own."""
        return None

    # ----------------------------------------------------------------------- looking

    def status(self) -> StatusView:
        with self.client() as client:
            answer, bulk = client.call(Ask("status"), timeout_s=30.0)
        assert isinstance(answer, Answer)
        return msgspec.json.decode(bytes(bulk), type=StatusView)

    def client(self, secret: bytes | None = None) -> RpcClient:
        return RpcClient(
            self.coordinator.address, Caller(secret or self.secret, Role.ADMIN, "test")
        )

    def live(self) -> set[TargetId]:
        return {TargetId(t.id) for t in self.status().targets if t.state == "live"}

    def wait_live(self) -> None:
        what = "all targets that run are live"
        wait_until(lambda: self.live() == set(self.targets), what, poll_s=ASKED_S)

    # ----------------------------------------------------------------------- ending

    def kill_host(self, host: int) -> None:
        """A whole failure domain at once; the coordinator knows on return."""
        for device in range(2):
            self.targets.pop(f"h{host}d{device}").end()
        self.wait_live()

    def lose_catalog(self) -> None:
        """The coordinator is killed and its catalog is gone."""
        self.coordinator.end()
        for file in self.coordinator_directory.glob("catalog.sqlite*"):
            file.unlink()

    def end(self) -> None:
        """SIGTERM for all; they are gone on return."""
        daemons = [*self.targets.values(), self.coordinator]
        for daemon in daemons:
            if daemon.process.poll() is None:
                os.kill(daemon.process.pid, signal.SIGTERM)
        for daemon in daemons:
            daemon.end()
