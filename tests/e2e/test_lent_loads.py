"""A load on the targets' own host reads large columns from their files, and is as right as any."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import ckpt
from ckpt.base.units import MiB
from ckpt.transfer.receiving.lent_columns import WANTED_BYTES_MIN, LentRead
from tests.e2e.cluster import OPTIONS, Cluster

CLUSTER_OPTIONS = f"{OPTIONS}&restart=always"
WAIT_S = 60.0
DATA_COLUMNS = 4
STATE = {
    f"a{number}": np.random.default_rng(number).integers(0, 255, 5 * WANTED_BYTES_MIN // 4, "u1")
    for number in range(DATA_COLUMNS)
}
FAR = 18 * MiB
"""In a column: beyond what is asked for before its file comes."""


@pytest.fixture(scope="module", autouse=True)
def saved(cluster: Cluster, store: ckpt.Store) -> None:
    assert cluster.live()
    store.save("run", 1, STATE).wait(WAIT_S)


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Of each read of a file, whether all came."""
    found: list[bool] = []
    usual = LentRead.perform

    def perform(read: LentRead) -> None:
        usual(read)
        found.append(read.is_whole)

    monkeypatch.setattr(LentRead, "perform", perform)
    return found


def load(store: ckpt.Store) -> ckpt.Checkpoint:
    """Compares every byte."""
    with store.resolve("run") as found:
        state = found.load()
        assert state.keys() == STATE.keys()
        for name, array in STATE.items():
            assert np.array_equal(state[name], array), name
    return found


def test_most_of_it_comes_from_files(store: ckpt.Store, fetched: list[bool]) -> None:
    found = load(store)
    assert len(fetched) >= DATA_COLUMNS
    assert all(fetched)
    assert sum(one.cpu_s["files"] for one in found.statistics) > 0
    assert not any(one.damaged_bytes or one.rebuilt_bytes for one in found.statistics)


def test_rot_that_a_reader_finds_its_target_names(
    cluster: Cluster, store: ckpt.Store, fetched: list[bool]
) -> None:
    columns = [file for files in cluster.columns_of("run").values() for file in files]
    data = [file for file in columns if int(file.name.rsplit("-", 1)[1]) < DATA_COLUMNS]
    assert len(data) == DATA_COLUMNS
    for file in data[:2]:
        cluster.flip(file, FAR)
    found = load(store)
    assert not all(fetched)
    assert any(one.damaged_bytes for one in found.statistics)
    assert any(one.rebuilt_bytes for one in found.statistics)
    report = store.verify("run", 1)
    assert sum(column.state == "damaged" for column in report.columns) == 2
    for file in data[:2]:
        cluster.flip(file, FAR)  # As it was.


def test_two_lost_targets_are_made_up_for(
    cluster: Cluster, store: ckpt.Store, fetched: list[bool]
) -> None:
    holders = [id for id, files in cluster.columns_of("run").items() if files]
    cluster.kill(*holders[:2])
    found = load(store)
    assert any(one.rebuilt_bytes for one in found.statistics)
    assert fetched
    cluster.heal()
    load(store)
