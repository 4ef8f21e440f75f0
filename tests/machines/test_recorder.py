"""What a process had synced stays, what it had not goes: on real files, as the kernel has them."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest

from tests.machines.losing import SECTOR_BYTES, lose_unsynced
from tests.machines.recorded import left, run
from tests.machines.recorder import Recorder


@pytest.mark.parametrize(
    ("lines", "files"),
    [
        (["write('a', b'x', sync=True)", "sync()"], {"a": b"x"}),
        (["write('a', b'x')", "sync()"], {"a": b""}),
        (["write('a', b'x', sync=True)"], {}),
        (["write('a', b'old!', sync=True)", "sync()", "write('a', b'new', at=1)"], {"a": b"old!"}),
        (["write('a', b'old', sync=True)", "sync()", "write('a', b'longer')"], {"a": b"old"}),
        (["write('a', b'1')", "write('a', b'2')", "sync('a')", "sync()"], {"a": b"2"}),
        (
            ["write('a', b'old', sync=True)", "sync()",
             "write('a', b'', flags=os.O_WRONLY | os.O_TRUNC)"],
            {"a": b"old"},
        ),
        (
            ["write('a', b'12345', sync=True)", "sync()",
             "os.ftruncate(os.open('a', os.O_RDWR), 2)"],
            {"a": b"12345"},
        ),
        (
            ["write('a', b'12345', sync=True)", "sync()",
             "os.ftruncate(os.open('a', os.O_RDWR), 2)", "sync('a')"],
            {"a": b"12"},
        ),
        (
            ["write('a', b'12', sync=True)", "sync()",
             "os.posix_fallocate(os.open('a', os.O_RDWR), 0, 9)"],
            {"a": b"12"},
        ),
    ],
)  # fmt: skip
def test_content_stays_as_far_as_it_was_synced(
    recorder: Recorder, lines: list[str], files: dict[str, bytes]
) -> None:
    run(recorder, *lines)
    assert left(recorder) == files


AB = ["write('a', b'a', sync=True)", "write('b', b'b', sync=True)", "sync()"]


@pytest.mark.parametrize(
    ("lines", "files"),
    [
        ([*AB, "os.rename('a', 'b')"], {"a": b"a", "b": b"b"}),
        ([*AB, "os.rename('a', 'b')", "sync()"], {"b": b"a"}),
        ([*AB, "os.unlink('a')"], {"a": b"a", "b": b"b"}),
        ([*AB, "os.unlink('a')", "sync()"], {"b": b"b"}),
        ([*AB, "os.mkdir('d')", "os.rename('a', 'd/a')"], {"a": b"a", "b": b"b"}),
        ([*AB, "os.mkdir('d')", "os.rename('a', 'd/a')", "sync('d')"], {"d/a": b"a", "b": b"b"}),
        (
            [*AB, "os.unlink('a')", "write('a', b'2', sync=True)", "os.rename('a', 'b')"],
            {"a": b"a", "b": b"b"},
        ),
        ([*AB, "os.rename('a', 'c')", "os.rename('c', 'b')"], {"a": b"a", "b": b"b"}),
        ([*AB, "os.link('a', 'c')"], {"a": b"a", "b": b"b"}),
    ],
)
def test_names_stay_as_far_as_their_directory_was_synced(
    recorder: Recorder, lines: list[str], files: dict[str, bytes]
) -> None:
    run(recorder, *lines)
    assert left(recorder) == files


def test_a_process_without_a_free_descriptor_is_recorded_all_the_same(recorder: Recorder) -> None:
    run(
        recorder,
        "import resource",
        "descriptor = os.open('a', os.O_CREAT | os.O_RDWR, 0o600)",
        "os.pwrite(descriptor, b'old', 0); os.fsync(descriptor); sync()",
        "most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]",
        "resource.setrlimit(resource.RLIMIT_NOFILE, (descriptor + 1, most))",
        "os.pwrite(descriptor, b'new', 0)",
    )
    assert left(recorder) == {"a": b"old"}


def test_a_disk_that_lies_loses_what_it_said_it_had_synced(library: Path, tmp_path: Path) -> None:
    recorder = Recorder(library, tmp_path / "disk", lying=True)
    run(recorder, *AB)
    assert left(recorder) == {}


@pytest.mark.parametrize(("level", "rows"), [("FULL", 3), ("OFF", 0)])
def test_of_a_database_what_it_synced_stays(recorder: Recorder, level: str, rows: int) -> None:
    """So changes made by a library in C are seen, too."""
    run(
        recorder,
        "base = sqlite3.connect('base', isolation_level=None)",
        "base.execute('PRAGMA journal_mode=WAL')",
        "base.execute('CREATE TABLE t (x)')",
        "base.execute('PRAGMA wal_checkpoint(TRUNCATE)')",
        "sync('base'); sync()",
        f"base.execute('PRAGMA synchronous={level}')",
        "for x in range(3): base.execute('INSERT INTO t VALUES (?)', (x,))",
    )
    lose_unsynced(recorder)
    base = sqlite3.connect(recorder.root / "base")
    assert base.execute("SELECT count(*) FROM t").fetchone() == (rows,)
    base.close()


def test_a_part_is_some_first_changes_and_sectors_of_the_next(recorder: Recorder) -> None:
    """Every length of the first write is seen, and never anything of the second without it."""
    sectors = 3
    seen = set()
    for seed in range(40):
        run(
            recorder,
            f"write('a', bytes({4 * SECTOR_BYTES}), sync=True); sync()",
            f"write('a', b'1' * {sectors * SECTOR_BYTES})",
            f"write('a', b'2', at={sectors * SECTOR_BYTES})",
        )
        lose_unsynced(recorder, random.Random(seed))
        found = (recorder.root / "a").read_bytes()
        assert len(found) == 4 * SECTOR_BYTES
        ones, second = found.count(b"1"), found.count(b"2")
        assert found == (b"1" * ones + b"2" * second).ljust(len(found), b"\0")
        assert ones == sectors * SECTOR_BYTES or not second
        seen.add((ones // SECTOR_BYTES, second))
        (recorder.root / "a").unlink()
    assert seen == {(0, 0), (1, 0), (2, 0), (3, 0), (3, 1)}
