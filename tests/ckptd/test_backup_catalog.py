"""What a copy of the catalog adds to what the targets hold, and how a copy is made."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from ckpt.base.errors import CkptError, Corrupt, NotFound, Refused
from ckpt.base.ids import LaunchNumber, RunName, TargetId
from ckpt.format.messages.reading import DocumentKind
from ckpt.plan.drains import StorePolicy
from ckpt.protocol.coordinator.catalog import (
    AttemptOpened,
    CatalogOutdated,
    Persist,
    RowState,
    TargetSeen,
    TargetStanding,
)
from ckpt.protocol.coordinator.image import CatalogImage, CatalogRow
from ckpt.protocol.coordinator.stores import (
    StoreRow,
)
from ckpt_client.cli.upkeep import catalog
from ckptd.catalog.backup import backup_path, main, read_backup
from ckptd.catalog.file import LOCK_NAME
from ckptd.catalog.rebuild import RestingTarget, rebuild
from ckptd.catalog.sqlite import APPLICATION_ID, CATALOG_NAME
from tests.ckptd.catalogs import begin_term, opened
from tests.ckptd.test_rebuild_catalog import (
    CLUSTER,
    checkpoint,
    commit,
    index_of,
    record_of,
    store,
)
from tests.client.clikit import run


def row(step: int, state: RowState) -> CatalogRow:
    id = checkpoint(step)
    return CatalogRow(id, state, LaunchNumber(5), "k", 1, record_of(id, index_of(id)), "why")


def restored(target: Path, *rows: CatalogRow) -> dict[int, RowState]:
    """The state of each step, of one target's holdings and a backup with these rows."""
    backup = CatalogImage(7, {each.checkpoint: each for each in rows})
    found = rebuild(CLUSTER, [RestingTarget(target, CLUSTER)], backup)
    assert set(found.committed) == {
        id for id, each in found.image.rows.items() if each.state is RowState.COMMITTED
    }
    assert found.image.passed_over.isdisjoint(found.image.rows)
    return {int(id.step): each.state for id, each in found.image.rows.items()}


@pytest.mark.parametrize(("in_backup", "with_record", "without", "nothing_held"), [
    (RowState.OPEN, RowState.COMMITTED, None, None),
    (RowState.DECIDED, RowState.COMMITTED, None, None),
    (RowState.COMMITTED, RowState.COMMITTED, RowState.COMMITTED, None),
    (RowState.DAMAGED, RowState.DAMAGED, RowState.DAMAGED, None),
    (RowState.TOMBSTONED, RowState.TOMBSTONED, RowState.TOMBSTONED, None),
    (RowState.DELETED, RowState.DELETED, RowState.DELETED, RowState.DELETED),
    (RowState.ABORTED, RowState.ABORTED, RowState.ABORTED, RowState.ABORTED),
])  # fmt: skip
def test_targets_say_what_is_there_and_the_copy_what_can_never_change(
    tmp_path: Path,
    in_backup: RowState,
    with_record: RowState,
    without: RowState | None,
    nothing_held: RowState | None,
) -> None:
    backup = row(1, in_backup)
    for name in ("record", "index", "nothing"):
        (tmp_path / name / "documents").mkdir(parents=True)
    commit(tmp_path / "record", checkpoint(1))
    store(tmp_path / "index", DocumentKind.INDEX, checkpoint(1), index_of(checkpoint(1)))
    assert restored(tmp_path / "record", backup).get(1) is with_record
    assert restored(tmp_path / "index", backup).get(1) is without
    assert restored(tmp_path / "nothing", backup).get(1) is nothing_held


def test_a_checkpoint_behind_the_copy_is_there_and_the_term_is_above_both(tmp_path: Path) -> None:
    commit(tmp_path, checkpoint(1))
    commit(tmp_path, checkpoint(2))
    assert restored(tmp_path, row(1, RowState.COMMITTED)) == {
        1: RowState.COMMITTED,
        2: RowState.COMMITTED,
    }
    found = rebuild(CLUSTER, [RestingTarget(tmp_path, CLUSTER)], CatalogImage(70))
    assert found.image.term > 70


def test_where_it_is_drained_to_comes_from_the_copy(tmp_path: Path) -> None:
    commit(tmp_path, checkpoint(1))
    id = checkpoint(1)
    policy = StorePolicy("file:///durable", 1, None, ("*",))
    drained = StoreRow(policy, {RunName("a run"): {(id.step, id.generation)}})
    backup = CatalogImage(7, stores={policy.url: drained})
    seen = TargetSeen(TargetId("t9"), "p/r/h/d", "/t9")
    backup.targets[seen.target] = seen
    found = rebuild(CLUSTER, [RestingTarget(tmp_path, CLUSTER)], backup)
    assert found.image.stores == {policy.url: drained}
    absent = replace(seen, standing=TargetStanding.ABSENT)
    assert found.image.targets == {seen.target: absent}, "it did not answer"


def test_a_copy_made_while_entries_are_written_has_all_that_were_durable(tmp_path: Path) -> None:
    path = tmp_path / "copies" / "catalog.sqlite"
    durable, copied = threading.Event(), threading.Event()
    told: list[CkptError | None] = []

    def done(failure: CkptError | None) -> None:
        told.append(failure)
        copied.set()

    with opened(tmp_path, CLUSTER, "") as catalog:
        catalog.start(lambda _ticket: durable.set(), lambda _error: None)
        catalog.submit(Persist(1, (AttemptOpened(checkpoint(1), LaunchNumber(1), "k", 1),)))
        assert durable.wait(30)
        catalog.copy_to(path, done)
        assert copied.wait(30)
    assert told == [None]
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(read_backup(path, CLUSTER).rows) == [checkpoint(1)]
    with pytest.raises(Refused, match="is of cluster c1"):
        read_backup(path, "c2")
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(Corrupt, match=str(path)):
        read_backup(path, CLUSTER)


def test_a_copy_that_cannot_be_written_harms_nothing(tmp_path: Path) -> None:
    (tmp_path / "backups").write_text("a file is in the way")
    told: list[CkptError | None] = []
    durable: list[int] = []
    with opened(tmp_path, CLUSTER, "") as catalog:
        catalog.start(durable.append, lambda _error: None)
        catalog.copy_to(backup_path(tmp_path, catalog.image.position), told.append)
        catalog.submit(Persist(1, ()))
    assert [type(failure) for failure in told] == [Refused]
    assert durable == [1]


def backup_command(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "ckptd.cli", "backup-catalog", "--directory", str(directory)]
    return subprocess.run([*line, *words], capture_output=True, text=True, timeout=60, check=False)


def test_a_copy_that_cannot_have_its_name_is_not_left_aside(tmp_path: Path) -> None:
    begin_term(tmp_path / "one", None, "c1")
    (tmp_path / "to").mkdir()
    ended = backup_command(tmp_path / "one", "--to", str(tmp_path / "to"))
    said = f"cannot write {tmp_path}/to" in ended.stderr
    assert (ended.returncode, said) == (Refused.exit_code, True)
    assert {path.name for path in tmp_path.iterdir()} == {"one", "to"}


def test_where_there_is_no_catalog_none_is_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=f"there is no catalog in {tmp_path}"):
        main(["--directory", str(tmp_path)])


def test_an_old_catalog_is_not_copied(tmp_path: Path) -> None:
    with opened(tmp_path, CLUSTER, "") as catalog:
        catalog.start(lambda _ticket: None, lambda _error: None)
        assert backup_command(tmp_path).returncode == 11
        catalog.submit(Persist(1, (CatalogOutdated("t0 knows better"),)))
    done = backup_command(tmp_path)
    assert (done.returncode, "t0 knows better" in done.stderr) == (4, True)
    assert not (tmp_path / "backups").exists()


def test_another_clusters_catalog_is_refused_with_the_command_that_mends_it(tmp_path: Path) -> None:
    begin_term(tmp_path, "c2", "")
    with pytest.raises(Refused, match=f"run: ckpt catalog rebuild {tmp_path}"):
        begin_term(tmp_path, CLUSTER, "")


def test_no_copy_is_written_over_a_catalog(tmp_path: Path) -> None:
    """Its coordinator would go on in a file without a name, the next one begin with the copy."""
    one, other, link = tmp_path / "one", tmp_path / "other", tmp_path / "copy.sqlite"
    begin_term(one, None, "c1")
    begin_term(other, None, "c2")
    link.symlink_to(other / CATALOG_NAME)
    assert (catalog.CATALOG, catalog.LOCK) == (CATALOG_NAME, LOCK_NAME)
    for place in (one / CATALOG_NAME, other / CATALOG_NAME, link, one / f"{CATALOG_NAME}-wal"):
        before = {file: file.read_bytes() for each in (one, other) for file in each.iterdir()}
        ended = run("catalog", "backup", str(one), "--to", str(place))
        assert ended.code == Refused.exit_code, ended.err
        assert "is the catalog of a coordinator" in ended.err
        assert {file: file.read_bytes() for file in before} == before
    assert run("catalog", "backup", str(one), "--to", str(tmp_path / CATALOG_NAME)).code == 0


@pytest.mark.parametrize("kind", ["a secret", "another program's", "a device's", "a directory"])
def test_a_copy_replaces_nothing_but_an_earlier_one(tmp_path: Path, kind: str) -> None:
    """As root it replaced /dev/null, and a cluster's secret, without a word."""
    directory, place = tmp_path / "one", tmp_path / "there"
    begin_term(directory, None, "c1")
    match kind:
        case "a secret":
            place.write_bytes(b"a" * 64)
        case "another program's":
            connection = sqlite3.connect(place)
            connection.execute("CREATE TABLE bookmarks (url)")
            connection.close()
        case "a device's":
            os.mkfifo(place)
        case _:
            place.mkdir()

    def written() -> tuple[int, ...]:
        # Not when it was read: who refuses it has looked at it.
        found = place.lstat()
        return found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns

    before = written()
    ended = run("catalog", "backup", str(directory), "--to", str(place))
    assert ended.code == Refused.exit_code, ended.err
    assert f"{place} is no copy of a catalog" in ended.err
    assert written() == before
    assert not (directory / "backups").exists(), "nothing was copied"


def test_a_copy_replaces_an_earlier_one_and_an_empty_file(tmp_path: Path) -> None:
    directory, place, link = tmp_path / "one", tmp_path / "there", tmp_path / "link"
    begin_term(directory, None, "c1")
    assert catalog.APPLICATION_ID == APPLICATION_ID
    place.touch()
    link.symlink_to(tmp_path / "nowhere")
    for to in (place, place, link):
        assert run("catalog", "backup", str(directory), "--to", str(to)).code == 0
        assert read_backup(to, "c1").term >= 1
