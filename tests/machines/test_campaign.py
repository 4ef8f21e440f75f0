"""A job saves while machines lose power, clocks jump, descriptors run out and catalogs are
replaced: nothing that was acknowledged is lost, mixed, or silently older.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import ckpt
from ckpt.base.errors import CkptError, Lost
from tests.e2e_remote.conftest import started
from tests.landing import at_turn
from tests.machines.cluster import MachineCluster
from tests.machines.strikes import Strikes
from tests.soak.beside import beside
from tests.soak.conftest import no_dump, seed, soak_seconds
from tests.soak.job import Job
from tests.soak.judge import Judge, tell
from tests.soak.rank import Plan
from tests.soak.states import RANKS
from tests.waiting import wait_until

__all__ = ["no_dump", "seed", "soak_seconds"]

KEEP = 25
LOOK_EVERY_S = 5.0
SHORT_S = 15.0
SHORT_SEED = 5
GOES_ON_TIMEOUT_S = 180.0


@pytest.fixture
def kept(library: Path, tmp_path: Path) -> Iterator[MachineCluster]:
    with started(MachineCluster(tmp_path, library, flags=("--keep", str(KEEP)))) as made:
        yield made


# At the other landings test_kill_at_random.py of tests/soak ends processes; what each strike alone
# does is asked at each, by the other files here.
@at_turn(1, every=2)
@pytest.mark.timeout(300)
def test_a_short_campaign_on_failing_machines_loses_nothing(
    kept: MachineCluster, tmp_path: Path
) -> None:
    run_campaign(kept, tmp_path, SHORT_SEED, SHORT_S)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_long_campaign_on_failing_machines_loses_nothing(
    kept: MachineCluster, tmp_path: Path, seed: int, soak_seconds: float
) -> None:
    run_campaign(kept, tmp_path, seed, soak_seconds)


def run_campaign(cluster: MachineCluster, tmp_path: Path, seed: int, seconds: float) -> None:
    tell(f"seed {seed}, {seconds:g} s, in {tmp_path}")
    (tmp_path / "ranks").mkdir()
    over = threading.Event()
    job = Job(Plan(cluster.url, 0, RANKS, launch=0, seed=seed, pause_s=0.2), tmp_path / "ranks")
    strikes = Strikes(cluster, job, seed, over.wait)
    with ckpt.open(cluster.url) as store:
        judge = Judge(store, seed, KEEP)
        try:
            with beside(lambda: tend(job, over), over), beside(strikes.work, over):
                observe(judge, time.monotonic() + seconds, over)
            reached = judge.list_steps()[-1:]
            wait_until(lambda: goes_on(job, judge, reached), "saves go on", GOES_ON_TIMEOUT_S)
            job.end()
        finally:
            job.kill()
            (tmp_path / "strikes.log").write_text("\n".join(strikes.log) + "\n")
        tell(f"strikes {dict(strikes.counts)}, disks lost {dict(strikes.lost)}")
        tell(f"launches {job.launch}, judge {dict(judge.counts)}, latest {judge.latest}")
        judge.look_at_all()
        tell(f"ranks said {dict(judge.compare(job.said()))}")
    assert strikes.counts
    assert judge.counts["loaded"]


def tend(job: Job, over: threading.Event) -> None:
    while not over.wait(0.05):
        job.tend()


def goes_on(job: Job, judge: Judge, reached: list[int]) -> bool:
    job.tend()
    return judge.list_steps()[-1:] > [step + 2 for step in reached]


def observe(judge: Judge, until_s: float, over: threading.Event) -> None:
    """What is out of reach now may be so: it is asked for again. What is lost may not."""
    while time.monotonic() < until_s and not over.is_set():
        try:
            judge.look()
        except Lost:
            raise
        except CkptError as error:
            judge.counts[f"{error.code} told"] += 1
        over.wait(min(LOOK_EVERY_S, max(0.0, until_s - time.monotonic())))
