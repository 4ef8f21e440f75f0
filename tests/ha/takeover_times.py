"""How long does a save take in whose beginning the leader ends? The figures of docs/performance.md.

    python -m tests.ha.takeover_times --count 20 kill

Three coordinators, three members of etcd and four targets on this machine, which nothing else
should use. A save that begins as the leader is killed, ended or stopped is timed to its commit.
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
from pathlib import Path

import numpy as np

import ckpt
from tests.ha.clusters import SharedCluster
from tests.ha.members import Etcd
from tests.ha.places import Prefix

SIGNALS = {"kill": signal.SIGKILL, "end": signal.SIGTERM, "stop": signal.SIGSTOP}
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


def one_takeover(cluster: SharedCluster, job: Job, how: signal.Signals) -> float:
    """Seconds of the save in which the leader ends."""
    leader = cluster.leader()
    process = cluster.running[leader].process
    process.send_signal(how)
    took_s = job.save()
    if how is signal.SIGSTOP:
        process.send_signal(signal.SIGCONT)
    else:
        cluster.kill(leader)
        assert cluster.start(leader).ready
    threading.Event().wait(QUIET_S)
    job.save()
    return took_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("how", choices=SIGNALS)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--rows", type=int, default=0, help="saves that the catalog knows already")
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
                how = SIGNALS[arguments.how]
                found = [one_takeover(cluster, job, how) for _ in range(arguments.count)]
    sys.stdout.write(
        f"usual {statistics.median(usual):.3f} s; {arguments.how}: median"
        f" {statistics.median(found):.2f} s, worst {max(found):.2f} s of {len(found)}\n"
    )


if __name__ == "__main__":
    main()
