"""One cluster for each module of tests on an accelerator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu.finding import accelerator

FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip this folder's tests where there is nothing to run them on."""
    if not accelerator():
        for item in items:
            if item.path.is_relative_to(FOLDER):
                item.add_marker(pytest.mark.skip(reason="no accelerator"))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`ckpt+local://DIR` of a running cluster."""
    from tests.frameworks.clusters import local_cluster

    with local_cluster(tmp_path_factory.mktemp("burst")) as found:
        yield found
