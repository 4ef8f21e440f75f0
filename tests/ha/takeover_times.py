"""How long does a save take in whose beginning the leader ends, or etcd's own one? The figures of
docs/performance.md.

    python -m tests.ha.takeover_times --count 20 --judge kill

Three coordinators, three members of etcd and four targets on this machine, which nothing else
should use. A save that begins as the leader is killed, ended or stopped, or as etcd's leader member
is killed, is timed to its commit. With --judge it exits with 1 where a goal is missed.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import ckpt
from tests.ha.clusters import SharedCluster
from tests.ha.members import Etcd
from tests.ha.places import Prefix
from tests.ha.test_outages import leader_of

SIGNALS = {"kill": signal.SIGKILL, "end": signal.SIGTERM, "stop": signal.SIGSTOP}
MEMBER = "member"
GOALS_S = {"kill": (1.5, 3.0), "end": (1.0, 1.0), "stop": (5.0, 5.0), MEMBER: (4.0, 4.0)}
"""The longest median, and the longest of all."""
QUIET_S = 1.0
"""Before the next one: targets and standbys have come to the new leader."""


class Job:
    """One process that saves a few kilobytes, step after step."""

    def __init__(self, store: ckpt.Store) -> None:
        self._store = store
        self._step = 0

    def save(self) -> float:
        """Seconds to its commit."""
        self._step += 1
        began_s = time.monotonic()
        self._store.save("takeover", self._step, {"w": np.arange(1000) * self._step}).wait(60)
        return time.monotonic() - began_s


def one_round(cluster: SharedCluster, job: Job, how: str) -> float:
    """Seconds of the save in which it ends, which runs again afterwards."""
    took_s = lose_member(cluster, job) if how == MEMBER else lose_leader(cluster, job, SIGNALS[how])
    threading.Event().wait(QUIET_S)
    job.save()
    return took_s


def lose_member(cluster: SharedCluster, job: Job) -> float:
    member = cluster.etcd.members[leader_of(cluster.etcd)]
    member.kill()
    took_s = job.save()
    member.start()
    member.wait_up()
    return took_s


def lose_leader(cluster: SharedCluster, job: Job, how: signal.Signals) -> float:
    leader = cluster.leader()
    process = cluster.running[leader].process
    process.send_signal(how)
    took_s = job.save()
    if how is signal.SIGSTOP:
        process.send_signal(signal.SIGCONT)
    else:
        cluster.kill(leader)
        assert cluster.start(leader).ready
    return took_s


def missed(how: str, found: Sequence[float]) -> str:
    """Which goal these seconds miss; empty where they meet both."""
    for name, seconds, goal_s in zip(
        ("median", "worst"), (statistics.median(found), max(found)), GOALS_S[how], strict=True
    ):
        if seconds > goal_s:
            return f"{how}: the {name} of {seconds:.2f} s misses its goal of {goal_s:g} s"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("how", choices=[*SIGNALS, MEMBER])
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--rows", type=int, default=0, help="saves that the catalog knows already")
    parser.add_argument("--judge", action="store_true", help="fail where a goal is missed")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        with (
            Etcd(directory / "etcd", 3) as etcd,
            SharedCluster(directory / "cluster", etcd, Prefix(etcd.addresses)) as cluster,
        ):
            os.environ["CKPT_SECRET_FILE"] = str(cluster.secret_file)
            with ckpt.open(cluster.url) as store:
                job = Job(store)
                for _ in range(arguments.rows):
                    job.save()
                usual = [job.save() for _ in range(12)][2:]
                term = cluster.term()
                found = [one_round(cluster, job, arguments.how) for _ in range(arguments.count)]
                terms = cluster.term() - term
    sys.stdout.write(
        f"usual {statistics.median(usual):.3f} s; {arguments.how}: median"
        f" {statistics.median(found):.2f} s, worst {max(found):.2f} s of {len(found)};"
        f" terms begun: {terms}\n"
    )
    text = missed(arguments.how, found) if arguments.judge else ""
    sys.stderr.write(f"{text}\n" if text else "")
    return 1 if text else 0


if __name__ == "__main__":
    sys.exit(main())
