"""A bench's cluster here is forked warm; of tests/bench_e2e some have cold ones, as users have."""

from __future__ import annotations

import pytest

from ckptbench import cluster
from tests.warm_child import start_bench_daemon


@pytest.fixture
def warm_daemons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "start_child", start_bench_daemon)
