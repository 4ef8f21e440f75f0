"""P1: load alone costs no redundancy. More stagers than a target has memory for save at once."""

from __future__ import annotations

import ckpt
from tests.e2e.cluster import Cluster
from tests.e2e.crowd import check_crowd

CLUSTER_OPTIONS = "targets=7&code=4+2"


def test_a_dozen_ranks_on_seven_targets_lack_no_column_and_send_none_twice(
    cluster: Cluster, store: ckpt.Store
) -> None:
    check_crowd(store, cluster.directory, ranks=12, mib=16, steps=2, wait_s=60.0)
