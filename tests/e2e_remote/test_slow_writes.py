"""P1, P4: where each write takes every target's device long, no column is missing.

`tests/sim/test_slow_disks.py` has what the machines decide; here their processes must live while
they write.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

import ckpt
from ckpt.base.limits import LEASE_US
from ckpt.base.units import US_PER_S, MiB
from tests.e2e_remote.cluster import RemoteCluster
from tests.e2e_remote.conftest import started

HOSTS, CODE, MIB = 2, "2+1", 16
WRITE_S, SMALL_WRITE_S = LEASE_US / US_PER_S + 0.5, 0.05
"""Of a cell, longer than a lease; and of all else, so that the device is not quick either."""
SLOWLY = f"""
import os, threading
never, pwrite = threading.Event(), os.pwrite

def slowly(file, data, offset):
    never.wait({WRITE_S} if len(data) >= {MiB} else {SMALL_WRITE_S})
    return pwrite(file, data, offset)

os.pwrite = slowly
"""
"""Python runs a sitecustomize.py on its path before all else."""
WAIT_S = 120.0


class SlowCluster(RemoteCluster):
    """All my targets write slowly."""

    def environment(self, directory: Path) -> Mapping[str, str] | None:
        if directory == self.coordinator_directory:
            return None
        site = self.directory / "site"
        site.mkdir(exist_ok=True)
        (site / "sitecustomize.py").write_text(SLOWLY)
        return {**os.environ, "PYTHONPATH": f"{site}:{os.environ.get('PYTHONPATH', '')}"}


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[SlowCluster]:
    with started(SlowCluster(tmp_path, hosts=HOSTS, code=CODE)) as made:
        yield made


def test_a_save_on_devices_that_all_write_slowly_lacks_no_column_and_no_target(
    slow: SlowCluster,
) -> None:
    with ckpt.open(slow.url) as store:
        commit = store.save("slow", 1, {"w": np.ones(MIB * MiB, "u1")}).wait(WAIT_S)
    assert (commit.columns_missing, commit.targets_survivable) == (0, 1)
    assert "target is down" not in slow.log_of("coordinator").read_text()
