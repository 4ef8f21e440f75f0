"""A catalog's file that rots, or is put together of two, as a copy beside the old one's log. What
SQLite calls whole is looked at as well, and whoever starts on it hears what makes it again.
"""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from ckpt.base.errors import Corrupt
from ckpt.protocol.coordinator.image import CatalogImage
from ckpt.testing.catalog_entries import apply_all, every_entry
from ckptd.catalog.sqlite import create_catalog, read_image
from ckptd.directory import CLUSTER_ID_NAME
from tests.ckptd.catalogs import begin_term, spoil_page

ROTTEN = (
    "UPDATE target SET domain = 'p/r/h'",
    "UPDATE target_standing SET standing = 'mn'",
    "UPDATE checkpoint SET step = 'x' WHERE rowid = 1",
    "UPDATE checkpoint SET world_size = x'00' WHERE rowid = 1",
    "UPDATE process SET run = 'rtn'",
    "UPDATE meta SET value = x'01' WHERE key = 'term'",
    "UPDATE meta SET value = '0.p' WHERE key = 'forgotten'",
)
"""What one bit that has flipped can make of a catalog that SQLite finds whole."""


@pytest.fixture
def catalog(tmp_path: Path) -> Path:
    """Its file; it holds one of everything."""
    image = apply_all(CatalogImage(7), every_entry())
    image.outdated = ""
    return create_catalog(tmp_path, "c1", image)


def complaint(catalog: Path) -> Corrupt:
    with pytest.raises(Corrupt) as found:
        begin_term(catalog.parent, "c1", "c1")
    return found.value


@pytest.mark.parametrize("statement", ROTTEN)
def test_what_no_coordinator_has_stored_is_damage(catalog: Path, statement: str) -> None:
    with closing(sqlite3.connect(catalog)) as connection, connection:
        assert connection.execute(statement).rowcount > 0
    said = complaint(catalog)
    assert f"the catalog in {catalog.parent} is unreadable: " in said.message
    assert said.hint.startswith("run: ckpt catalog rebuild ")


def test_a_schema_that_is_no_text_any_more_is_damage(catalog: Path) -> None:
    content = catalog.read_bytes()
    assert b"CREATE TABLE process" in content
    catalog.write_bytes(content.replace(b"CREATE TABLE process", b"CREATE TABL\xee process"))
    assert "catalog rebuild" in complaint(catalog).hint


def test_damage_that_sqlite_tells_in_lines_is_told_in_one(catalog: Path) -> None:
    """Whoever asks why a daemon ended reads its last line."""
    spoil_page(catalog)
    said = str(complaint(catalog))
    assert "is unreadable: " in said
    assert said.isprintable(), said


def test_a_bit_that_flips_is_seen_or_does_not_keep_it_from_being_read(catalog: Path) -> None:
    content, lot = catalog.read_bytes(), random.Random(18)
    used = [place for place, byte in enumerate(content) if byte]
    seen = []
    for place in lot.sample(used, 150):
        damaged = bytearray(content)
        damaged[place] ^= 1 << lot.randrange(8)
        catalog.write_bytes(damaged)
        try:
            read_image(catalog.parent)
        except Corrupt as error:
            seen.append(error)
    assert len(seen) > 20
    assert all("catalog rebuild" in error.hint for error in seen)
    assert all(str(error).isprintable() for error in seen)


def test_a_daemon_says_in_one_line_why_it_does_not_start(tmp_path: Path) -> None:
    given = ["backup-catalog", "--directory", str(tmp_path / "two\nlines")]
    ended = subprocess.run(
        [sys.executable, "-m", "ckptd.cli", *given], capture_output=True, text=True, check=False
    )
    assert ended.stdout == ""
    (said,) = ended.stderr.splitlines()
    assert said.startswith("ckptd backup-catalog: ")


@pytest.mark.parametrize("content", [b"", b"\n", b"\x7fELF\xd0\xff"])
@pytest.mark.parametrize("insisted", [None, "c1"])
def test_a_damaged_id_beside_it_is_named_with_what_mends_it(
    catalog: Path, content: bytes, insisted: str | None
) -> None:
    directory = catalog.parent
    begin_term(directory, insisted, "c1")
    (directory / CLUSTER_ID_NAME).write_bytes(content)
    with pytest.raises(Corrupt, match=r"cluster\.id is unreadable") as found:
        begin_term(directory, insisted, "c1")
    assert "run: ckpt catalog rebuild " in found.value.hint
    create_catalog(directory, "c1", CatalogImage(8), keep_old=True)
    begin_term(directory, insisted, "c1")
