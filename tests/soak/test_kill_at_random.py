"""`kill -9` at random: targets, coordinator, stagers, ranks.

Nothing committed is lost, nothing is left behind.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import ckpt
from ckpt_client.local.processes import find_marked
from tests.e2e.cluster import TARGETS, Cluster
from tests.landing import at_turn
from tests.soak.beside import beside
from tests.soak.hangman import Hangman
from tests.soak.job import Job
from tests.soak.judge import (
    Judge,
    column_counts,
    descriptor_count,
    names_targets,
    resident_bytes,
    staged_count,
    tell,
)
from tests.soak.rank import Plan
from tests.soak.states import RANKS
from tests.waiting import wait_until

KEEP = 25
FAST_S = 12.0
FAST_SEED = 7
FAST_GRACE_S = 5
"""What nobody claims behind a restart of the coordinator is given up sooner than after a minute."""
LOOK_EVERY_S = 5.0
QUIET_TIMEOUT_S = 120.0
DESCRIPTOR_SLACK = 4
"""A session that is just ending."""
SUPERVISOR_GROWTH_BYTES_MAX = 8 << 20
DAEMON_BYTES_MAX = 256 << 20


@dataclass(frozen=True, slots=True)
class Quiet:
    """Descriptors of each daemon, by name, while nothing goes on."""

    descriptors: dict[str, int]
    supervisor_bytes: int


# At the other landings test_campaign.py of tests/machines ends the same processes, and takes with
# them what their disks had not synced.
@at_turn(0, every=2)
@pytest.mark.timeout(300)
def test_a_short_campaign_loses_nothing(
    tmp_path: Path, mark: str, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CKPT_COORDINATOR__ORPHAN_GRACE_S", str(FAST_GRACE_S))
    run_campaign(tmp_path, mark, runtime, FAST_SEED, FAST_S)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_long_campaign_loses_nothing(
    tmp_path: Path, mark: str, runtime: Path, seed: int, soak_seconds: float
) -> None:
    run_campaign(tmp_path, mark, runtime, seed, soak_seconds)


def run_campaign(tmp_path: Path, mark: str, runtime: Path, seed: int, seconds: float) -> None:
    """A cluster, a job that saves, a hangman, and a judge for so long; then quiet,
    and the reckoning.
    """
    tell(f"seed {seed}, {seconds:g} s, in {tmp_path}")
    options = f"targets=7&code=4+2&pretend_domains=1&keep={KEEP}&restart=always"
    cluster = Cluster(tmp_path / "store", options)
    logs = tmp_path / "ranks"
    logs.mkdir()
    with ckpt.open(cluster.url) as store:
        before = quiet(cluster)
        plan = Plan(cluster.url, 0, RANKS, launch=0, seed=seed, pause_s=0.2)
        job = Job(plan, logs)
        judge = Judge(store, seed, KEEP)
        hangman = Hangman(seed, cluster.directory, mark, job)
        try:
            with busy(job, hangman):
                observe(judge, time.monotonic() + seconds)
            wait_until(lambda: all_live(cluster), "all targets are back", QUIET_TIMEOUT_S)
            # Not the judge's newest, which is seconds old: ranks that were started again just now
            # must have saved before they are told to end, or one that did waits for the others.
            reached = max(judge.list_steps(), default=0)
            wait_until(lambda: goes_on(job, judge, reached), "saves go on", QUIET_TIMEOUT_S)
            job.end()
        finally:
            hangman.relent()
            job.kill()
            (tmp_path / "strikes.log").write_text("\n".join(hangman.log) + "\n")
        tell(f"strikes {dict(hangman.strikes)}, launches {job.launch}")
        judge.look_at_all()
        tell(f"ranks said {dict(judge.compare(job.said()))}")
        tell(f"judge {dict(judge.counts)}, latest {judge.latest}")
        assert all(names_targets(text) for text in judge.unavailable), judge.unavailable
        check_quiet(cluster, judge, mark, before)
    check_stopped(cluster, mark, runtime)


def goes_on(job: Job, judge: Judge, reached: int) -> bool:
    """Whether the job, which is tended meanwhile, has committed further steps."""
    job.tend()
    return judge.list_steps()[-1:] > [reached + 2]


@contextmanager
def busy(job: Job, hangman: Hangman) -> Iterator[None]:
    """The job runs and the hangman works beside the block."""
    over = threading.Event()

    def work() -> None:
        while not over.wait(0.05):
            job.tend()
            hangman.work()

    try:
        with beside(work, over):
            yield
    finally:
        hangman.relent()


def observe(judge: Judge, until_s: float) -> None:
    """Look again and again."""
    pause = threading.Event()
    while time.monotonic() < until_s:
        judge.look()
        pause.wait(min(LOOK_EVERY_S, max(0.0, until_s - time.monotonic())))


def all_live(cluster: Cluster) -> bool:
    """Every target runs and the coordinator counts on it."""
    return cluster.live() == set(TARGETS)


def quiet(cluster: Cluster) -> Quiet:
    """How much the daemons hold now."""
    wait_until(lambda: all_live(cluster), "all targets are live", QUIET_TIMEOUT_S)
    ready = cluster.ready()
    supervisor = ready["pid"]
    assert isinstance(supervisor, int)
    pids = {id: cluster.pid_of(id) for id in TARGETS}
    pids |= {"coordinator": cluster.coordinator_pid, "supervisor": supervisor}
    for name, pid in pids.items():
        assert resident_bytes(pid) < DAEMON_BYTES_MAX, f"{name} has {resident_bytes(pid)} bytes"
    return Quiet(
        {name: descriptor_count(pid) for name, pid in pids.items()}, resident_bytes(supervisor)
    )


def check_quiet(cluster: Cluster, judge: Judge, mark: str, before: Quiet) -> None:
    """Ranks are gone: their stagers go, and nothing but what is committed lies on the targets."""
    wait_until(
        lambda: not any(one.is_stager for one in find_marked(mark)), "stagers go", QUIET_TIMEOUT_S
    )
    # One whose stager was killed last waits for it, in vain.
    wait_until(lambda: not cluster.status().attempts, "attempts end", QUIET_TIMEOUT_S)
    wait_until(
        lambda: len(column_counts(cluster.directory)) == len(judge.list_kept()),
        "columns of deleted and aborted generations go",
        QUIET_TIMEOUT_S,
    )
    wait_until(
        lambda: staged_count(cluster.directory) <= RANKS * len(TARGETS),
        "nothing lies aside but space for one more save",
        QUIET_TIMEOUT_S,
    )
    after = quiet(cluster)
    tell(f"before {before}\nafter {after}")
    for name, count in after.descriptors.items():
        assert count <= before.descriptors[name] + DESCRIPTOR_SLACK, (name, before, after)
    assert after.supervisor_bytes - before.supervisor_bytes < SUPERVISOR_GROWTH_BYTES_MAX


def check_stopped(cluster: Cluster, mark: str, runtime: Path) -> None:
    """`ckpt local stop` leaves the store and nothing else."""
    cluster.stop()
    left = find_marked(mark)
    assert not left, f"still running: {left}"
    assert not list(runtime.glob("*")), "sockets of stagers are left"
    assert not (cluster.directory / "ready.json").exists()
