"""What a catalog in a SQLite file does beside the contract: its file, its schema, its damage."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import pytest

from ckpt.base.errors import Busy, CkptError, Corrupt, Refused, Unavailable
from ckpt.base.ids import LaunchNumber, RunName, TargetId
from ckpt.format.messages.hello import OLDEST_VERSION, PROTOCOL_VERSION
from ckpt.protocol.coordinator.catalog import (
    CatalogEntry,
    LaunchNumbered,
    Persist,
    RowCommitted,
    TargetSeen,
)
from ckpt.protocol.coordinator.image import CatalogImage
from ckpt.protocol.coordinator.said import UpgradeFinished
from ckpt.testing.catalog_entries import apply_all, attempt, checkpoint, every_entry
from ckptd.catalog import sqlite as catalog_module
from ckptd.catalog.backup import read_backup
from ckptd.catalog.file import connect
from ckptd.catalog.room import RESERVE_NAME
from ckptd.catalog.sqlite import (
    CATALOG_NAME,
    SCHEMA_VERSION,
    SqliteCatalog,
    create_catalog,
    read_image,
    write_copy,
)
from ckptd.catalog.standing_tables import SCHEMA_UNFINISHED
from ckptd.directory import CLUSTER_ID_NAME
from tests.ckptd.catalogs import begin_term, opened


def write(catalog: SqliteCatalog, batches: list[list[CatalogEntry]]) -> list[int]:
    """Submit one ticket for each batch, wait until all are durable; as they were acknowledged."""
    durable: SimpleQueue[int | CkptError] = SimpleQueue()
    catalog.start(durable.put, durable.put)
    for ticket, entries in enumerate(batches, 1):
        catalog.submit(Persist(ticket, tuple(entries)))
    tickets = []
    for _ in batches:
        match durable.get(timeout=30):
            case int() as ticket:
                tickets.append(ticket)
            case error:
                raise error
    return tickets


def test_a_catalog_from_before_launches_were_kept_is_opened_and_keeps_them(tmp_path: Path) -> None:
    with opened(tmp_path, None, "c1") as catalog:
        write(catalog, [[attempt(1)]])
    connection = sqlite3.connect(tmp_path / CATALOG_NAME)
    connection.execute("DROP TABLE launch")
    connection.execute("DROP TABLE process")
    connection.close()
    numbered = LaunchNumbered(RunName("run"), LaunchNumber(7), "key", 2)
    with opened(tmp_path, "c1", "unused") as catalog:
        write(catalog, [[numbered]])
    with opened(tmp_path, "c1", "unused") as catalog:
        assert catalog.image == apply_all(CatalogImage(3), [attempt(1), numbered])


def test_a_catalog_from_before_directories_were_told_apart_is_opened_and_notes_them(
    tmp_path: Path,
) -> None:
    seen = TargetSeen(TargetId("t0"), "p/r/h/d", "/data/t0")
    with opened(tmp_path, None, "c1") as catalog:
        write(catalog, [[seen]])
    connection = sqlite3.connect(tmp_path / CATALOG_NAME)
    connection.execute("DROP TABLE target_directory")
    connection.close()
    # As a copy of it is read, where nothing can be written.
    assert read_backup(tmp_path / CATALOG_NAME, "c1").targets == {seen.target: seen}
    noted = TargetSeen(TargetId("t0"), "p/r/h/d", "/data/t0", b"i" * 16, "machine/fs/7")
    with opened(tmp_path, "c1", "unused") as catalog:
        assert catalog.image.targets == {seen.target: seen}
        write(catalog, [[noted]])
    with opened(tmp_path, "c1", "unused") as catalog:
        assert catalog.image.targets == {seen.target: noted}


def test_each_start_takes_the_next_term(tmp_path: Path) -> None:
    terms = []
    for _ in range(3):
        with opened(tmp_path, None, "c1") as catalog:
            terms.append(catalog.image.term)
    assert terms == [1, 2, 3]


def test_a_second_coordinator_on_the_directory_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path, None, "c1"):
        with pytest.raises(Busy):
            begin_term(tmp_path, None, "c1")
        with pytest.raises(Busy):
            read_image(tmp_path)


def test_a_catalog_of_another_cluster_is_refused(tmp_path: Path) -> None:
    begin_term(tmp_path, None, "c1")
    with pytest.raises(Refused, match="c1"):
        begin_term(tmp_path, "c2", "c2")
    assert read_image(tmp_path)[0] == "c1"


def test_a_catalog_that_is_gone_is_missed_and_the_new_one_is_of_the_same_cluster(
    tmp_path: Path,
) -> None:
    """So its targets come and prove it old; of a new cluster they would turn away."""
    begin_term(tmp_path, None, "c1")
    for file in tmp_path.glob(f"{CATALOG_NAME}*"):
        file.unlink()
    with opened(tmp_path, None, "c2") as catalog:
        assert catalog.cluster == "c1"


def test_a_catalog_of_before_gets_its_cluster_s_file(tmp_path: Path) -> None:
    begin_term(tmp_path, None, "c1")
    (tmp_path / CLUSTER_ID_NAME).unlink()
    begin_term(tmp_path, None, "c2")
    assert (tmp_path / CLUSTER_ID_NAME).read_text() == "c1\n"


def test_another_cluster_s_catalog_is_refused_also_when_its_own_is_gone(tmp_path: Path) -> None:
    begin_term(tmp_path, None, "c1")
    (tmp_path / CATALOG_NAME).unlink()
    with pytest.raises(Refused, match="is of cluster c1, not c2"):
        begin_term(tmp_path, "c2", "c2")
    other = tmp_path / "other"
    begin_term(other, None, "c2")
    (other / CATALOG_NAME).rename(tmp_path / CATALOG_NAME)
    with pytest.raises(Refused, match="is of cluster c2, not c1"):
        begin_term(tmp_path, None, "c3")


def test_a_catalog_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    begin_term(tmp_path, None, "c1")
    connection = sqlite3.connect(tmp_path / CATALOG_NAME)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()
    with pytest.raises(Refused, match=f"schema {SCHEMA_VERSION + 1}; this is {SCHEMA_VERSION}"):
        begin_term(tmp_path, None, "c1")


def schema_in(directory: Path) -> int:
    connection = sqlite3.connect(directory / CATALOG_NAME)
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    connection.close()
    assert isinstance(version, int)
    return version


def begin_as_before(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the version before the one that moves columns opens a catalog."""
    with monkeypatch.context() as patch:
        patch.setattr(catalog_module, "SCHEMA_VERSION", SCHEMA_UNFINISHED)
        begin_term(directory, None, "c1")


def test_an_earlier_version_opens_its_catalog_until_its_upgrade_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_catalog(tmp_path, "c1", CatalogImage(4, protocol=OLDEST_VERSION))
    connection = sqlite3.connect(tmp_path / CATALOG_NAME)
    connection.execute("DELETE FROM meta WHERE key = 'protocol'")
    connection.commit()
    connection.close()
    with opened(tmp_path, None, "c1") as catalog:
        assert catalog.image.protocol == OLDEST_VERSION
        write(catalog, [[attempt(1)]])
    begin_as_before(tmp_path, monkeypatch)
    with opened(tmp_path, None, "c1") as catalog:
        write(catalog, [[attempt(2)], [UpgradeFinished(PROTOCOL_VERSION)]])
    assert schema_in(tmp_path) == SCHEMA_VERSION
    with pytest.raises(Refused, match="schema 3; this is 2"):
        begin_as_before(tmp_path, monkeypatch)
    with opened(tmp_path, None, "c1") as catalog:
        wanted = apply_all(CatalogImage(8), [attempt(1), attempt(2)])
        assert catalog.image == wanted
        assert catalog.image.protocol == PROTOCOL_VERSION


def test_a_new_catalog_has_no_earlier_version_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_term(tmp_path, None, "c1")
    assert read_image(tmp_path)[1].protocol == PROTOCOL_VERSION
    with pytest.raises(Refused, match="schema 3; this is 2"):
        begin_as_before(tmp_path, monkeypatch)


@pytest.mark.parametrize("protocol", [OLDEST_VERSION, PROTOCOL_VERSION])
def test_a_copy_of_a_catalog_is_as_far_upgraded_as_that(tmp_path: Path, protocol: int) -> None:
    image = CatalogImage(4, protocol=protocol)
    write_copy(tmp_path / "copy.sqlite", "c1", image)
    assert read_backup(tmp_path / "copy.sqlite", "c1").protocol == protocol
    create_catalog(tmp_path, "c1", image)
    assert read_image(tmp_path)[1].protocol == protocol


def test_a_damaged_catalog_is_said_to_be_corrupt_and_never_started_over(tmp_path: Path) -> None:
    with opened(tmp_path, None, "c1") as catalog:
        write(catalog, [every_entry()])
    path = tmp_path / CATALOG_NAME
    content = bytearray(path.read_bytes())
    content[: 1 << 12] = os.urandom(1 << 12)
    path.write_bytes(content)
    with pytest.raises(Corrupt, match="catalog rebuild"):
        begin_term(tmp_path, None, "c1")
    assert path.read_bytes() == content


def test_a_catalog_that_its_disk_keeps_from_use_is_not_called_damaged(tmp_path: Path) -> None:
    """Whoever is told of damage moves it away."""
    with opened(tmp_path, None, "c1") as catalog:
        write(catalog, [every_entry()])
    path = tmp_path / CATALOG_NAME
    content = path.read_bytes()
    path.rename(tmp_path / "away")
    path.mkdir()
    with pytest.raises(Unavailable, match="cannot be used: unable to open"):
        begin_term(tmp_path, None, "c1")
    path.rmdir()
    (tmp_path / "away").rename(path)
    script = LIMITED.format(directory=str(tmp_path))
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "NoSpace: no room for the catalog in" in ended.stderr, ended.stderr
    assert path.read_bytes() == content
    begin_term(tmp_path, "c1", "c1")


LIMITED = """
import resource
from pathlib import Path
from ckptd.catalog.sqlite import SqliteCatalog
resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))
SqliteCatalog.open(Path("{directory}"), None, "c1")
"""
"""It can write no more than the first bytes of any file."""


def test_tickets_that_wait_share_one_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[int] = []
    first_entered, go_on = threading.Event(), threading.Event()
    store = catalog_module._store

    def counted(connection: sqlite3.Connection, entries: list[CatalogEntry]) -> None:
        batches.append(len(entries))
        first_entered.set()
        assert go_on.wait(timeout=30)
        store(connection, entries)

    monkeypatch.setattr(catalog_module, "_store", counted)
    durable: list[int] = []
    with opened(tmp_path, None, "c1") as catalog:
        catalog.start(durable.append, lambda error: None)
        catalog.submit(Persist(1, (attempt(1),)))
        assert first_entered.wait(timeout=30)
        for ticket in range(2, 12):
            catalog.submit(Persist(ticket, (attempt(ticket),)))
        go_on.set()
    assert batches == [1, 10]
    assert durable == list(range(1, 12))


def test_after_an_error_no_ticket_is_acknowledged_and_submit_raises_it(tmp_path: Path) -> None:
    failed: SimpleQueue[CkptError] = SimpleQueue()
    durable: list[int] = []
    with opened(tmp_path, None, "c1") as catalog:
        catalog.start(durable.append, failed.put)
        catalog.submit(Persist(1, (attempt(1), RowCommitted(checkpoint(99)))))
        error = failed.get(timeout=30)
        with pytest.raises(CkptError, match="never opened"):
            catalog.submit(Persist(2, (attempt(2),)))
    assert "never opened" in str(error)
    assert durable == []
    assert read_image(tmp_path)[1].rows == {}


def test_an_entry_that_no_table_takes_ends_the_writing_as_any_other_error(tmp_path: Path) -> None:
    failed: SimpleQueue[CkptError] = SimpleQueue()
    numbered = LaunchNumbered(RunName("run"), LaunchNumber(1 << 64), None, 1)
    with opened(tmp_path, None, "c1") as catalog:
        catalog.start(lambda _ticket: None, failed.put)
        catalog.submit(Persist(1, (numbered,)))
        assert "too large" in failed.get(timeout=30).message
        with pytest.raises(CkptError, match="cannot be written"):
            catalog.submit(Persist(2, ()))


def test_a_catalog_that_was_made_of_targets_remembers_how_many_were_named(tmp_path: Path) -> None:
    create_catalog(tmp_path, "c1", CatalogImage(50, rebuilt_from=7), keep_old=False)
    assert read_image(tmp_path)[1].rebuilt_from == 7


def test_a_rebuilt_catalog_is_loaded_with_a_term_above_the_seen_one(tmp_path: Path) -> None:
    image = apply_all(CatalogImage(41), every_entry())
    image.outdated = ""  # What proved the lost one old says nothing of the new one.
    create_catalog(tmp_path, "c1", image)
    assert read_image(tmp_path) == ("c1", image)
    with pytest.raises(Refused):
        create_catalog(tmp_path, "c1", image)
    with opened(tmp_path, "c1", "c1") as catalog:
        assert catalog.image.term == 42
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == [RESERVE_NAME, CATALOG_NAME, CLUSTER_ID_NAME, "coordinator.lock"]
    create_catalog(tmp_path, "c1", CatalogImage(50), keep_old=True)
    assert read_image(tmp_path) == ("c1", CatalogImage(50))
    (tmp_path / CATALOG_NAME).unlink()
    (tmp_path / f"{CATALOG_NAME}.1").rename(tmp_path / CATALOG_NAME)
    assert read_image(tmp_path)[1].rows == image.rows


def test_what_is_told_durable_has_been_synced_by_the_database(tmp_path: Path) -> None:
    connection = connect(tmp_path / CATALOG_NAME)
    try:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,), "FULL"
    finally:
        connection.close()


def test_an_earlier_version_s_catalog_is_read_without_what_it_lacks_and_left_so(
    tmp_path: Path,
) -> None:
    image = apply_all(CatalogImage(41), every_entry())
    path = create_catalog(tmp_path, "c1", image)

    def ask(text: str) -> list[tuple[object, ...]]:
        with closing(sqlite3.connect(path)) as connection, connection:
            return connection.execute(text).fetchall()

    for table in ("passed_over", "retention"):
        ask(f"DROP TABLE {table}")
    tables = ask("SELECT name FROM sqlite_master")
    assert read_image(tmp_path) == ("c1", replace(image, retentions={}))
    assert ask("SELECT name FROM sqlite_master") == tables
