"""A real etcd for these tests; without one they are skipped, and say why."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.ha.certificates import Certificates
from tests.ha.finding import NONE, etcd_path
from tests.ha.members import Etcd


@pytest.fixture(scope="session", autouse=True)
def _etcd_is_here() -> None:
    if etcd_path() is None:
        pytest.skip(f"{NONE}; make test-ha fetches it")


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """One member, for all tests of a file: each works below a prefix of its own."""
    with Etcd(tmp_path_factory.mktemp("etcd")) as made:
        yield made


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here, to make certificates")
    return Certificates(tmp_path_factory.mktemp("tls") / "certificates")
