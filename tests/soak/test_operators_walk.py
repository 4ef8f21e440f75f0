"""An operator's walk: `rm -rf` of one target's directory after the other under a job that saves,
and each time only what `ckpt status` says; in the end no target is one of the first, and all is
there.
"""

from __future__ import annotations

import shlex
import threading
from pathlib import Path

import msgspec
import pytest

import ckpt
from ckpt.base.ids import RunName
from ckpt.protocol.coordinator.reading.answers import StepView
from ckpt_client.control import Control
from ckpt_client.locate import Locator
from tests.e2e.cluster import TARGETS, Cluster, command
from tests.harm import remove_under
from tests.landing import at_turn
from tests.soak.beside import beside
from tests.soak.job import Job
from tests.soak.judge import Judge, check_left, staged_count, tell
from tests.soak.rank import RUN, Plan
from tests.soak.states import RANKS
from tests.soak.test_kill_at_random import check_stopped
from tests.waiting import ASKED_S, wait_until

KEEP = 10
SEED = 11
WAIT_S = 240.0
"""On a busy machine."""
REPLACED = "DIRECTORY_UNKNOWN"


# At the other landings test_replaced_at_random.py replaces targets under the same job.
@at_turn(1, every=2)
@pytest.mark.timeout(600)
def test_each_target_is_lost_and_replaced_once_under_a_job(
    tmp_path: Path, mark: str, runtime: Path
) -> None:
    walk(tmp_path, mark, runtime, SEED, rounds=1, pause_s=2.0)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_each_target_is_lost_and_replaced_again_and_again(
    tmp_path: Path, mark: str, runtime: Path, seed: int, soak_seconds: float
) -> None:
    walk(tmp_path, mark, runtime, seed, rounds=max(2, int(soak_seconds / 60)), pause_s=0.5)


def walk(
    tmp_path: Path, mark: str, runtime: Path, seed: int, *, rounds: int, pause_s: float
) -> None:
    tell(f"seed {seed}, {rounds} rounds, in {tmp_path}")
    cluster, logs = made(tmp_path), tmp_path / "ranks"
    logs.mkdir()
    with ckpt.open(cluster.url) as store:
        job = Job(Plan(cluster.url, 0, RANKS, launch=0, seed=seed, pause_s=pause_s), logs)
        judge, over = Judge(store, seed, KEEP), threading.Event()
        try:
            with beside(lambda: tend(job, over), over):
                wait_until(lambda: bool(judge.list_steps()), "it saves", WAIT_S, ASKED_S)
                for id in TARGETS * rounds:
                    lose_and_replace(cluster, id)
                    judge.look()
            job.end()
        finally:
            job.kill()
        judge.look_at_all()
        tell(f"ranks said {dict(judge.compare(job.said()))}, judge {dict(judge.counts)}")
        assert job.launch == 1, "no rank has failed"
        assert not judge.unavailable, judge.unavailable
        is_well = lambda: cluster.status().health == "HEALTH_OK"  # noqa: E731
        wait_until(is_well, "nothing is wrong", WAIT_S, ASKED_S)
        command("drill", "--any", "--store", cluster.url)
        command("scrub", "--store", cluster.url)
        check_left(cluster.directory, "targets/t?", judge)
        wait_until(
            lambda: staged_count(cluster.directory) <= RANKS * len(TARGETS),
            "nothing lies aside but space for one more save", WAIT_S,
        )  # fmt: skip
    check_stopped(cluster, mark, runtime)


def made(directory: Path) -> Cluster:
    """Who is away is not waited for."""
    cluster = Cluster(
        directory / "store", f"targets=7&code=4+2&pretend_domains=1&keep={KEEP}&restart=always"
    )
    cluster.directory.mkdir()
    options = "rebuild_after_s = 1\norphan_grace_s = 5\n"
    (cluster.directory / "coordinator.toml").write_text(options)
    return cluster


def tend(job: Job, over: threading.Event) -> None:
    while not over.wait(0.05):
        job.tend()


def lose_and_replace(cluster: Cluster, id: str) -> None:
    """And wait until all that is committed may lose as much again."""
    directory = cluster.directory / "targets" / id
    before = (directory / "target.toml").read_text()
    remove_under(directory)
    wait_until(lambda: bool(advice(cluster)), f"{id} knocks", WAIT_S, ASKED_S)
    words = shlex.split(advice(cluster))
    assert words == ["ckpt", "target", "replace", id]
    command(*words[1:], "--store", cluster.url)
    wait_until(lambda: is_whole(cluster), f"all is whole after {id}", WAIT_S, ASKED_S)
    assert (directory / "target.toml").read_text() != before


def advice(cluster: Cluster) -> str:
    """What `ckpt status` says of a directory that nobody knows; empty while there is none."""
    return next((one.command for one in cluster.status().checks if one.name == REPLACED), "")


def is_whole(cluster: Cluster) -> bool:
    """All targets are here, and no step lacks a column or a copy."""
    if cluster.live() != set(TARGETS):
        return False
    control = Control(Locator(str(cluster.directory), ""), cluster.directory / "secret", None)
    try:
        steps = msgspec.json.decode(control.ask("steps", RunName(RUN)), type=list[StepView])
    finally:
        control.close()
    return all(step.columns_missing == step.documents_missing == 0 for step in steps)
