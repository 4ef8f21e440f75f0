"""A thousand small saves: files, descriptors, catalog and memory are flat once warm."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import ckpt
from tests.e2e.cluster import TARGETS, Cluster
from tests.soak.judge import descriptor_count, resident_bytes
from tests.waiting import wait_until

SAVES = int(os.environ.get("CKPT_SOAK_SAVES", "1000"))
WARM_SAVES = SAVES // 4
KEEP = 5
RANKS = 2
RUN = "small"
WAIT_S = 60.0
FILES_SLACK = 2 * 7 * RANKS
"""A save that is just ending."""
DESCRIPTORS_SLACK = 4
GROWTH_BYTES_MAX = 6 << 20
"""Of a process over the last three quarters."""
CATALOG_BYTES_PER_SAVE_MAX = 1024
WAL_BYTES_MAX = 5 << 20
"""SQLite folds its journal in once it has a thousand pages."""
TOMBSTONES_MAX = 30
"""m + 1 of each deletion that is just ending."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@dataclass(frozen=True, slots=True)
class Footprint:
    """What the store and its processes hold."""

    files: int
    """Of all targets, without tombstones."""
    tombstones: int
    descriptors: dict[str, int]
    resident: dict[str, int]
    catalog_bytes: int


def footprint(cluster: Cluster, store: ckpt.Store) -> Footprint:
    ready = cluster.ready()
    assert isinstance(ready["pid"], int)
    pids = {id: cluster.pid_of(id) for id in TARGETS}
    pids |= {"coordinator": cluster.coordinator_pid, "supervisor": ready["pid"]}
    pids |= {"trainer": os.getpid()}
    pids |= {f"stager {place.rank}": link.pid for place, link in store._stagers.items()}
    files = [path for path in cluster.directory.glob("targets/*/*/*") if path.is_file()]
    tombstones = sum(path.name.startswith("tombstone") for path in files)
    return Footprint(
        files=len(files) - tombstones,
        tombstones=tombstones,
        descriptors={name: descriptor_count(pid) for name, pid in pids.items()},
        resident={name: resident_bytes(pid) for name, pid in pids.items()},
        catalog_bytes=sum(p.stat().st_size for p in cluster.directory.glob("catalog.sqlite*")),
    )


def save_steps(store: ckpt.Store, first: int, count: int) -> None:
    """Two ranks, each step committed before the next but one."""
    for step in range(first, first + count):
        saves = []
        for rank in range(RANKS):
            content = np.random.default_rng((rank, step)).bytes(20_000 + step)
            state = {"a": np.frombuffer(content, np.uint8), "step": step}
            saves.append(store.save(RUN, step, state, rank=rank, world_size=RANKS))
        for save in saves:
            save.wait(WAIT_S)


def test_a_thousand_small_saves_leave_everything_flat(tmp_path: Path, mark: str) -> None:
    cluster = Cluster(tmp_path / "store", f"targets=7&code=4+2&keep={KEEP}")
    with ckpt.open(cluster.url, launch="many") as store:
        save_steps(store, 1, WARM_SAVES)
        early = footprint(cluster, store)
        save_steps(store, WARM_SAVES + 1, SAVES - WARM_SAVES)
        wait_until(
            lambda: footprint(cluster, store).files <= early.files + FILES_SLACK, "files are flat"
        )
        late = footprint(cluster, store)
        sys.stdout.write(f"early {early}\nlate {late}\n")
        assert [commit.step for commit in store.steps(RUN)] == list(
            range(SAVES - KEEP + 1, SAVES + 1)
        )
        for name, count in late.descriptors.items():
            assert count <= early.descriptors[name] + DESCRIPTORS_SLACK, name
        for name, size in late.resident.items():
            assert size - early.resident[name] < GROWTH_BYTES_MAX, name
        growth = late.catalog_bytes - early.catalog_bytes
        assert growth <= WAL_BYTES_MAX + CATALOG_BYTES_PER_SAVE_MAX * (SAVES - WARM_SAVES)
        assert late.tombstones <= TOMBSTONES_MAX
        state = store.load(RUN, rank=0, world_size=RANKS)
        assert isinstance(state, dict)
        assert state["step"] == SAVES
    cluster.stop()
