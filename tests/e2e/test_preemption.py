"""Real ranks, one of which is asked to end: all save one step, and end well."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

import ckpt
from tests.e2e.cluster import Cluster, runs
from tests.e2e.ranks import LAUNCHER_NAMES
from tests.waiting import wait_until
from tests.warm_child import start_child
from tests.warm_start import WARM

CLUSTER_OPTIONS = "targets=3&code=2+1"
WAIT_S = 60.0
LOG_BYTES_MAX = 1 << 20
TRAINER = "tests.e2e.preempted_rank"


class Rank:
    """One training process, forked warm as its stager is; `cold`: as users start them."""

    def __init__(
        self, cluster: Cluster, run: str, rank: int, size: int, *, cold: bool, **environ: str
    ) -> None:
        clean = {name: v for name, v in os.environ.items() if name not in LAUNCHER_NAMES}
        clean.update(CKPT_STORE=cluster.url, RANK=str(rank), WORLD_SIZE=str(size), **environ)
        self._log = os.memfd_create("log")
        self.process = start_child(
            [sys.executable, "-W", "error", "-m", TRAINER, run],
            clean | WARM.environment(), stderr=self._log, cold=cold,
        )  # fmt: skip

    def wait_until_it_trains(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"trains\n", self.log

    @property
    def log(self) -> str:
        """So far."""
        return os.pread(self._log, LOG_BYTES_MAX, 0).decode()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self, code: int = 0) -> tuple[list[str], str]:
        """What it has said, and its log."""
        assert self.process.stdout is not None
        assert self.process.wait(WAIT_S) == code, self.log
        return self.process.stdout.read().decode().split(), self.log

    def close(self) -> None:
        """It runs no longer."""
        self.process.kill()
        self.process.wait(WAIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        os.close(self._log)


@contextmanager
def training(
    cluster: Cluster, run: str, size: int, *, cold: bool = False, **environ: str
) -> Iterator[list[Rank]]:
    """All ranks train."""
    ranks = [Rank(cluster, run, rank, size, cold=cold, **environ) for rank in range(size)]
    try:
        for rank in ranks:
            rank.wait_until_it_trains()
        yield ranks
    finally:
        for rank in ranks:
            rank.close()


def saved_together(ranks: Sequence[Rank]) -> tuple[int, list[str]]:
    """The step, and each rank's log; all have ended well."""
    ends = [rank.ended() for rank in ranks]
    steps = {words[1] for words, _ in ends}
    (step,) = steps
    assert all(words[:3] == ["saved", step, step] for words, _ in ends), ends
    return int(step), [err for _, err in ends]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_one_rank_makes_all_save_one_step(
    cluster: Cluster, store: ckpt.Store, number: signal.Signals
) -> None:
    run = f"one-{number.name}"
    with training(cluster, run, 3) as ranks:
        ranks[1].signal(number)
        step, logs = saved_together(ranks)
    assert [commit.step for commit in store.steps(run)] == [step]
    assert store.steps(run)[0].world_size == 3
    assert f"rank 1 got {number.name}, and all ranks end with step {step}" in logs[1]
    assert "of 60 s are left" in logs[0]
    assert "no save was committed yet" in logs[0]


def test_a_signal_to_all_ranks_is_one_preemption(cluster: Cluster, store: ckpt.Store) -> None:
    with training(cluster, "all", 4) as ranks:
        for rank in ranks:
            rank.signal(signal.SIGTERM)
        step, _ = saved_together(ranks)
    assert store.latest("all") == step


def test_a_second_signal_changes_nothing(cluster: Cluster, store: ckpt.Store) -> None:
    with training(cluster, "twice", 2) as ranks:
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGTERM):
            ranks[0].signal(number)
        step, _ = saved_together(ranks)
    assert store.latest("twice") == step


def test_a_signal_in_the_middle_of_a_save_lets_that_commit_too(
    cluster: Cluster, store: ckpt.Store
) -> None:
    with training(cluster, "amid", 2, EVERY="30", SIGNAL_AMID="1") as ranks:
        step, _ = saved_together(ranks)
    steps = [commit.step for commit in store.steps("amid")]
    assert (steps[0], steps[-1]) == (29, step)
    assert step > 29


def test_once_a_save_is_committed_the_log_says_whether_another_one_fits(
    cluster: Cluster, store: ckpt.Store
) -> None:
    with training(cluster, "fits", 2, EVERY="15") as ranks:
        wait_until(lambda: bool(store.latest("fits")), "a save is committed")
        ranks[1].signal(signal.SIGTERM)
        step, logs = saved_together(ranks)
    assert store.latest("fits") == step
    assert "of 60 s are left: the last save took" in logs[1]


def test_a_coordinator_that_is_dead_at_the_signal_hears_of_it_when_it_is_back(
    cluster: Cluster, store: ckpt.Store
) -> None:
    with training(cluster, "dead", 3) as ranks:
        before = cluster.coordinator_pid
        os.kill(before, signal.SIGKILL)
        ranks[2].signal(signal.SIGTERM)
        step, _ = saved_together(ranks)
        assert cluster.coordinator_pid != before
    assert store.latest("dead") == step


def test_while_the_coordinator_is_out_of_reach_the_training_goes_on_and_the_log_says_why(
    cluster: Cluster, store: ckpt.Store
) -> None:
    with training(cluster, "away", 2) as ranks:
        with cluster.stopped(cluster.coordinator_pid):
            ranks[0].signal(signal.SIGTERM)
            why = "the coordinator is out of reach; they will when it answers"
            wait_until(lambda: why in ranks[0].log, "it says why it goes on", WAIT_S)
            assert ranks[0].process.poll() is None
        step, _ = saved_together(ranks)
    assert store.latest("away") == step


def test_a_sigusr1_to_every_process_of_the_job_leaves_its_cluster_alone(
    cluster: Cluster, store: ckpt.Store
) -> None:
    """Slurm means the training."""
    supervisor = cluster.ready()["pid"]
    assert isinstance(supervisor, int)
    targets = [target.pid for target in cluster.targets().values() if target.pid is not None]
    pids = [supervisor, cluster.coordinator_pid, *targets]
    for pid in pids:
        os.kill(pid, signal.SIGUSR1)
    assert store.save("job", 1, {"a": 1}, rank=0, world_size=1).wait(WAIT_S).step == 1
    assert [pid for pid in pids if not runs(pid)] == []


def test_ctrl_c_ends_a_rank_as_ever(cluster: Cluster) -> None:
    with training(cluster, "ctrl-c", 1, cold=True) as (rank,):
        rank.signal(signal.SIGINT)
        _, err = rank.ended(-signal.SIGINT)
        assert "KeyboardInterrupt" in err


def test_a_rank_alone_asks_nobody(cluster: Cluster, store: ckpt.Store) -> None:
    with training(cluster, "alone", 1) as ranks:
        ranks[0].signal(signal.SIGTERM)
        step, _ = saved_together(ranks)
    assert store.latest("alone") == step
