"""Clusters whose daemons each have a machine of their own. Skipped where there is no C compiler."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ckpt
from tests.e2e_remote.conftest import started
from tests.machines.cluster import MachineCluster
from tests.machines.recorder import Recorder, build_recorder


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = build_recorder(tmp_path_factory.mktemp("recorder")) if sys.platform == "linux" else None
    if built is None:
        pytest.skip("no C compiler here: loss of power is NOT tried on real processes; install cc")
    return built


@pytest.fixture
def recorder(library: Path, tmp_path: Path) -> Recorder:
    return Recorder(library, tmp_path / "disk")


@pytest.fixture
def cluster(library: Path, tmp_path: Path) -> Iterator[MachineCluster]:
    """Four machines of targets, 2+1: each more is a process that starts with every power loss."""
    with started(MachineCluster(tmp_path, library, hosts=2, code="2+1")) as made:
        yield made


@pytest.fixture
def store(cluster: MachineCluster) -> Iterator[ckpt.Store]:
    opened = ckpt.open(cluster.url)
    yield opened
    opened.close(0.0)


@pytest.fixture
def wide_cluster(library: Path, tmp_path: Path) -> Iterator[MachineCluster]:
    """Six, 4+2: each of them holds a column of every payload."""
    with started(MachineCluster(tmp_path, library, hosts=3)) as made:
        yield made


@pytest.fixture
def wide_store(wide_cluster: MachineCluster) -> Iterator[ckpt.Store]:
    opened = ckpt.open(wide_cluster.url)
    yield opened
    opened.close(0.0)
