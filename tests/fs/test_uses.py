"""The filesystem as programs use it: by many threads, with layers above a file, forgotten, closed
in the middle, over many steps.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import fsspec
import pytest

from ckpt.base.errors import Refused
from ckpt_client.fs.filesystem import CkptFileSystemBase

FS = CkptFileSystemBase
THREADS = 8


@pytest.fixture
def fresh(url: str) -> Iterator[FS]:
    """A filesystem that nobody has used yet."""
    made = fsspec.core.url_to_fs(url, skip_instance_cache=True)[0]
    yield made
    made.close()


def test_threads_that_use_it_first_at_once_write_into_one_transaction(fresh: FS, run: str) -> None:
    begin = threading.Barrier(THREADS)

    def write(number: int) -> None:
        begin.wait()
        fresh.pipe(f"{run}/1/{number}", bytes([number]))

    with fresh.transaction, ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(write, range(THREADS)))
    assert sorted(fresh.cat(fresh.ls(f"{run}/1", detail=False)).values()) == [
        bytes([number]) for number in range(THREADS)
    ]


def test_a_name_that_is_not_unicode_is_refused_and_the_connection_stays(fs: FS, run: str) -> None:
    name = b"\xff".decode(errors="surrogateescape")
    for look in (fs.exists, fs.ls, fs.cat_file):
        with pytest.raises(Refused, match="not valid Unicode"):
            look(f"{run}/{name}")
    assert not fs.exists(run)
