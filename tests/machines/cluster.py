"""Separate daemons, each on a machine of its own: with a power switch, a clock, and a disk that
loses at a loss of power what was not synced.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from tests.e2e_remote.cluster import CODE, HOSTS, Daemon, RemoteCluster
from tests.machines.clock import LIBRARY, Clock
from tests.machines.losing import lose_unsynced
from tests.machines.recorder import Recorder

COORDINATOR: Final = "coordinator"
TARGETS: Final = tuple(f"h{host}d{device}" for host in range(HOSTS) for device in range(2))
EVERYTHING: Final = (COORDINATOR, *TARGETS)


class MachineCluster(RemoteCluster):
    """A daemon is named by its directory. My owner ends me as any RemoteCluster."""

    def __init__(
        self, directory: Path, library: Path, flags: Iterable[str] = (), *,
        hosts: int = HOSTS, code: str = CODE,
    ) -> None:  # fmt: skip
        """`flags`: more of the coordinator's."""
        super().__init__(directory, flags, hosts=hosts, code=code)
        self._library = library
        self.everything = EVERYTHING[: 1 + 2 * hosts]
        """The coordinator and its targets."""
        self.lying: set[str] = set()
        """Daemons that are started from now on with a disk that only says it has synced."""

    def environment(self, directory: Path) -> Mapping[str, str]:
        recorder, clock = self._recorder(directory.name), self.clock(directory.name)
        preload = {"LD_PRELOAD": f"{recorder.library} {LIBRARY}"}
        return {**os.environ, **preload, **recorder.environment(), **clock.environment()}

    def clock(self, name: str) -> Clock:
        return Clock(self.directory / f"{name}.clock")

    def daemon(self, name: str) -> Daemon:
        return self.coordinator if name == COORDINATOR else self.targets[name]

    def lose_power(self, names: Iterable[str], choice: random.Random | None = None) -> Counter[str]:
        """All of them at once, before any of them notices that another is gone. Counts what their
        disks lost, by kind of change.
        """
        daemons = [self.daemon(name) for name in names]
        for daemon in daemons:
            daemon.process.send_signal(signal.SIGKILL)
        for daemon in daemons:
            daemon.end()
        lost: Counter[str] = Counter()
        for name in names:
            lost += lose_unsynced(self._recorder(name), choice)
        return lost

    def start_again(self, names: Iterable[str]) -> None:
        """The coordinator first, if it is among them; all are live on return."""
        if COORDINATOR in names:
            self.start_coordinator()
        for name in names:
            if name != COORDINATOR:
                self.start_target(name)
        self.wait_live()

    def _recorder(self, name: str) -> Recorder:
        return Recorder(self._library, self.directory / name, lying=name in self.lying)
