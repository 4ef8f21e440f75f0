"""Several `ckptd coordinator` of one cluster, whose catalog is in one etcd."""

from __future__ import annotations

import json
import secrets
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tests.e2e_remote.cluster import Daemon
from tests.ha.members import Etcd
from tests.ha.places import Prefix, value_of
from tests.waiting import wait_until

CODE = "2+1"


class Coordinators:
    """I start, kill and find them; none runs after the block. A port stays its id's."""

    def __init__(
        self, directory: Path, etcd: Etcd, place: Prefix, ids: str = "abc",
        flags: Sequence[str] = (),
    ) -> None:  # fmt: skip
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self.etcd, self.place = etcd, place
        self._flags = flags
        self.code = CODE
        """Of those that are started from now on."""
        self.secret = secrets.token_bytes(32)
        self.secret_file = directory / "secret"
        self.secret_file.touch(mode=0o600)
        self.secret_file.write_text(self.secret.hex())
        self.running: dict[str, Daemon] = {}
        self.listen = dict.fromkeys(ids, "127.0.0.1:0")

    def __enter__(self) -> Self:
        try:
            for id in self.listen:
                self.start(id)
            if self.listen:
                self.leader()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def start(self, id: str) -> Daemon:
        """It stands by or leads on return."""
        daemon = self.running[id] = Daemon(
            "coordinator", "--directory", str(self.directory / id), "--listen", self.listen[id],
            "--id", id, "--catalog", self.place.url, "--code", self.code, "--max-per-domain", "2",
            "--secret-file", str(self.secret_file), *self._flags, log=self.log_of(id),
            within=self.within(id),
        )  # fmt: skip
        self.listen[id] = daemon.address
        return daemon

    def within(self, _id: str) -> Sequence[str]:
        """The command that brings it to a host of its own."""
        return ()

    def log_of(self, id: str) -> Path:
        """Of all processes that had this id."""
        return self.directory / f"{id}.log"

    def key(self) -> dict[str, object]:
        """What the leader's key says; empty while it is free."""
        found = value_of(self.etcd, self.place, "leader")
        return {} if found is None else dict(json.loads(found))

    def term(self) -> int:
        """The highest that was begun."""
        return int(value_of(self.etcd, self.place, "term") or 0)

    def leader(self, *, but: str = "") -> str:
        """Who has the key, once somebody else than that has."""
        found = [but]

        def leads() -> bool:
            found[0] = str(self.key().get("id", but))
            return found[0] != but

        wait_until(leads, "somebody leads")
        return found[0]

    def kill(self, id: str, number: signal.Signals = signal.SIGKILL) -> int:
        """It is gone on return, which is its exit code."""
        daemon = self.running.pop(id)
        daemon.end(number)
        return daemon.process.returncode

    def logged(self, id: str, text: str) -> int:
        """How often."""
        return self.log_of(id).read_text().count(text)

    def warm_lines(self, id: str) -> str:
        """What it logged of terms that began with the copy of who stood by."""
        lines = self.log_of(id).read_text().splitlines()
        return "\n".join(line for line in lines if '"warm": "yes"' in line)

    def end(self) -> None:
        """All of them."""
        for daemon in self.running.values():
            if daemon.process.poll() is None:
                # One that was stopped would not hear of its end.
                daemon.process.send_signal(signal.SIGCONT)
            daemon.end(signal.SIGTERM)
        self.running.clear()
