"""The catalog in a real etcd keeps the contract, also when its writers are killed."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest

from ckpt.testing.catalog_contract import KilledCatalogContract, KilledCatalogPlace
from tests.ha.members import Etcd
from tests.ha.places import Prefix

WRITER = """
import asyncio, sys
from ckpt.testing.catalog_contract import write_for_ever
from tests.ha.places import Prefix
asyncio.run(write_for_ever(Prefix(sys.argv[1], sys.argv[2]).open()))
"""


class WrittenPrefix(Prefix):
    """One that other processes write to."""

    def __init__(self, addresses: str) -> None:
        super().__init__(addresses)
        self._addresses = addresses

    def writer(self) -> Sequence[str]:
        return [sys.executable, "-c", WRITER, self._addresses, self.name]


class TestEtcdCatalog(KilledCatalogContract):
    @pytest.fixture
    def place(self, etcd: Etcd) -> KilledCatalogPlace:
        return WrittenPrefix(etcd.addresses)
