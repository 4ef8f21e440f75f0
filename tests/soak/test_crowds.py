"""Crowds as large as one machine can hold: 24, 48 and 96 real stagers on 7 targets."""

from __future__ import annotations

from pathlib import Path

import pytest

import ckpt
from tests.e2e.cluster import Cluster
from tests.e2e.crowd import check_crowd

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.mark.parametrize(("ranks", "mib"), [(24, 80), (48, 40), (96, 20)])
def test_a_crowd_lacks_no_column_and_sends_next_to_none_twice(
    mark: str, tmp_path: Path, ranks: int, mib: int
) -> None:
    cluster = Cluster(tmp_path, "targets=7&code=4+2")
    try:
        with ckpt.open(cluster.url) as store:
            check_crowd(store, cluster.directory, ranks, mib, steps=3, wait_s=300.0)
    finally:
        cluster.stop()
