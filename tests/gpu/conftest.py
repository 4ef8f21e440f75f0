"""One cluster for each module of tests on an accelerator."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu.finding import accelerator


class Unasked(pytest.File):
    """A module of tests that nothing here can run: none of what it imports is imported."""

    def collect(self) -> Iterator[pytest.Item]:
        for name in re.findall(r"^def (test_\w+)\(", self.path.read_text(), re.MULTILINE):
            yield Skipped.from_parent(self, name=name)


class Skipped(pytest.Item):
    """A test of it, whatever its parameters."""

    def runtest(self) -> None:
        pytest.skip("no accelerator")


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Collector | None:
    """Skip this folder's tests where there is nothing to run them on."""
    return None if accelerator() else Unasked.from_parent(parent, path=module_path)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`ckpt+local://DIR` of a running cluster."""
    from tests.frameworks.clusters import local_cluster

    with local_cluster(tmp_path_factory.mktemp("burst")) as found:
        yield found
