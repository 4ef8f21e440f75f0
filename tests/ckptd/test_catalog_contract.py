"""Every catalog keeps the contract."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import pytest

from ckpt.aio.catalog import Catalog
from ckpt.protocol.coordinator.catalog import CatalogEntry
from ckpt.protocol.coordinator.image import CatalogImage
from ckpt.testing.catalog import FakeCatalogStore
from ckpt.testing.catalog_contract import (
    CatalogContract,
    CatalogPlace,
    KilledCatalogContract,
    KilledCatalogPlace,
)
from ckpt.testing.catalog_entries import entries_by_chance, every_entry
from ckptd.catalog.backup import read_backup
from ckptd.catalog.sqlite import SqliteCatalog

WRITER = """
import asyncio, sys
from pathlib import Path
from ckpt.testing.catalog_contract import write_for_ever
from ckptd.catalog.sqlite import SqliteCatalog
async def opened():
    return SqliteCatalog.open(Path(sys.argv[1]), None, "c1")
asyncio.run(write_for_ever(opened()))
"""


@dataclass(frozen=True)
class CatalogDirectory:
    """Where a SQLite catalog lies."""

    directory: Path

    async def open(self, cluster: str | None = None, new_cluster: str = "c1") -> Catalog:
        return SqliteCatalog.open(self.directory, cluster, new_cluster)

    def read_copy(self, path: Path) -> CatalogImage:
        return read_backup(path, "c1")

    def writer(self) -> Sequence[str]:
        return [sys.executable, "-c", WRITER, str(self.directory)]


class TestSqliteCatalog(KilledCatalogContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> KilledCatalogPlace:
        return CatalogDirectory(tmp_path / "coordinator")


class TestFakeCatalog(CatalogContract):
    """Which another writer takes over, where SQLite's is refused."""

    @pytest.fixture
    def place(self) -> CatalogPlace:
        return FakeCatalogStore()


def test_the_contract_s_entries_are_of_every_kind() -> None:
    kinds = set(get_args(CatalogEntry))
    assert set(map(type, every_entry())) == kinds
    assert {type(entry) for seed in range(6) for entry in entries_by_chance(seed, 240)} == kinds
