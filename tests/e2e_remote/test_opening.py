"""A job starts together with the hosts of its cluster."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

import ckpt
from ckpt.base.errors import Unavailable
from tests.e2e_remote.cluster import RemoteCluster

WAIT_S = 90.0
"""Longer than a coordinator itself waits for its targets before it says that they are missing."""


def test_a_store_that_is_opened_before_the_targets_are_back_waits_for_them(
    fresh: RemoteCluster,
) -> None:
    names = list(fresh.targets)
    for name in names:
        fresh.targets.pop(name).end()
    fresh.coordinator.end()
    fresh.start_coordinator()
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(ckpt.open, fresh.url, start_timeout_s=WAIT_S)
        with pytest.raises(Unavailable, match="have vouched for it; away: h0d0"):
            ckpt.open(fresh.url, start_timeout_s=0)
        assert not opening.done()
        for name in names:
            fresh.start_target(name)
        with opening.result(WAIT_S) as store:
            assert store.latest("any") is None
