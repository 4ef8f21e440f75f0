"""A bench's cluster has cold daemons, as users have them, in a quarter of the tests of a landing,
other ones at the next; those of the others are forked warm.
"""

from __future__ import annotations

from zlib import crc32

import pytest

from ckptbench import cluster
from tests.landing import has_turn
from tests.warm_child import start_bench_daemon

COLD_EVERY = 4


@pytest.fixture(autouse=True)
def _warm_unless_it_has_its_turn(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if not has_turn(crc32(request.node.nodeid.encode()), COLD_EVERY):
        monkeypatch.setattr(cluster, "start_child", start_bench_daemon)
