"""What did not change is referred to, not written again: such a checkpoint loads, verifies, drains
and outlives the step that holds its bytes, on a real cluster."""

from __future__ import annotations

import json
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import ckpt
from ckpt.base.limits import PAGE_BYTES
from ckpt.base.units import MiB, format_bytes
from ckpt.objects.sinks.file_sink import FileSink
from tests.e2e.cluster import OPTIONS, Cluster, command, runs
from tests.landing import in_turn
from tests.objects.drainkit import Drain, wait_drained
from tests.objects.sources import same_bits
from tests.waiting import wait_until

CLUSTER_OPTIONS = f"{OPTIONS}&restart=always"
WAIT_S = 60.0
RANKS = 2
ROWS, COLUMNS = 1024, 1536
"""Of one rank's shard, which is frozen: 6 MiB."""
FROZEN_BYTES = RANKS * (ROWS * COLUMNS * 4 + 3 * MiB)


def frozen(rank: int) -> np.ndarray:
    """A rank's own, 3 MiB."""
    return np.random.default_rng(rank).integers(0, 255, 3 * MiB, "u1")


def matrix() -> np.ndarray:
    """The whole sharded tensor."""
    return np.random.default_rng(99).random((RANKS * ROWS, COLUMNS), "f4")


def moving(rank: int, step: int) -> np.ndarray:
    """Another one at each step, 2 MiB."""
    return np.random.default_rng((rank, step)).integers(0, 255, 2 * MiB, "u1")


def state_of(rank: int, step: int) -> dict[str, object]:
    shard = matrix()[rank * ROWS : (rank + 1) * ROWS]
    return {
        "moving": moving(rank, step),
        "frozen": frozen(rank),
        "w": ckpt.Shard(shard, (RANKS * ROWS, COLUMNS), (rank * ROWS, 0)),
        "step": step,
    }


def save(store: ckpt.Store, run: str, step: int) -> ckpt.Commit:
    """All ranks', committed."""
    saves = [store.save(run, step, state_of(r, step), rank=r, world_size=RANKS) for r in range(2)]
    commits = [one.wait(WAIT_S) for one in saves]
    return commits[0]


def end_stagers(store: ckpt.Store) -> None:
    """What they hold in memory is gone with them."""
    pids = [stager.pid for stager in store._stagers.links.values()]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(map(runs, pids)), "the stagers' end")


@contextmanager
def saving(cluster: Cluster, **options: object) -> Iterator[ckpt.Store]:
    """A store whose stagers do not outlive it."""
    with ckpt.open(cluster.url, **options) as store:
        yield store
        end_stagers(store)


def load_own(store: ckpt.Store, run: str, rank: int, step: int | None = None) -> ckpt.Checkpoint:
    """This rank's tree was loaded and is right."""
    with store.resolve(run, step, rank=rank, world_size=RANKS) as found:
        state = found.load()
        assert isinstance(state, dict)
        assert state["step"] == found.step
        assert same_bits(state["moving"], moving(rank, found.step))
        assert same_bits(state["frozen"], frozen(rank))
        assert same_bits(state["w"].array, matrix()[rank * ROWS : (rank + 1) * ROWS])
        return found


def is_whole(state: object, step: int) -> bool:
    assert isinstance(state, dict)
    right = same_bits(state["w"], matrix())
    for rank in range(RANKS):
        right &= same_bits(state["frozen"][rank], frozen(rank))
        right &= same_bits(state["moving"][rank], moving(rank, step))
    return bool(right)


@pytest.fixture(autouse=True)
def healed(cluster: Cluster) -> None:
    """Every test begins with all targets."""
    cluster.heal()


@pytest.fixture(scope="module")
def commits(cluster: Cluster) -> list[ckpt.Commit]:
    """Of the run "lora", which was saved thrice."""
    with saving(cluster) as store:
        return [save(store, "lora", step) for step in (1, 2, 3)]


def test_a_commit_tells_what_was_not_written_again(commits: list[ckpt.Commit]) -> None:
    assert [commit.homes for commit in commits] == [(), (1,), (1,)]
    assert [commit.bytes_referenced for commit in commits] == [0, FROZEN_BYTES, FROZEN_BYTES]
    assert commits[0].bytes == pytest.approx(commits[1].bytes, abs=64 * 1024)


def test_listed_commits_and_show_tell_it_too(
    commits: list[ckpt.Commit], cluster: Cluster, store: ckpt.Store
) -> None:
    listed = store.steps("lora")
    assert [(one.homes, one.bytes_referenced, one.bytes) for one in listed] == [
        (one.homes, one.bytes_referenced, one.bytes) for one in commits
    ]
    shown = command("show", "lora@3", "--store", cluster.url).out
    assert "unchanged     18 MiB of it lie in step 1" in shown
    assert "unchanged" not in command("show", "lora@1", "--store", cluster.url).out


def test_every_caller_loads_it_with_two_targets_lost(
    commits: list[ckpt.Commit], cluster: Cluster, store: ckpt.Store
) -> None:
    cluster.kill("t0", "t3")
    for rank in range(RANKS):
        assert load_own(store, "lora", rank).source == "tier"
    assert is_whole(store.load("lora", whole=True), 3)
    with store.resolve("lora", rank=2, world_size=3) as found:
        like = {"w": ckpt.Box((900, 0), (700, COLUMNS)), "frozen": np.zeros(3 * MiB, "u1")}
        state = found.load(like=like, strict=False)
    assert isinstance(state, dict)
    assert same_bits(state["w"], matrix()[900:1600])
    assert same_bits(state["frozen"], frozen(0))


def test_a_stager_that_outlives_its_trainer_gives_what_it_holds_itself(cluster: Cluster) -> None:
    with ckpt.open(cluster.url) as store:
        assert [save(store, "memory", step).homes for step in (1, 2)] == [(), (1,)]
        pids = [stager.pid for stager in store._stagers.links.values()]
    with ckpt.open(cluster.url) as store:
        sources = [load_own(store, "memory", rank).source for rank in range(RANKS)]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert all("stager" in source.split("+") for source in sources)


def test_ranks_that_load_together_share_what_homes_hold(
    commits: list[ckpt.Commit], store: ckpt.Store
) -> None:
    checkpoints = [store.resolve("lora", 3, rank=rank, world_size=3) for rank in range(3)]
    gate = threading.Barrier(3)
    right: list[bool] = []

    def work(checkpoint: ckpt.Checkpoint) -> None:
        gate.wait()
        like = {"w": ckpt.Box((0, 0), (RANKS * ROWS, COLUMNS))}
        state = checkpoint.load(like=like, strict=False)
        assert isinstance(state, dict)
        right.append(bool(same_bits(state["w"], matrix())))

    threads = [threading.Thread(target=work, args=(one,)) for one in checkpoints]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for checkpoint in checkpoints:
        checkpoint.close()
    assert right == [True] * 3
    assert any("peers" in checkpoint.source for checkpoint in checkpoints)


def test_verify_reads_the_homes_columns_each_once(
    commits: list[ckpt.Commit], cluster: Cluster, store: ckpt.Store
) -> None:
    report = store.verify("lora", 3)
    assert report.state == "healthy"
    homes = [column.home for column in report.columns]
    assert homes == [""] * 12 + [f"1#{commits[0].generation}"] * 12
    for file in (file for files in cluster.columns_of("lora").values() for file in files):
        _, number, _, rank, column = file.name.split("-")
        if (number, rank, column) == ("1", "1", "4"):
            cluster.flip(file, 70_000)
            report = store.verify("lora", 3)
            cluster.flip(file, 70_000)  # As it was.
    assert report.state == "degraded"
    (wrong,) = [column for column in report.columns if column.state != "whole"]
    assert (wrong.rank, wrong.column, wrong.home) == (1, 4, f"1#{commits[0].generation}")


def test_what_is_drained_or_exported_holds_all_its_bytes(
    commits: list[ckpt.Commit], cluster: Cluster, tmp_path: Path
) -> None:
    sink = FileSink(tmp_path / "drained")
    drain = Drain(cluster.directory, f"{sink.url}?runs=lora")
    try:
        wait_drained(sink, "lora", 1, 2, 3)
    finally:
        assert drain.stop() == 0
    assert is_whole(ckpt.load(f"{sink.url}/lora@3", whole=True), 3)
    file = str(tmp_path / "out.npz")
    command("export", "lora@3", "--format", "npz", file, "--store", cluster.url)
    with np.load(file) as arrays:
        assert same_bits(arrays["w"], matrix())


def test_a_deleted_step_stays_for_those_that_refer_to_it(cluster: Cluster) -> None:
    with saving(cluster) as store:
        for step in (1, 2):
            save(store, "rm", step)
    line = ("rm", "rm@1", "--store", cluster.url)
    foretold = json.loads(command(*line, "--dry-run", "--json").out)
    assert (foretold["bytes_freed"], foretold["held_by"]) == (0, [2])
    assert "would stay until step 2, which refers to them, goes" in command(*line, "--dry-run").out
    told = command(*line, "--yes").out
    assert f"{format_bytes(foretold['bytes_held'])} stay until" in told
    assert "stay until step 2, which refers to them, goes" in told
    with ckpt.open(cluster.url) as store:
        assert [commit.step for commit in store.steps("rm")] == [2]
        for rank in range(RANKS):
            load_own(store, "rm", rank)
        assert store.verify("rm", 2).state == "healthy"

        def held() -> int:
            return sum(len(files) for files in cluster.columns_of("rm").values())

        # A column that moved to a spare, on a slow machine, lies in two places for a moment.
        wait_until(lambda: held() == 24, "two payloads of two steps")
    command("rm", "rm@2", "--yes", "--force", "--store", cluster.url)
    wait_until(lambda: not any(cluster.columns_of("rm").values()), "all columns are gone")


def lose_columns(cluster: Cluster, run: str, step: int) -> None:
    """More of rank 0's payload than parity mends, nearly everywhere."""
    for file in (file for files in cluster.columns_of(run).values() for file in files):
        _, number, _, rank, column = file.name.split("-")
        if (number, rank) == (str(step), "0") and int(column) < 3:
            for place in range(50_000, file.stat().st_size - 100_000, 100_000):
                cluster.flip(file, place)


def lose_index(cluster: Cluster, run: str, step: int) -> None:
    """No target has a page of it whole."""
    for file in cluster.indexes_of(run, step).values():
        for place in range(0, file.stat().st_size - 2 * PAGE_BYTES, PAGE_BYTES):
            cluster.flip(file, place + 20)


@pytest.mark.parametrize("lose", in_turn([lose_columns, lose_index], every=2))
def test_proved_damage_of_a_home_walks_back_past_those_that_refer_to_it(
    cluster: Cluster, lose: Callable[[Cluster, str, int], None]
) -> None:
    run = f"walk/{lose.__name__}"
    with saving(cluster, references=False) as store:
        save(store, run, 1)
    with saving(cluster) as store:
        assert [save(store, run, step).homes for step in (2, 3)] == [(), (2,)]
    lose(cluster, run, 2)
    with ckpt.open(cluster.url) as store, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert load_own(store, run, 0).step == 1
    assert any(f"{run}@3" in str(one.message) for one in told)
    with ckpt.open(cluster.url) as store, pytest.raises(ckpt.Lost, match=f"{run}@2"):
        store.load(run, 3, whole=True)
