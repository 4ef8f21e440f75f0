"""One cluster and one set of gloo ranks for each module of framework tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.frameworks.clusters import local_cluster
from tests.frameworks.gloo import Ranks

TIMEOUT_S = 900
"""Of a test without one of its own: processes import torch anew, on shared machines."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give this folder's tests time."""
    for item in items:
        ours = item.path.is_relative_to(Path(__file__).parent)
        if ours and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`ckpt+local://DIR` of a running cluster."""
    with local_cluster(tmp_path_factory.mktemp("burst")) as url:
        yield url


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Four processes for gloo groups."""
    pool = Ranks(4, Path(tmp_path_factory.mktemp("gloo")))
    yield pool
    pool.close()
