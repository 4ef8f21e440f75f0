"""What is counted is what is there, and what grew is named."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from tests.soak.footprint import Figure, leaks, measure, table

LEAKER = """
import mmap, os
print(flush=True)
input()
memory = mmap.mmap(-1, 8 << 20)
memory.write(bytes(8 << 20))
descriptors = [os.dup(0) for _ in range(3)]
print(flush=True)
input()
"""
"""A rank that leaks when it is told to. A process of its own: one that has run other tests may
serve a leak from memory that it has already.
"""


def store_at(directory: Path) -> None:
    """Files as a local cluster has them, with a catalog that its coordinator has for itself."""
    for folder in ("columns", "staging", "documents"):
        (directory / "targets" / "t0" / folder).mkdir(parents=True)
    with closing(sqlite3.connect(directory / "catalog.sqlite")) as catalog:
        catalog.execute("PRAGMA journal_mode = WAL")
        catalog.execute("CREATE TABLE launch (number INTEGER)")
        catalog.commit()
    (directory / "catalog.sqlite-wal").touch()


def test_every_leak_is_seen_and_named(tmp_path: Path) -> None:
    store_at(tmp_path)
    command = (sys.executable, "-c", LEAKER)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as rank:
        assert rank.stdin is not None
        assert rank.stdout is not None
        rank.stdout.readline()
        early = measure(tmp_path, {"rank 0": rank.pid})
        assert leaks(early, measure(tmp_path, {"rank 0": rank.pid})) == []
        rank.stdin.write(b"leak\n")
        rank.stdin.flush()
        rank.stdout.readline()
        for number in range(30):
            (tmp_path / "targets" / "t0" / "columns" / str(number)).touch()
        with closing(sqlite3.connect(tmp_path / "catalog.sqlite")) as catalog:
            catalog.executemany("INSERT INTO launch VALUES (?)", [(n,) for n in range(5)])
            catalog.commit()
            late = measure(tmp_path, {"rank 0": rank.pid})
    found = leaks(early, late)
    assert [one.partition(" grew")[0] for one in found] == [
        "catalog rows of launch",
        "descriptors of rank 0",
        "files of targets of columns",
        "resident KiB of rank 0",
    ]
    assert found[0].endswith("from 0 to 5")


def test_the_table_has_a_column_for_each_look() -> None:
    threads = Figure("threads", "t0")
    head, line = table({"200": {threads: 2}, "1000": {threads: 5}})
    assert head.split() == ["200", "1000", "growth", "allowed"]
    assert line.split() == ["threads", "of", "t0", "2", "5", "3", "0"]
