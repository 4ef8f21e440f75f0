"""A bench's cluster here is forked warm; tests/bench_e2e has cold ones in turns, as users have them."""

from __future__ import annotations

import pytest

from ckptbench import cluster
from tests.warm_child import start_bench_daemon


@pytest.fixture
def warm_daemons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "start_child", start_bench_daemon)
