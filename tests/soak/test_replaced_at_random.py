"""Disks that are lost at random under a job and never come back, beside kills of everybody else.

Whatever was committed loads at any time, and at the end all of it is whole on empty disks.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

import ckpt
from ckpt.base.errors import CkptError
from ckpt.base.ids import RunName
from ckpt.format.messages.asking import Ask
from ckpt.protocol.coordinator.reading.answers import StepView
from tests.e2e_remote.cluster import RemoteCluster
from tests.e2e_remote.conftest import started
from tests.landing import at_turn
from tests.soak.beside import beside
from tests.soak.job import Job
from tests.soak.judge import Judge, check_left, tell
from tests.soak.rank import RUN, Plan
from tests.soak.states import RANKS
from tests.soak.wrecker import Wrecker
from tests.waiting import ASKED_S, wait_until

KEEP = 25
FAST_S, FAST_SEED = 15.0, 3
LOOK_EVERY_S = 5.0
WHOLE_S = 240.0
FLAGS = ("--rebuild-after-s", "1", "--keep", str(KEEP), "--orphan-grace-s", "5")


# At the other landings test_operators_walk.py replaces each target under the same job.
@at_turn(0, every=2)
@pytest.mark.timeout(400)
def test_a_short_campaign_loses_nothing(tmp_path: Path) -> None:
    run_campaign(tmp_path, FAST_SEED, FAST_S)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_long_campaign_loses_nothing(tmp_path: Path, seed: int, soak_seconds: float) -> None:
    wrecker = run_campaign(tmp_path, seed, soak_seconds)
    assert len(wrecker.replaced) > 1


def run_campaign(tmp_path: Path, seed: int, seconds: float) -> Wrecker:
    """A job that saves, who strikes, and a judge for so long; then all is mended."""
    tell(f"seed {seed}, {seconds:g} s, in {tmp_path}")
    logs = tmp_path / "ranks"
    logs.mkdir()
    with started(RemoteCluster(tmp_path, FLAGS)) as cluster, ckpt.open(cluster.url) as store:
        plan = Plan(cluster.url, 0, RANKS, launch=0, seed=seed, pause_s=0.5)
        job, judge = Job(plan, logs), Judge(store, seed, KEEP)
        wrecker = Wrecker(seed, cluster, lambda: newest_of_whole(cluster))
        try:
            over = threading.Event()
            with beside(lambda: work(job, wrecker, over), over):
                until_s = time.monotonic() + seconds
                while time.monotonic() < until_s and not over.is_set():
                    judge.look()
                    over.wait(LOOK_EVERY_S)
            job.end()
            wait_until(lambda: newest_of_whole(cluster) > 0, "all is whole", WHOLE_S, ASKED_S)
        finally:
            job.kill()
        tell(f"strikes {dict(wrecker.strikes)}, replaced {dict(wrecker.replaced)}")
        judge.look_at_all()
        tell(f"ranks said {dict(judge.compare(job.said()))}, judge {dict(judge.counts)}")
        check_left(cluster.directory, "h?d?", judge)
        check_drill(cluster)
        wrecker.end()
        assert "Traceback" not in (cluster.directory / "repair.log").read_text()
        return wrecker


def work(job: Job, wrecker: Wrecker, over: threading.Event) -> None:
    """At the end all who were struck are back, or replaced."""
    while not over.wait(0.05):
        job.tend()
        wrecker.work()
    wrecker.relent()


def newest_of_whole(cluster: RemoteCluster) -> int:
    """The newest committed step, where nothing of any lacks and nobody is away; else 0."""
    try:
        with cluster.client() as client:
            _, bulk = client.call(Ask("steps", RunName(RUN)), timeout_s=30.0)
        steps = msgspec.json.decode(bytes(bulk), type=list[StepView])
        if cluster.live() != set(cluster.targets):
            return 0
    except (CkptError, OSError):
        return 0
    whole = all(step.columns_missing == step.documents_missing == 0 for step in steps)
    return max((step.step for step in steps), default=0) if whole else 0


def check_drill(cluster: RemoteCluster) -> None:
    """Any two targets may go."""
    command = [sys.executable, "-m", "ckpt_client.cli.main", "drill", "--any"]
    done = subprocess.run(
        [*command, "--store", cluster.url], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
