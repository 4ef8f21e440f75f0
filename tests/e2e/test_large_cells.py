"""Cells of 8 MiB, the largest that there are, from the save to a load without two targets."""

from __future__ import annotations

import numpy as np

import ckpt
from ckpt.base.limits import CELL_BYTES_MAX
from ckpt.base.units import MiB
from ckpt.format.column import HEADER_BYTES, decode_header
from tests.e2e.cluster import OPTIONS, Cluster

CLUSTER_OPTIONS = f"{OPTIONS}&restart=always&cell=8MiB"
WAIT_S = 60.0
BYTES = 2 * 4 * CELL_BYTES_MAX + 3 * MiB + 17
"""Two stripes of 4+2, and a tail."""


def test_a_state_of_large_cells_comes_back_without_two_targets(
    cluster: Cluster, store: ckpt.Store
) -> None:
    values = np.random.default_rng(8).integers(0, 256, BYTES, np.uint8)
    store.save("large", 1, {"w": values}).wait(WAIT_S)
    columns = cluster.columns_of("large")
    for files in columns.values():
        for file in files:
            header = decode_header(file.read_bytes()[:HEADER_BYTES])
            assert (header.cell_bytes, header.layout.stripe_count) == (CELL_BYTES_MAX, 3)
    assert np.array_equal(store.load("large")["w"], values)
    cluster.kill(*[target for target, files in columns.items() if files][:2])
    assert np.array_equal(store.load("large")["w"], values)
    cluster.heal()
