"""Who is lost next? A seeded choice among separate daemons whose victims do not come back: a target
loses its disk with its life and is replaced by an empty one.

Never more than parity can make good: a third target is struck only once all is whole again. The
others are killed and started again, or stand still for a while.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from ckpt.base.errors import CkptError
from ckpt.base.ids import TargetId
from ckpt.format.messages.asking import ReplaceTarget
from tests.e2e_remote.cluster import Daemon, RemoteCluster

PARITY: Final = 2
REST_S: Final = (1.0, 5.0)
AWAY_S: Final = (0.5, 8.0)
"""Of a daemon that is killed, or stands still."""
POLL_S: Final = 0.1
SAVES_BESIDE: Final = 4
"""So many may have begun while a target was away and commit after it is back."""


class Wrecker:
    """I strike when it is time. My owner calls `work` often, and `relent` at the end."""

    def __init__(self, seed: int, cluster: RemoteCluster, whole: Callable[[], int]) -> None:
        """whole: the newest committed step, where each step could lose PARITY targets now; else
        0.
        """
        self._random = random.Random(seed)
        self._cluster = cluster
        self._whole = whole
        self._worker = self._start_worker()
        #: (when, what is done then), of whom somebody struck.
        self._due: list[tuple[float, Callable[[], None]]] = []
        #: Who is dead or still, until it is not.
        self._away: set[str] = set()
        #: Who was struck since all was whole: a step may lack a column of each.
        self._struck: set[str] = set()
        #: The newest step when all were back; of the saves after it none has missed one of them.
        self._back_at = 0
        self._next_s = time.monotonic() + 2.0
        self.replaced: Counter[str] = Counter()
        self.strikes: Counter[str] = Counter()

    def work(self) -> None:
        """Bring back who was away long enough; strike if it is time."""
        for due in [due for due in self._due if time.monotonic() >= due[0]]:
            self._due.remove(due)
            due[1]()
        if time.monotonic() >= self._next_s:
            self._strike()
            self._next_s = time.monotonic() + self._random.uniform(*REST_S)

    def relent(self) -> None:
        """All run; who was lost is replaced."""
        while self._due:
            self._due.pop()[1]()
            # Who is to be replaced has not knocked yet, maybe.
            threading.Event().wait(POLL_S)

    def end(self) -> None:
        """The worker is gone on return; it has ended as it should."""
        self._worker.end(signal.SIGTERM)
        assert self._worker.process.returncode == 0

    # ----------------------------------------------------------------------- ways

    def _strike(self) -> None:
        ways: list[tuple[int, str, Callable[[], bool]]] = [
            (5, "disk", lambda: self._strike_a_target(self._lose_a_disk)),
            (3, "target", lambda: self._strike_a_target(self._kill)),
            (2, "still", lambda: self._strike_a_target(self._stop)),
            (3, "worker", self._kill_the_worker),
            (1, "coordinator", self._kill_the_coordinator),
        ]
        (number,) = self._random.choices(range(len(ways)), [weight for weight, _, _ in ways])
        _, name, strike = ways[number]
        self.strikes[name] += strike()

    def _strike_a_target(self, strike: Callable[[str], Callable[[], None]]) -> bool:
        """`strike` answers how it comes back. False while nobody may be struck."""
        id = self._victim()
        if id:
            self._later(id, strike(id))
        return bool(id)

    def _lose_a_disk(self, id: str) -> Callable[[], None]:
        self._cluster.targets.pop(id).end()
        shutil.rmtree(self._cluster.directory / id)
        return lambda: self._replace(id)

    def _kill(self, id: str) -> Callable[[], None]:
        self._cluster.targets.pop(id).end()
        return lambda: self._cluster.start_target(id)

    def _stop(self, id: str) -> Callable[[], None]:
        pid = self._cluster.targets[id].process.pid
        os.kill(pid, signal.SIGSTOP)
        return lambda: os.kill(pid, signal.SIGCONT)

    def _kill_the_worker(self) -> bool:
        self._worker.end()
        self._worker = self._start_worker()
        return True

    def _kill_the_coordinator(self) -> bool:
        self._cluster.coordinator.end()
        self._cluster.start_coordinator()
        return bool(self._cluster.coordinator.ready)

    # ----------------------------------------------------------------------- inside

    def _victim(self) -> str:
        """Empty while nobody may be struck."""
        if self._struck and not self._away:
            self._look()
        if len(self._struck) >= PARITY:
            return ""
        return self._random.choice(sorted(self._cluster.targets.keys() - self._struck))

    def _look(self) -> None:
        """Whether those who were struck are made good."""
        newest = self._whole()
        if newest and not self._back_at:
            self._back_at = newest
        elif newest > self._back_at + SAVES_BESIDE:
            self._struck.clear()
            self._back_at = 0

    def _later(self, id: str, then: Callable[[], None]) -> None:
        self._struck.add(id)
        self._away.add(id)
        self._back_at = 0

        def bring_back() -> None:
            self._away.discard(id)
            then()

        self._due.append((time.monotonic() + self._random.uniform(*AWAY_S), bring_back))

    def _replace(self, id: str) -> None:
        """An empty disk in its place, as an operator says it, once it has knocked."""
        if id not in self._cluster.targets:
            self._cluster.start_target(id)
        try:
            with self._cluster.client() as client:
                client.call(ReplaceTarget(TargetId(id)), timeout_s=30.0)
            self.replaced[id] += 1
        except (CkptError, OSError):
            self._later(id, lambda: self._replace(id))

    def _start_worker(self) -> Daemon:
        return Daemon(
            "repair", "--coordinator", self._cluster.coordinators, "--poll-s", "0.1",
            "--secret-file", str(self._cluster.secret_file),
            log=self._cluster.directory / "repair.log",
        )  # fmt: skip
