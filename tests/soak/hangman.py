"""Who dies next? A seeded choice among targets, coordinator, stagers and ranks,
each by its own process id.

Targets also stand still for a while (SIGSTOP). Nobody is harmed for good: the supervisor and the
job start again what is gone, targets come back with their data.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from ckpt_client.local.processes import find_marked
from tests.soak.job import Job

TOGETHER_MAX: Final = 3
"""Targets that are struck at once, one more than parity can make good."""
STILL_S: Final = (0.2, 6.0)
REST_S: Final = (0.3, 4.0)


class Hangman:
    """I strike when it is time. My owner calls `work` often, and `relent` at the end."""

    def __init__(self, seed: int, directory: Path, mark: str, job: Job) -> None:
        self._random = random.Random(seed)
        self._directory = directory
        self._mark = mark
        self._job = job
        #: (when to let it go on, process id) of stopped targets.
        self._still: list[tuple[float, int]] = []
        self._next_s = time.monotonic() + 2.0
        self.strikes: Counter[str] = Counter()
        self.log: list[str] = []

    def work(self) -> None:
        """Let go on who stood still long enough; strike if it is time."""
        now_s = time.monotonic()
        for due_s, pid in list(self._still):
            if now_s >= due_s:
                self._still.remove((due_s, pid))
                self._signal(pid, signal.SIGCONT)
        if now_s >= self._next_s:
            self._strike()
            self._next_s = time.monotonic() + self._random.uniform(*REST_S)

    def relent(self) -> None:
        """Whoever stands still goes on."""
        for _, pid in self._still:
            self._signal(pid, signal.SIGCONT)
        self._still.clear()

    # ----------------------------------------------------------------------- inside

    def _strike(self) -> None:
        ways: list[tuple[int, Callable[[], list[int]], signal.Signals]] = [
            (6, lambda: self._some(self._targets(), 1), signal.SIGKILL),
            (2, lambda: self._some(self._targets(), TOGETHER_MAX), signal.SIGKILL),
            (5, lambda: self._some(self._targets(), 2), signal.SIGSTOP),
            (2, self._coordinator, signal.SIGKILL),
            (3, lambda: self._some(self._stagers(), 1), signal.SIGKILL),
            (2, lambda: self._some(self._job.pids, 1), signal.SIGKILL),
            (1, lambda: [*self._job.pids, *self._stagers()], signal.SIGKILL),
        ]
        names = ("target", "targets", "still", "coordinator", "stager", "rank", "job")
        (number,) = self._random.choices(range(len(ways)), [weight for weight, _, _ in ways])
        _, choose, what = ways[number]
        victims = choose()
        self.strikes[names[number]] += bool(victims)
        self.log.append(f"{time.time():.2f} {names[number]} {what.name} {victims}")
        for pid in victims:
            self._signal(pid, what)
            if what is signal.SIGSTOP:
                due_s = time.monotonic() + self._random.uniform(*STILL_S)
                self._still.append((due_s, pid))

    def _signal(self, pid: int, what: signal.Signals) -> None:
        if pid not in {one.pid for one in find_marked(self._mark)}:
            return  # It ended by itself; its number may be anybody's.
        with suppress(ProcessLookupError):
            os.kill(pid, what)

    def _some(self, pids: list[int], count_max: int) -> list[int]:
        count = min(len(pids), self._random.randint(1, count_max))
        return self._random.sample(pids, count)

    def _ready(self) -> dict[str, object]:
        document: dict[str, object] = json.loads((self._directory / "ready.json").read_text())
        return document

    def _targets(self) -> list[int]:
        targets = self._ready()["targets"]
        assert isinstance(targets, list)
        return [target["pid"] for target in targets if target["pid"] is not None]

    def _coordinator(self) -> list[int]:
        pid = self._ready()["coordinator_pid"]
        return [pid] if isinstance(pid, int) else []

    def _stagers(self) -> list[int]:
        return stager_pids(self._mark)


def stager_pids(mark: str) -> list[int]:
    """Not the relays that start them, which have a program text as an argument."""
    return [one.pid for one in find_marked(mark) if one.is_stager and "-c" not in one.command]
