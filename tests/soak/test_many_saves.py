"""A thousand saves: memory, descriptors, threads, files and catalog are flat once warm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import ckpt
from tests.e2e.cluster import TARGETS, Cluster
from tests.soak.footprint import Footprint, leaks, measure, table
from tests.soak.saver import state_of
from tests.waiting import wait_until

SAVES = int(os.environ.get("CKPT_SOAK_SAVES", "1000"))
"""Looked at after each fifth of them; growth is counted from the first look."""
KEEP = 2
RANKS = 2
RUN = "many"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


class Saver:
    """One rank, as a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def begin(self, step: int) -> None:
        """Save all steps up to this one."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{step}\n")
        self._process.stdin.flush()

    def pids(self) -> dict[str, int]:
        """Once they are committed: of the rank and of its stager, by name."""
        assert self._process.stdout is not None
        found: dict[str, int] = json.loads(self._process.stdout.readline())
        return found


@contextmanager
def saver(url: str, rank: int) -> Iterator[Saver]:
    """Ended with its standard input, and without an error."""
    line = [sys.executable, "-W", "error", "-m", "tests.soak.saver", url, RUN, str(rank)]
    # What is freed goes back to the system: else the largest states so far are counted.
    environ = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(128 << 10)}
    with subprocess.Popen(
        [*line, str(RANKS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ
    ) as process:
        yield Saver(process)
    assert process.returncode == 0


def look(cluster: Cluster, savers: list[Saver]) -> Footprint:
    """At everything, when the last save has ended and what is deleted is gone."""
    processes = {name: pid for one in savers for name, pid in one.pids().items()}
    processes |= {id: cluster.pid_of(id) for id in TARGETS}
    supervisor = cluster.ready()["pid"]
    assert isinstance(supervisor, int)
    processes |= {"coordinator": cluster.coordinator_pid, "supervisor": supervisor}
    columns = KEEP * RANKS * 6
    wait_until(
        lambda: len(list(cluster.directory.glob("targets/*/columns/*"))) <= columns,
        "columns of deleted steps are gone",
    )
    return measure(cluster.directory, processes)


def test_a_thousand_saves_leave_everything_flat(tmp_path: Path, mark: str) -> None:
    cluster = Cluster(tmp_path / "store", f"targets=7&code=4+2&keep={KEEP}")
    looks: dict[str, Footprint] = {}
    with ExitStack() as stack:
        savers = [stack.enter_context(saver(cluster.url, rank)) for rank in range(RANKS)]
        for step in (SAVES * fifth // 5 for fifth in range(1, 6)):
            for one in savers:
                one.begin(step)
            looks[str(step)] = look(cluster, savers)
            sys.stdout.write("\n".join(table(looks)) + "\n\n")
    with ckpt.open(cluster.url, launch="reader") as store:
        assert [commit.step for commit in store.steps(RUN)] == list(
            range(SAVES - KEEP + 1, SAVES + 1)
        )
        for rank in range(RANKS):
            state, saved = store.load(RUN, rank=rank, world_size=RANKS), state_of(rank, SAVES)
            assert isinstance(state, dict)
            assert state["step"] == saved["step"]
            assert state["a"].tobytes() == saved["a"].tobytes()  # type: ignore[attr-defined]
    cluster.stop()
    first, *_, last = looks.values()
    grown = leaks(first, last)
    assert not grown, "\n".join(grown)
