"""The filesystem as programs use it: by many threads, with layers above a file, forgotten, closed
in the middle, over many steps.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import fsspec
import pytest
import zarr

from ckpt.base.errors import CkptError, Refused
from ckpt.base.ids import RunName, Step
from ckpt_client.fs.step_files import CkptFileSystemBase
from ckpt_client.fs.steps import IDLE_MAX
from tests.no_threads import no_threads
from tests.small_disk import small_files

FS = CkptFileSystemBase
THREADS = 8
PATIENCE_S = 60.0
THREADS_OF_A_FILESYSTEM = 2
"""Its conversation with the coordinator, and the sweeper of what it holds."""
THREADS_OF_A_HOLD = 2
"""Its session, and its way to the targets."""


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


# --------------------------------------------------------------------------- layers above a file


class Failure(Exception):
    """Of the block under test."""


LAYERS: list[dict[str, str]] = [
    {"mode": "w"},
    {"mode": "wt", "compression": "gzip"},
    {"mode": "wb", "compression": "gzip"},
    {"mode": "wb", "compression": "bz2"},
    {"mode": "wb", "compression": "zip"},
]


@pytest.mark.parametrize("options", LAYERS)
def test_what_was_written_through_layers_is_stored_with_them(
    fs: FS, run: str, options: dict[str, str]
) -> None:
    content = b"content" if "b" in options["mode"] else "content"
    with fs.open(f"{run}/x", **options) as file:
        file.write(content)
    reading = options | {"mode": options["mode"].replace("w", "r")}
    with fs.open(f"{run}/x", **reading) as file:
        assert file.read() == content


@pytest.mark.parametrize("options", LAYERS)
def test_layers_that_are_left_by_an_error_or_forgotten_store_nothing(
    fs: FS, run: str, options: dict[str, str]
) -> None:
    half = b"half" if "b" in options["mode"] else "half"

    def fail() -> None:
        with fs.open(f"{run}/x", **options) as file:
            file.write(half)
            raise Failure

    fs.pipe(f"{run}/x", b"whole")
    with pytest.raises(Failure):
        fail()
    fs.open(f"{run}/x", **options).write(half)
    gc.collect()
    assert fs.cat(f"{run}/x") == b"whole"
    assert not fs.live.writing


def test_layers_that_cannot_be_are_refused_and_store_nothing(fs: FS, run: str) -> None:
    for options in ({"compression": "none such"}, {"mode": "w", "encoding": "none such"}):
        with pytest.raises((ValueError, LookupError)):
            fs.open(f"{run}/x", **{"mode": "wb", **options})
    gc.collect()
    assert not fs.exists(f"{run}/x")
    assert not fs.live.writing


# --------------------------------------------------------------------------- ends in the middle


def test_a_forgotten_file_leaves_no_memory(fs: FS, run: str) -> None:
    fs.open(f"{run}/x", "wb").write(b"half")
    gc.collect()
    assert not fs.live.writing


def test_a_local_copy_is_whole_or_as_it_was(fs: FS, run: str, tmp_path: Path) -> None:
    """Its disk is full, or others get the same file to the same place meanwhile."""
    path, local, content = f"{run}/1/a", tmp_path / "a", os.urandom(300_000)
    fs.pipe(path, content)
    local.write_bytes(b"before")
    with small_files(100_003), pytest.raises(OSError, match="File too large"):
        fs.get(path, str(local))
    assert local.read_bytes() == b"before"
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda _: fs.get(path, str(local)), range(THREADS)))
    assert local.read_bytes() == content
    assert list(tmp_path.iterdir()) == [local]
    with (tmp_path / "stream").open("wb") as stream:
        fs.get_file(path, stream)
    assert (tmp_path / "stream").read_bytes() == content


def test_an_interpreter_that_ends_with_open_files_ends(url: str, fs: FS, run: str) -> None:
    script = f"""if True:
        import fsspec
        fs = fsspec.core.url_to_fs({url!r})[0]
        fs.pipe({run!r} + "/there", b"there")
        kept = [fs.open({run!r} + "/there", "r"), fs.open({run!r} + "/bytes", "wb")]
        kept[0].read(1), kept[1].write(b"x")
        texts = [fs.open({run!r} + "/text", "w"), fsspec.open({f"{url}/{run}/of"!r}, "w").open()]
        [text.write("x") for text in texts]
    """
    done = subprocess.run([sys.executable, "-c", script], check=False, timeout=PATIENCE_S)
    assert done.returncode == 0
    assert fs.ls(run, detail=False) == [f"{run}/there"]


def test_closing_the_filesystem_ends_writers_of_other_threads(fresh: FS, run: str) -> None:
    begun = threading.Event()

    def write() -> str:
        try:
            for number in range(1000):
                fresh.pipe(f"{run}/{number}/x", bytes(1000))
                begun.set()
        except CkptError as error:
            return error.message
        return ""

    with ThreadPoolExecutor(1) as threads:
        ended = threads.submit(write)
        assert begun.wait(PATIENCE_S)
        while not ended.done():
            fresh.close()
        assert "closed" in ended.result()


def test_a_closed_filesystem_leaves_no_descriptor_and_no_thread(fresh: FS, run: str) -> None:
    def open_now() -> tuple[int, ...]:
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    before = open_now()
    for number in range(3):
        fresh.pipe(f"{run}/{number}/x", b"x")
        fresh.cat(f"{run}/{number}/x")
        fresh.close()
    gc.collect()
    # Other filesystems of this process let go of what they hold meanwhile.
    assert all(now <= then for now, then in zip(open_now(), before, strict=True))


# --------------------------------------------------------------------------- many steps


def test_listing_and_reading_many_steps_keeps_few_sessions(fs: FS, fresh: FS, run: str) -> None:
    paths = [f"{run}/{step}/x" for step in range(2 * IDLE_MAX)]
    for path in paths:
        fs.pipe(path, path.encode())
    before = threading.active_count()
    assert fresh.find(run) == sorted(paths)
    assert threading.active_count() <= before + THREADS_OF_A_FILESYSTEM
    assert fresh.cat(paths) == {path: path.encode() for path in paths}
    sessions = threading.active_count() - before - THREADS_OF_A_FILESYSTEM
    assert sessions <= (IDLE_MAX + 1) * THREADS_OF_A_HOLD


def test_a_step_that_is_read_without_a_sweeper_is_let_go_by_the_next_one(
    fs: FS, fresh: FS, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where its session has got the last thread that the system gives."""
    for step in (1, 2):
        fs.pipe(f"{run}/{step}/a", b"x")
    steps = fresh.live.steps
    resolve = steps._resolve
    with ExitStack() as held, monkeypatch.context() as patched:

        def resolved(*args: Any) -> Any:
            found = resolve(*args)
            held.enter_context(no_threads())
            return found

        patched.setattr(steps, "_resolve", resolved)
        steps.hold(RunName(run), Step(1), None).close()
    assert steps._sweeper is None
    steps.hold(RunName(run), Step(2), None).close()
    assert steps._sweeper is not None
    assert not steps._held[RunName(run), Step(1)].users


def test_a_forked_child_keeps_no_session_of_a_writer(url: str, run: str) -> None:
    """It would keep what a writer that died has not committed."""
    script = f"""if True:
        import os, warnings, fsspec
        warnings.simplefilter("ignore")
        fs = fsspec.core.url_to_fs({url!r})[0]
        fs.pipe({run!r} + "/1/__0_0.distcp", b"waits for its commit")
        child = os.fork()
        if not child:
            opened = [os.stat(f"/proc/self/fd/{{fd}}").st_mode for fd in range(3, 256)
                      if os.path.exists(f"/proc/self/fd/{{fd}}")]
            os._exit(sum(mode & 0o170000 == 0o140000 for mode in opened))
        raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    done = subprocess.run([sys.executable, "-c", script], check=False, timeout=PATIENCE_S)
    assert done.returncode == 0


def test_zarr_overwrites_what_is_not_there_yet_in_a_transaction(fs: FS, run: str) -> None:
    """With `overwrite`, Zarr removes the array's folder first, whether or not there is one."""
    grid, store = bytes(range(12)), fs.get_mapper(f"{run}/7/grid.zarr")
    with fs.transaction:
        array = zarr.create_array(store, shape=(12,), chunks=(4,), dtype="u1", overwrite=True)
        array[:] = memoryview(grid)
        assert not fs.exists(f"{run}/7")
    assert len(fs.find(f"{run}/7")) == 4
    assert zarr.open_array(store, mode="r")[:].tobytes() == grid


def test_a_folder_that_is_not_there_is_not_found_below_a_step(fs: FS, run: str) -> None:
    for path in (f"{run}/7/sub", f"{run}/7/sub/below"):
        with pytest.raises(FileNotFoundError):
            fs.rm(path, recursive=True)


def test_a_folder_that_waits_for_its_commit_is_taken_back(fs: FS, run: str) -> None:
    with fs.transaction:
        for name in ("keep", "sub/a", "sub/b"):
            fs.pipe(f"{run}/7/{name}", b"1")
        fs.rm(f"{run}/7/sub", recursive=True)
    assert fs.find(run) == [f"{run}/7/keep"]


def test_a_folder_of_a_step_that_is_replaced_is_removed_by_the_commit(fs: FS, run: str) -> None:
    fs.pipe({f"{run}/7/keep": b"1", f"{run}/7/sub/a": b"1"})
    with fs.transaction:
        fs.pipe(f"{run}/7/keep", b"2")
        fs.rm(f"{run}/7/sub", recursive=True)
    assert fs.find(run) == [f"{run}/7/keep"]


def test_a_refused_removal_takes_nothing_back(fs: FS, run: str) -> None:
    fs.pipe({f"{run}/7/keep": b"1", f"{run}/7/sub/a": b"1"})
    with pytest.raises(Refused, match="goes as a whole"):
        fs.rm(f"{run}/7/sub", recursive=True)
    assert fs.find(run) == [f"{run}/7/keep", f"{run}/7/sub/a"]


def test_of_two_files_of_a_step_that_are_open_at_once_neither_is_lost(
    fs: FS, fresh: FS, run: str
) -> None:
    first, second = fs.open(f"{run}/7/a", "wb"), fresh.open(f"{run}/7/b", "wb")
    with pytest.raises(Refused, match=r"7/a.* this one alone would replace"):
        fs.open(f"{run}/7/c", "wb")
    first.close()
    with pytest.raises(Refused, match=r"7/a.* this one alone would replace"):
        second.close()
    assert fs.find(run) == [f"{run}/7/a"]
