"""The catalog in a real etcd keeps the contract, also when its writers are killed."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from ckpt.aio.catalog import Catalog
from ckpt.protocol.coordinator.catalog import CatalogImage
from ckpt.testing.catalog_contract import KilledCatalogContract, KilledCatalogPlace
from ckptd.catalog.backup import read_backup
from ckptd.catalog.opening import open_catalog
from tests.ha.members import Etcd

WRITER = """
import asyncio, sys
from pathlib import Path
from ckpt.testing.catalog_contract import write_for_ever
from ckptd.catalog.opening import open_catalog
asyncio.run(write_for_ever(open_catalog(Path(sys.argv[1]), None, "c1", url=sys.argv[2])))
"""
COUNT = itertools.count()


@dataclass(frozen=True)
class EtcdPlace:
    """A prefix of its own, and the directory of its coordinator."""

    directory: Path
    url: str

    async def open(self, cluster: str | None = None, new_cluster: str = "c1") -> Catalog:
        return await open_catalog(self.directory, cluster, new_cluster, url=self.url)

    def read_copy(self, path: Path) -> CatalogImage:
        return read_backup(path, "c1")

    def writer(self) -> Sequence[str]:
        return [sys.executable, "-c", WRITER, str(self.directory), self.url]


class TestEtcdCatalog(KilledCatalogContract):
    @pytest.fixture
    def place(self, tmp_path: Path, etcd: Etcd) -> KilledCatalogPlace:
        url = f"etcd://{etcd.addresses}/contract/{next(COUNT)}"
        return EtcdPlace(tmp_path / "coordinator", url)
