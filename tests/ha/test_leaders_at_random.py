"""Two processes save and load while who leads is killed, ended or stopped at random, two at once
too, and members of its etcd are killed: nobody sees an error, and each step has one record.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

import ckpt
from tests.ha.clusters import SharedCluster
from tests.ha.members import Etcd
from tests.ha.places import Prefix, names_in

RUNS = ("one", "two")
WAIT_S = 60.0
STOPPED_S = 3.0
SECONDS_DEFAULT = 300.0

Harm = Callable[[SharedCluster, random.Random], None]


def save_on(url: str, run: str, stop: Path, said: Connection) -> None:
    """Until that file is there; says how many steps there are."""
    step = 0
    with ckpt.open(url) as store:
        while not stop.exists():
            step += 1
            state = {"w": np.arange(200_000) * step, "step": step}
            store.save(run, step, state).wait(WAIT_S)
            found = store.load(run, step)
            assert isinstance(found, dict)
            assert found["step"] == step
            assert np.array_equal(found["w"], state["w"])
            assert store.latest(run) == step
    said.send(step)


def rest(seconds: float) -> None:
    """Let the savers get somewhere."""
    threading.Event().wait(seconds)


def end_leader(cluster: SharedCluster, chance: random.Random) -> None:
    leader = cluster.leader()
    cluster.kill(leader, chance.choice((signal.SIGKILL, signal.SIGTERM)))
    rest(chance.uniform(0.0, 1.0))
    assert cluster.start(leader).ready


def end_two(cluster: SharedCluster, chance: random.Random) -> None:
    leader = cluster.leader()
    cluster.kill(leader)
    successor = cluster.leader(but=leader)
    rest(chance.uniform(0.0, 0.3))
    cluster.kill(successor)
    for id in (leader, successor):
        assert cluster.start(id).ready


def stop_leader(cluster: SharedCluster, _chance: random.Random) -> None:
    process = cluster.running[cluster.leader()].process
    process.send_signal(signal.SIGSTOP)
    rest(STOPPED_S)
    process.send_signal(signal.SIGCONT)


def end_member(cluster: SharedCluster, chance: random.Random) -> None:
    """The kit asks the first one."""
    member = chance.choice(cluster.etcd.members[1:])
    member.kill()
    rest(chance.uniform(0.0, 2.0))
    member.start()
    member.wait_up()


HARMS: tuple[Harm, ...] = (end_leader, end_leader, end_two, stop_leader, end_member)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SharedCluster]:
    with (
        Etcd(tmp_path / "etcd", 3) as etcd,
        SharedCluster(tmp_path, etcd, Prefix(etcd.addresses)) as made,
    ):
        monkeypatch.setenv("CKPT_SECRET_FILE", str(made.secret_file))
        yield made


@pytest.mark.slow
def test_two_processes_save_on_whatever_becomes_of_who_leads(
    cluster: SharedCluster, tmp_path: Path
) -> None:
    """$CKPT_SOAK_S seconds, by $CKPT_SOAK_SEED."""
    seed = int(os.environ.get("CKPT_SOAK_SEED", time.time_ns() % 1_000_000))
    end_s = time.monotonic() + float(os.environ.get("CKPT_SOAK_S", SECONDS_DEFAULT))
    chance, stop = random.Random(seed), tmp_path / "stop"
    spawn = multiprocessing.get_context("spawn")
    ends = [spawn.Pipe(duplex=False) for _ in RUNS]
    savers = [
        spawn.Process(target=save_on, args=(cluster.url, run, stop, said))
        for run, (_, said) in zip(RUNS, ends, strict=True)
    ]
    for saver in savers:
        saver.start()
    try:
        while time.monotonic() < end_s and all(saver.is_alive() for saver in savers):
            rest(chance.uniform(0.3, 4.0))
            chance.choice(HARMS)(cluster, chance)
    finally:
        stop.touch()
        for saver in savers:
            saver.join()
    assert [saver.exitcode for saver in savers] == [0, 0], f"seed {seed}"
    records = [name.split("/") for name in names_in(cluster.etcd, cluster.place)]
    for run, (heard, _) in zip(RUNS, ends, strict=True):
        steps = sorted(int(name[2]) for name in records if name[:2] == ["record", run])
        assert steps == list(range(1, heard.recv() + 1)), f"seed {seed}"
    for id, daemon in cluster.running.items():
        assert daemon.process.poll() is None, f"seed {seed}: {id}"
        assert cluster.logged(id, "defect") == 0, f"seed {seed}: {id}"
