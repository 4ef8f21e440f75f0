"""fsspec's own abstract suite, on loose files.

Of one target: each of its hundreds of files is a commit, and how many hold a file is nothing that
a filesystem shows.

Which files a glob names is found by fsspec: of the local disk by what is not ours, of the tier by
one walk, whether they are fetched or copied. All globs are fetched at each landing. Each that is
put or copied, which writes what it names four times over, has its turn of four.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator

import fsspec
import pytest
from fsspec.tests import abstract
from fsspec.tests.abstract.common import GLOB_EDGE_CASES_TESTS as GLOBS

from ckpt_client.fs.step_files import CkptFileSystemBase
from tests.frameworks.clusters import local_cluster
from tests.landing import in_turn, unmarked


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with local_cluster(tmp_path_factory.mktemp("burst"), targets=1, code="1+0") as url:
        yield url


@pytest.fixture(scope="module")
def filesystem(cluster: str) -> Iterator[CkptFileSystemBase]:
    made = fsspec.core.url_to_fs(cluster)[0]
    yield made
    made.close()


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    """Scenarios that were made: the suite only reads them, and each file is a commit."""
    return {}


class Fixtures(abstract.AbstractFixtures):  # type: ignore[misc]  # fsspec ships no types.
    @pytest.fixture
    def fs(self, filesystem: CkptFileSystemBase) -> CkptFileSystemBase:
        return filesystem

    @pytest.fixture
    def fs_path(self) -> str:
        return secrets.token_hex(6)

    @pytest.fixture
    def fs_join(self) -> Callable[..., str]:
        return lambda *parts: "/".join(parts)

    @pytest.fixture
    def supports_empty_directories(self) -> bool:
        return False

    @pytest.fixture
    def fs_target(self, fs_path: str) -> str:
        """Not removed: nothing meets it again."""
        return f"{fs_path}/target"

    @pytest.fixture
    def fs_glob_edge_cases_files(
        self,
        fs: CkptFileSystemBase,
        fs_join: Callable[..., str],
        fs_path: str,
        sources: dict[str, str],
    ) -> str:
        if "glob" not in sources:
            sources["glob"] = self._glob_edge_cases_files(fs, fs_join, fs_path)
        return sources["glob"]

    @pytest.fixture
    def fs_bulk_operations_scenario_0(
        self,
        fs: CkptFileSystemBase,
        fs_join: Callable[..., str],
        fs_path: str,
        sources: dict[str, str],
    ) -> str:
        if "bulk" not in sources:
            sources["bulk"] = self._bulk_operations_scenario_0(fs, fs_join, fs_path)
        return sources["bulk"]


def by_turns(test: Callable[..., None]) -> Callable[..., None]:
    """A test of the suite's with a quarter of its globs; `make soak` runs the others."""
    globs = in_turn(GLOBS["argvalues"], every=4)
    return pytest.mark.parametrize(GLOBS["argnames"], globs)(unmarked(test))


class TestCopy(abstract.AbstractCopyTests, Fixtures):  # type: ignore[misc]
    """Within the filesystem."""

    test_copy_glob_edge_cases = by_turns(abstract.AbstractCopyTests.test_copy_glob_edge_cases)


class TestGet(abstract.AbstractGetTests, Fixtures):  # type: ignore[misc]
    """To the local disk."""


class TestPut(abstract.AbstractPutTests, Fixtures):  # type: ignore[misc]
    """From the local disk."""

    test_put_glob_edge_cases = by_turns(abstract.AbstractPutTests.test_put_glob_edge_cases)


class TestOpen(abstract.AbstractOpenTests, Fixtures):  # type: ignore[misc]
    """Modes."""


class TestPipe(abstract.AbstractPipeTests, Fixtures):  # type: ignore[misc]
    """Whole files."""
