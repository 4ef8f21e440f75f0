"""What may befall the machines of a cluster, by a seeded choice; and what its operator then does.

One strike after the other: some machines fail, stay so for a while, and are mended as an operator
would: with power, with the command that an error names, or not at all.
"""

from __future__ import annotations

import os
import random
import resource
import shlex
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from ckpt_client.local.processes import MARK_NAME
from tests.client.clikit import run_installed
from tests.machines.cluster import COORDINATOR, EVERYTHING, TARGETS, MachineCluster
from tests.soak.hangman import stager_pids
from tests.soak.job import Job
from tests.waiting import wait_until

AWAY_S: Final = (0.0, 6.0)
"""How long a strike lasts."""
CLOCKS_S: Final = (-86_400, -3_600, 3_600, 86_400)
DESCRIPTORS_LEFT: Final = 2
LIVE_TIMEOUT_S: Final = 90.0
CATALOG_OLD: Final = "CATALOG_OLD"


class Strikes:
    """I strike and mend in my caller's thread, until `ended` says so or it is told to stop."""

    def __init__(
        self, cluster: MachineCluster, job: Job, seed: int, ended: Callable[[float], bool]
    ) -> None:
        """`ended`: waits for so many seconds, and says whether the campaign is over."""
        self._cluster = cluster
        self._job = job
        self._random = random.Random(seed)
        self._ended = ended
        #: A catalog as it was at an earlier start.
        self._older: Path | None = None
        self.counts: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        """Changes that disks lost, by kind."""
        self.log: list[str] = []

    def work(self) -> None:
        """All machines are well on return."""
        kinds = (
            (4, self._power_of_targets), (2, self._power_of_a_host), (3, self._power_of_coordinator),
            (2, self._power_of_all), (3, self._clocks), (3, self._descriptors),
            (2, self._stands_still), (3, self._catalog), (2, self._ranks), (2, self._stagers),
        )  # fmt: skip
        while not self._ended(self._random.uniform(0.5, 4.0)):
            (strike,) = self._random.choices([kind for _, kind in kinds], [n for n, _ in kinds])
            self.counts[strike.__name__.strip("_")] += 1
            self.log.append(f"{time.time():.2f} {strike.__name__}")
            strike()

    # ----------------------------------------------------------------------- power

    def _power_of_targets(self) -> None:
        self._cut_power(self._random.sample(TARGETS, self._random.randint(1, 3)))

    def _power_of_a_host(self) -> None:
        host = self._random.randrange(4)
        self._cut_power([id for id in TARGETS if id.startswith(f"h{host}")])

    def _power_of_coordinator(self) -> None:
        self._cut_power([COORDINATOR])

    def _power_of_all(self) -> None:
        self._cut_power(EVERYTHING)

    def _cut_power(self, names: Iterable[str]) -> None:
        """Everything unsynced is gone, or a part."""
        choice = self._random.choice((None, random.Random(self._random.random())))
        names = list(names)
        self.lost += self._cluster.lose_power(names, choice)
        self._last()
        self._cluster.start_again(names)

    # ----------------------------------------------------------------------- the machine stays up

    def _clocks(self) -> None:
        """They stay wrong, until they are struck again."""
        for name in self._random.sample(EVERYTHING, self._random.randint(1, len(EVERYTHING))):
            self._cluster.clock(name).jump(self._random.choice((0, *CLOCKS_S)))

    def _descriptors(self) -> None:
        """No more than it has, but for a few."""
        pid = self._pid(self._random.choice(EVERYTHING))
        had = len(os.listdir(f"/proc/{pid}/fd"))
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (had + DESCRIPTORS_LEFT, hard))
        self._last()
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))

    def _stands_still(self) -> None:
        pids = [self._pid(name) for name in self._random.sample(EVERYTHING, 2)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        self._last()
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        self._wait_live()

    # ----------------------------------------------------------------------- the job

    def _ranks(self) -> None:
        """One of them, and the job is started again; what it has staged stays with its stager."""
        self._kill(self._random.sample(self._job.pids, 1))

    def _stagers(self) -> None:
        """One of them, or all with all ranks."""
        stagers = stager_pids(os.environ[MARK_NAME])
        if stagers and self._random.random() < 0.5:
            self._kill([self._random.choice(stagers)])
        else:
            self._kill([*self._job.pids, *stagers])

    def _kill(self, pids: Iterable[int]) -> None:
        for pid in pids:
            # It may have ended by itself.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    # ----------------------------------------------------------------------- the catalog

    def _catalog(self) -> None:
        """It is gone, or an older one is put back. The operator does what the error says."""
        directory = self._cluster.coordinator_directory
        self.lost += self._cluster.lose_power([COORDINATOR])
        now = self._files(directory)
        aside = directory.with_name("coordinator.older")
        older = self._older
        if older is None:
            shutil.copytree(directory, aside)
            self._older = aside
        if older is None or self._random.random() < 0.5:
            for file in now:
                file.unlink()
        else:
            for file in now:
                file.unlink()
            for file in self._files(older):
                shutil.copy(file, directory)
            shutil.rmtree(older)
            self._older = None
        self._last()
        self._cluster.start_coordinator()
        self._obey()

    def _files(self, directory: Path) -> list[Path]:
        return sorted(directory.glob("catalog.sqlite*"))

    def _obey(self) -> None:
        """Run what status names, with the coordinator ended, until all are live."""
        wait_until(lambda: self._advice() != "" or self._is_live(), "it is known what is so")
        while words := self._advice():
            self.log.append(f"{time.time():.2f} {words}")
            self._cluster.coordinator.end()
            _, *rest = shlex.split(words)
            ended = run_installed(*rest, environ=dict(os.environ))
            assert ended.code == 0, ended.err
            self.counts["catalogs made again"] += 1
            self._cluster.start_coordinator()
            self._wait_live()

    def _advice(self) -> str:
        """The command that mends the catalog, when status says that it needs it."""
        checks = self._cluster.status().checks
        return next((each.command for each in checks if each.name == CATALOG_OLD), "")

    # ----------------------------------------------------------------------- inside

    def _last(self) -> None:
        """The strike goes on for a while."""
        self._ended(self._random.uniform(*AWAY_S))

    def _is_live(self) -> bool:
        return self._cluster.live() == set(TARGETS)

    def _wait_live(self) -> None:
        wait_until(self._is_live, "all are live", LIVE_TIMEOUT_S, poll_s=0.2)

    def _pid(self, name: str) -> int:
        return self._cluster.daemon(name).process.pid
