"""What does a commit on etcd take, beside one on a catalog in a file? See docs/performance.md.

    python -m tests.ha.commit_times --count 20 --judge

On this machine, which nothing else should use, by turns: a save on a cluster whose catalog is in
SQLite, one on a cluster whose catalog is in an etcd of three members, and one transaction past a
fence in that etcd, each after a rest.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import ckpt
from ckpt.testing.catalog_contract import writing
from ckpt.testing.catalog_entries import attempt
from tests.e2e_remote.cluster import RemoteCluster
from tests.e2e_remote.conftest import started
from tests.ha.clusters import SharedCluster
from tests.ha.coordinators import CODE
from tests.ha.members import Etcd
from tests.ha.places import Prefix
from tests.ha.takeover_times import Job

TRANSACTIONS_MORE = 3
"""The longest commit on etcd, beside that in a file."""
FIRST = 3
"""Rounds that do not count."""
QUIET_S = 0.2
"""Before each measurement: what a save leaves to be done after its commit is done by then."""


def rest() -> None:
    threading.Event().wait(QUIET_S)


async def measured(count: int, file: Job, shared: Job, place: Prefix) -> list[list[float]]:
    """Seconds of each save on a file, of each on etcd, of each transaction."""
    found: list[list[float]] = [[], [], []]
    async with writing(place) as writer:
        for step in range(FIRST + count):
            for seconds, job in zip(found, (file, shared), strict=False):
                await asyncio.to_thread(rest)
                seconds.append(await asyncio.to_thread(job.save))
            await asyncio.to_thread(rest)
            began_s = time.monotonic()
            await writer.write(attempt(step))
            found[2].append(time.monotonic() - began_s)
    return [seconds[FIRST:] for seconds in found]


def missed(in_file: float, in_etcd: float, transaction: float) -> str:
    """Whether a commit takes longer on etcd than its goal is; empty where it does not."""
    more = (in_etcd - in_file) / transaction
    goal = f"its goal of {TRANSACTIONS_MORE} transactions"
    return f"a commit on etcd misses {goal} more: {more:.1f}" if more > TRANSACTIONS_MORE else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--judge", action="store_true", help="fail where the goal is missed")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        alone = Path(folder) / "alone"
        alone.mkdir()
        made = RemoteCluster(alone, hosts=2, code=CODE)
        with started(made), Etcd(Path(folder) / "etcd", 3) as etcd:
            shared = SharedCluster(Path(folder) / "shared", etcd, Prefix(etcd.addresses), "a")
            # This process knows one secret.
            shared.secret = made.secret
            shared.secret_file.write_text(made.secret.hex())
            with shared, ckpt.open(made.url) as one, ckpt.open(shared.url) as other:
                place = Prefix(etcd.addresses)
                times = measured(arguments.count, Job(one), Job(other), place)
                in_file, in_etcd, transaction = map(statistics.median, asyncio.run(times))
    sys.stdout.write(
        f"SQLite {in_file * 1e3:.1f} ms, etcd {in_etcd * 1e3:.1f} ms,"
        f" transaction {transaction * 1e3:.1f} ms:"
        f" {(in_etcd - in_file) / transaction:.1f} transactions more\n"
    )
    text = missed(in_file, in_etcd, transaction) if arguments.judge else ""
    sys.stderr.write(f"{text}\n" if text else "")
    return 1 if text else 0


if __name__ == "__main__":
    sys.exit(main())
