"""A save of many tensors commits although leaders have a lease of two seconds.

Its tables take a coordinator longer than that to merge (decision 46).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import ckpt
from tests.ha.clusters import SharedCluster
from tests.ha.members import Etcd
from tests.ha.places import Prefix

RANKS = 6
TENSORS = 60_000
"""Of each rank: all in all 3 s of work where it is done at one go."""
WAIT_S = 180.0

RANK = """
import sys
import numpy as np
import ckpt

url, rank, ranks, tensors, wait_s = sys.argv[1], *map(int, sys.argv[2:])
state = {f"group{first:06}": {} for first in range(0, tensors, 100)}
for number in range(tensors):
    value = np.full(4, number + rank, np.float32)
    state[f"group{number // 100 * 100:06}"][f"t{number % 100:02}"] = value
with ckpt.open(url, launch="large") as store:
    store.save("large", 1, state, rank=rank, world_size=ranks).wait(wait_s)
"""


def test_a_save_whose_tables_take_longer_to_merge_than_a_lease_is_committed(
    tmp_path: Path, etcd: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = ",".join(f"127.0.0.1:{member.port}" for member in etcd.members)
    with SharedCluster(tmp_path / "cluster", etcd, Prefix(members), ids="ab") as cluster:
        monkeypatch.setenv("CKPT_SECRET_FILE", str(cluster.secret_file))
        line = [sys.executable, "-c", RANK, cluster.url]
        numbers = [str(each) for each in (RANKS, TENSORS, int(WAIT_S))]
        ranks = [subprocess.Popen([*line, str(rank), *numbers]) for rank in range(RANKS)]
        assert [rank.wait(WAIT_S + 60) for rank in ranks] == [0] * RANKS
        with ckpt.open(cluster.url) as store:
            assert [commit.step for commit in store.steps("large")] == [1]
            loaded = store.load("large", 1, rank=RANKS - 1, world_size=RANKS)
        assert isinstance(loaded, dict)
        assert len(loaded) == TENSORS // 100
        last = loaded[f"group{TENSORS - 100:06}"]["t99"]
        assert last.tolist() == [TENSORS - 1 + RANKS - 1] * 4
