"""Members of a real etcd on loopback: own ports, own data directories, ended by their ids."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tests.ha.finding import etcd_path
from tests.waiting import ASKED_S, wait_until

LOOPBACK = "127.0.0.1"
#: Of the tests' own speed: a member that is gone is missed after half a second.
_SPEED = ("--heartbeat-interval", "50", "--election-timeout", "500")


class Member:
    """One process. It keeps its ports and its data over `kill` and `start`."""

    def __init__(
        self, name: str, directory: Path, ports: tuple[int, int], host: str = LOOPBACK,
        within: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """within: the command that brings it to that host."""
        self.name, self.host = name, host
        self._within = within
        self.port, self.peer_port = ports
        self.log = directory / f"{name}.log"
        self._data = directory / f"{name}.data"
        self._process: subprocess.Popen[bytes] | None = None
        self._flags: Sequence[str] = ()

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def peer_url(self) -> str:
        return f"http://{self.host}:{self.peer_port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def launch(self, flags: Sequence[str], scheme: str = "http") -> None:
        """It may not answer yet on return."""
        here = f"{scheme}://{self.address}"
        self._flags = [
            *(*_SPEED, "--name", self.name, "--data-dir", str(self._data), "--logger", "zap"),
            *("--listen-client-urls", here, "--advertise-client-urls", here),
            *("--listen-peer-urls", self.peer_url, "--initial-advertise-peer-urls", self.peer_url),
            *flags,
        ]
        self.start()

    def start(self) -> None:
        """As it was launched."""
        assert self._process is None
        found = etcd_path()
        assert found is not None
        # Also when pytest is killed, or ends itself at a timeout, nothing of it stays.
        alone = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        # Variables of a service on this host are not for it.
        own = {name: text for name, text in os.environ.items() if not name.startswith("ETCD_")}
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                [*self._within, *alone, str(found), *self._flags],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=own,
            )  # fmt: skip

    def wait_up(self) -> None:
        """Until it takes connections."""
        wait_until(self._is_up, f"etcd answers, see {self.log}", poll_s=ASKED_S)

    def kill(self) -> None:
        """It is gone on return."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """It stands still, with its connections, until `go_on`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _is_up(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"etcd ended: {self.log.read_text()[-2000:]}"
        try:
            socket.create_connection((self.host, self.port), timeout=1.0).close()
        except OSError:
            return False
        return True


class Etcd:
    """One or three members that are one etcd, for as long as the block lasts."""

    def __init__(
        self, directory: Path, count: int = 1, flags: Sequence[str] = (), scheme: str = "http",
        *, host: str = LOOPBACK, within: Sequence[str] = (),
    ) -> None:  # fmt: skip
        directory.mkdir(parents=True, exist_ok=True)
        ports = free_ports(2 * count)
        self.members = [
            Member(
                f"m{number}", directory, (ports[2 * number], ports[2 * number + 1]), host, within
            )
            for number in range(count)
        ]
        together = ",".join(f"{each.name}={each.peer_url}" for each in self.members)
        try:
            for member in self.members:
                member.launch(["--initial-cluster", together, *flags], scheme)
            for member in self.members:
                member.wait_up()
        except BaseException:
            self._end()
            raise

    @property
    def addresses(self) -> str:
        """As a URL names them."""
        return ",".join(member.address for member in self.members)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        for member in self.members:
            member.kill()


def free_ports(count: int) -> list[int]:
    """That nobody listened on a moment ago, each another one."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(listener.getsockname()[1]) for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports
