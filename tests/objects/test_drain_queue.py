"""Real workers under the coordinator's leases: shared parts, a dead worker, eviction, coming back.

What a worker has written it says in its log; what is done has receipts in the store.
"""

from __future__ import annotations

import json
import os
import re
import signal
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import ckpt
from ckpt.base.ids import RunName, Step
from ckpt.base.units import MiB
from ckpt.objects.documents import Receipt, decode
from ckpt.objects.names import COMMITTED
from ckpt.objects.reader import open_stored
from ckpt.objects.sinks.file_sink import FileSink
from ckpt.objects.stored_steps import stored_steps
from tests.e2e.cluster import Cluster, command
from tests.objects.drainkit import (
    DRAIN_TIMEOUT_S,
    Drain,
    assert_once_and_whole,
    draining,
    wait_drained,
)
from tests.waiting import wait_until

PARTS = 5
"""Arrays of a shard each, so each a part of its own."""
PART_BYTES = 65 * MiB
PROGRAM_BYTES = 128 * MiB
"""The interpreter and its libraries."""
SAVE_TIMEOUT_S = 60.0


CLUSTER_OPTIONS = "targets=3&code=2+1"


@pytest.fixture(scope="module")
def large(cluster: Cluster) -> dict[str, np.ndarray[tuple[int], np.dtype[np.uint8]]]:
    """Committed as large@1."""
    rng = np.random.default_rng(1)
    state = {f"w{n}": rng.integers(0, 255, PART_BYTES, "u1") for n in range(PARTS)}
    with ckpt.open(cluster.url) as store:
        store.save("large", 1, state, rank=0, world_size=1).wait(SAVE_TIMEOUT_S)
    return state


def worker(cluster: Cluster, sink: FileSink, log: Path, *options: str, cold: bool = False) -> Drain:
    to = f"{sink.url}?runs=large"
    return Drain(cluster.directory, to, "--compression", "none", *options, log=log, cold=cold)


def written(log: Path) -> int:
    """Raw bytes of the parts that a worker has written, as it says."""
    found = re.findall(r'"has written its parts".*?"bytes": "?(\d+)', log.read_text())
    return sum(map(int, found))


def receipts(sink: FileSink) -> int:
    """Raw bytes of parts that are done."""
    done = 0
    for key in sink.list("large@1/"):
        if "/drain/item-" in key:
            receipt = decode(Receipt, sink.get(key), key)
            done += sum(stored.bytes for _, _, stored in receipt.objects)
    return done


def raw_bytes(sink: FileSink) -> int:
    """Of all parts, in whole chunks, as workers count them."""
    stored = open_stored(sink, RunName("large"), Step(1))
    grids = [array.grid for array in stored.manifest.arrays]
    stored.close()
    return sum(
        grid.chunk_bytes
        for grid in grids
        for shard in range(grid.shard_count)
        for region in grid.chunks(grid.shard_at(shard))
        if region is not None
    )


def drained(sink: FileSink) -> None:
    wait_drained(sink, "large", 1)
    assert_once_and_whole(sink, "large", 1)


def test_two_workers_share_one_checkpoint_and_write_no_part_twice(
    cluster: Cluster, large: dict[str, object], tmp_path: Path
) -> None:
    sink, logs = FileSink(tmp_path / "store"), [tmp_path / "a.log", tmp_path / "b.log"]
    slow = ("--bandwidth-bytes", "40MB", "--threads", "1")
    workers = [worker(cluster, sink, log, *slow) for log in logs]
    try:
        drained(sink)
    finally:
        assert [one.stop() for one in workers] == [0, 0]
    shares = [written(log) for log in logs]
    assert all(shares), "both took part"
    assert sum(shares) == raw_bytes(sink)


def test_a_worker_holds_no_more_than_its_memory(
    cluster: Cluster, large: dict[str, object], tmp_path: Path
) -> None:
    sink, memory = FileSink(tmp_path / "store"), 128 * MiB
    one = worker(cluster, sink, tmp_path / "a.log", "--memory-bytes", str(memory), cold=True)
    try:
        drained(sink)
        peak = peak_bytes(one.process.pid)
    finally:
        assert one.stop() == 0
    assert peak < memory + PROGRAM_BYTES < PARTS * PART_BYTES


def peak_bytes(pid: int) -> int:
    """The most that a process had resident."""
    (kib,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(kib) * 1024


@pytest.mark.parametrize(
    "signal_number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)]
)
def test_what_a_lost_worker_has_finished_is_not_written_again(
    cluster: Cluster, large: dict[str, object], tmp_path: Path, signal_number: signal.Signals
) -> None:
    sink, log = FileSink(tmp_path / "store"), tmp_path / "b.log"
    first = worker(cluster, sink, tmp_path / "a.log", "--bandwidth-bytes", "60MB")
    try:
        wait_until(lambda: receipts(sink) >= 2 * PART_BYTES, "two parts", DRAIN_TIMEOUT_S)
        os.kill(first.process.pid, signal_number)
        if signal_number is signal.SIGKILL:
            first.process.wait()
        done = receipts(sink)
        assert done < PARTS * PART_BYTES
        second = worker(cluster, sink, log)
        try:
            drained(sink)
        finally:
            assert second.stop() == 0
        if first.process.poll() is None:
            os.kill(first.process.pid, signal.SIGCONT)
    finally:
        first.kill()
    whole = raw_bytes(sink)
    # Chunks are counted whole; a receipt may have been written behind the look at them.
    assert whole - done - 2 * PART_BYTES < written(log) < whole - done + PART_BYTES // 2
    found = ckpt.load(f"{sink.url}/large@1", rank=0, world_size=1)
    assert isinstance(found, dict)
    assert all((found[name] == value).all() for name, value in large.items())


# ------------------------------------------------------------------------ eviction


def small(step: int) -> dict[str, object]:
    return {"a": np.random.default_rng(step).integers(0, 255, 8 * MiB, "u1"), "step": step}


def save_all(store: ckpt.Store, run: str, steps: range) -> None:
    """Each is committed; one that is refused for space comes again until there is room."""
    for step in steps:
        is_saved = partial(is_committed, store, run, step)
        wait_until(is_saved, f"{run}@{step} has room", DRAIN_TIMEOUT_S)


def is_committed(store: ckpt.Store, run: str, step: int) -> bool:
    """By now."""
    return save_once(store, run, step) is None


def save_once(store: ckpt.Store, run: str, step: int) -> ckpt.CkptError | None:
    """Committed, or refused for now: for space, or by a target that was too busy to answer."""
    try:
        store.save(run, step, small(step), rank=0, world_size=1).wait(SAVE_TIMEOUT_S)
    except (ckpt.NoSpace, ckpt.Unavailable) as error:
        return error
    return None


@pytest.fixture
def full(mark: str, tmp_path: Path) -> Iterator[tuple[Cluster, FileSink]]:
    """Room for about six checkpoints of 8 MiB, and a place to drain to."""
    directory, sink = tmp_path / "burst", FileSink(tmp_path / "store")
    directory.mkdir()
    with draining(directory, sink.url, "targets=3&code=2+1&capacity=90MiB") as made:
        yield made, sink


def test_twelve_saves_go_through_room_for_six_and_every_step_can_be_loaded(
    full: tuple[Cluster, FileSink],
) -> None:
    cluster, sink = full
    with ckpt.open(cluster.url, durable=sink.url) as store:
        save_all(store, "long", range(1, 13))
        wait_drained(sink, "long", *range(1, 13))
        kept = [commit.step for commit in store.steps("long")]
        assert kept[-1] == 12
        assert len(kept) < 9
        assert kept == list(range(kept[0], 13)), "the oldest go first"
        with pytest.warns(UserWarning, match="long@1 is loaded from file://"):
            found = store.load("long", 1, rank=0, world_size=1)
        assert isinstance(found, dict)
        assert (found["a"] == small(1)["a"]).all()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            newest = store.load("long", rank=0, world_size=1)
        assert isinstance(newest, dict)
        assert newest["step"] == 12
    with ckpt.open(cluster.url) as plain, pytest.raises(ckpt.NotFound) as caught:
        plain.load("long", 1)
    assert f"durable='{sink.url}'" in caught.value.hint
    shown = json.loads(command("status", "--json", "--store", cluster.url).out)
    assert [store["backlog"] for store in shown["stores"]] == [0]


def test_what_somebody_deleted_in_the_store_is_drained_again_before_the_tier_lets_it_go(
    full: tuple[Cluster, FileSink],
) -> None:
    """Its marker alone went: no drain of another step notices, and it was evicted as stored."""
    cluster, sink = full
    with ckpt.open(cluster.url) as store:
        save_all(store, "again", range(1, 4))
        wait_drained(sink, "again", 1, 2, 3)
        sink.delete([f"again@1/{store.steps('again')[0].generation}/{COMMITTED}"])
        save_all(store, "again", range(4, 11))
        wait_drained(sink, "again", *range(1, 11))


@pytest.mark.slow
def test_without_a_store_that_answers_saves_are_refused_and_nothing_is_lost(
    full: tuple[Cluster, FileSink],
) -> None:
    cluster, sink = full
    with ckpt.open(cluster.url) as store:
        save_all(store, "stuck", range(1, 2))
        wait_until(
            lambda: [store.drained for store in cluster.status().stores] == [1], "step 1 is drained"
        )
        drain = cluster.ready()["drain_pid"]
        assert isinstance(drain, int)
        with cluster.stopped(drain):
            refused, step = None, 1
            while refused is None or "nothing may go" not in refused.message:
                step += refused is None
                refused = save_once(store, "stuck", step)
            held = {commit.step for commit in store.steps("stuck")}
            assert set(range(2, step)) == held, "only what is drained may go"
        assert f"nothing may go before it is drained: {len(held)} wait for" in refused.message
        assert refused.retry_after_s is not None
        save_all(store, "stuck", range(step, step + 3))
        wait_drained(sink, "stuck", *range(1, step + 3))


def test_a_run_that_the_tier_has_not_at_all_is_loaded_from_the_store_without_a_step(
    full: tuple[Cluster, FileSink],
) -> None:
    cluster, sink = full
    with ckpt.open(cluster.url, durable=sink.url) as store:
        save_all(store, "gone", range(1, 3))
        wait_drained(sink, "gone", 1, 2)
        for step in (1, 2):
            store.delete("gone", step)
        with pytest.warns(UserWarning, match="gone@2 is loaded from file://"):
            found = store.load("gone", rank=0, world_size=1)
        assert isinstance(found, dict)
        assert found["step"] == 2
        with pytest.raises(ckpt.NotFound):
            store.load("never", rank=0, world_size=1)


def test_a_command_waits_until_a_store_has_what_is_saved(cluster: Cluster, tmp_path: Path) -> None:
    sink = FileSink(tmp_path / "store")
    with ckpt.open(cluster.url) as store:
        store.save("waited", 1, {"a": np.arange(9)}, rank=0, world_size=1).wait(SAVE_TIMEOUT_S)
    unknown = command("drain", "wait", sink.url, "--store", cluster.url, codes=(10,))
    assert f"object store {sink.url} is not known" in unknown.err
    drain = Drain(cluster.directory, f"{sink.url}?runs=waited", log=tmp_path / "log")
    try:
        known = lambda: sink.url in [one.url for one in cluster.status().stores]  # noqa: E731
        wait_until(known, "its worker has come")
        ended = command("drain", "wait", sink.url, "--store", cluster.url, "--json")
    finally:
        drain.stop()
    assert [step for step, _ in stored_steps(sink, RunName("waited"))] == [1]
    summary = json.loads(ended.out.splitlines()[-1])
    assert (summary["message_type"], summary["stores"][0]["backlog"]) == ("summary", 0)
    again = command("drain", "wait", sink.url, "--store", cluster.url).out
    assert again == f"{sink.url} has all that was saved, waited@1 as the last\n"
    wait_until(
        lambda: all(not s.workers for s in cluster.status().stores if s.url == sink.url), "it left"
    )
    command("drain", "forget", sink.url, "--store", cluster.url)


def test_a_store_that_is_no_more_is_forgotten_by_a_command(
    cluster: Cluster, large: dict[str, object], tmp_path: Path
) -> None:
    sink = FileSink(tmp_path / "store")
    drain = worker(cluster, sink, tmp_path / "log")
    drained(sink)
    drain.stop()
    urls = lambda: [store.url for store in cluster.status().stores]  # noqa: E731
    assert sink.url in urls()
    wait_until(
        lambda: all(not s.workers for s in cluster.status().stores if s.url == sink.url), "it left"
    )
    command("drain", "forget", sink.url, "--store", cluster.url)
    assert sink.url not in urls()
