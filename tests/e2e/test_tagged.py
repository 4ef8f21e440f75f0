"""Bulks with tags, over TCP: what `wire = "auto"` does between hosts, here on one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import ckpt
from tests.e2e.cluster import OPTIONS, Cluster

CLUSTER_OPTIONS = f"{OPTIONS}&restart=always"
WAIT_S = 60.0


@pytest.fixture(scope="module")
def cluster_options() -> Iterator[str]:
    """The daemons inherit it: no Unix sockets, so nothing is lent, and tags on all of TCP."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CKPT_TARGET__UNIX", "false")
        patch.setenv("CKPT_TARGET__WIRE", "mac")
        patch.setenv("CKPT_COORDINATOR__WIRE", "mac")
        yield CLUSTER_OPTIONS


def test_a_state_goes_and_comes_with_tags(cluster: Cluster, store: ckpt.Store) -> None:
    status = cluster.status()
    assert {target.wire for target in status.targets} == {"mac"}
    assert status.coordinator.wire == "mac"
    values = np.random.default_rng(3).integers(0, 256, (33 << 20) + 5, np.uint8)
    small = {f"layer{number}": values[number : number + 1000 * number] for number in range(40)}
    store.save("tagged", 1, {"w": values, **small}).wait(WAIT_S)
    for lost in ((), ("t0", "t1")):
        cluster.kill(*lost)
        state = store.load("tagged")
        assert np.array_equal(state["w"], values)
        for name, value in small.items():
            assert np.array_equal(state[name], value)
    cluster.heal()
    store.save("tagged", 2, {"w": values[::-1].copy()}).wait(WAIT_S)
    assert np.array_equal(store.load("tagged")["w"], values[::-1])
