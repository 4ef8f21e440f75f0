"""One cluster and one set of gloo ranks for each module of framework tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.frameworks.clusters import local_cluster
from tests.frameworks.gloo import Ranks


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
