"""A cluster that drains into a directory: everything arrives once, also with a killed worker."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest
from msgspec.structs import replace

import ckpt
from ckpt.base.units import MiB
from ckpt.objects.grid import CHUNK_BYTES
from ckpt.objects.pace import IDLE_CREDIT_S
from ckpt.objects.planning import WriteOptions
from ckpt.objects.sinks.file_sink import FileSink
from ckpt.objects.writer import WriteLimits, write_checkpoint
from ckptd.drain import daemon, worker
from tests.e2e.cluster import Cluster, command
from tests.objects.drainkit import (
    DRAIN_TIMEOUT_S,
    Drain,
    assert_once_and_whole,
    assert_same,
    draining,
    save,
    wait_drained,
)
from tests.objects.sources import HEADER, MemorySource
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two directories to drain to: the second keeps two steps of runs named keep*."""
    return tmp_path_factory.mktemp("all"), tmp_path_factory.mktemp("two")


@pytest.fixture(scope="module")
def cluster(
    mark: str, tmp_path_factory: pytest.TempPathFactory, places: tuple[Path, Path]
) -> Iterator[Cluster]:
    one, two = places
    to = f"file://{one}?runs=all*,keep* file://{two}?runs=keep*&keep=2"
    with draining(tmp_path_factory.mktemp("burst"), to) as made:
        yield made


def test_every_commit_arrives_and_loads_without_the_cluster(
    cluster: Cluster, store: ckpt.Store, places: tuple[Path, Path]
) -> None:
    sink = FileSink(places[0])
    for step in (1, 2):
        save(store, "all", step)
    wait_drained(sink, "all", 1, 2)
    for step in (1, 2):
        assert_once_and_whole(sink, "all", step)
        assert_same(ckpt.load(f"{sink.url}/all@{step}", whole=True), step)
    own = ckpt.load(f"{sink.url}/all", rank=1, world_size=2)
    mine = store.load("all", 2, rank=1, world_size=2)
    assert isinstance(own, dict)
    assert isinstance(mine, dict)
    assert (own["rng"] == mine["rng"]).all()
    assert (own["w"].array == mine["w"].array).all()
    assert list(own) == list(mine)


def test_a_run_whose_name_is_longer_than_a_file_systems_arrives_too(
    store: ckpt.Store, places: tuple[Path, Path]
) -> None:
    """80 letters of three bytes are 720 of a file's name: the drain failed again and again."""
    sink, name = FileSink(places[0]), "all" + "模" * 80
    save(store, name, 1)
    wait_drained(sink, name, 1)
    assert_once_and_whole(sink, name, 1)
    assert_same(ckpt.load(f"{sink.url}/{name}@1", whole=True), 1)


def test_each_store_has_its_own_retention(store: ckpt.Store, places: tuple[Path, Path]) -> None:
    for step in (1, 2, 3):
        save(store, "keep", step)
        wait_drained(FileSink(places[1]), "keep", *range(max(1, step - 1), step + 1))
    wait_drained(FileSink(places[0]), "keep", 1, 2, 3)
    wait_until(lambda: not list(FileSink(places[1]).list("keep@1/")), "step 1 is gone")
    assert not list(FileSink(places[1]).list("all"))


def test_a_step_that_is_saved_again_is_in_a_store_once(
    store: ckpt.Store, places: tuple[Path, Path]
) -> None:
    """What the newer one replaced goes, and never comes to light again."""
    sink = FileSink(places[0])
    for _ in range(2):
        save(store, "all-twice", 1)
        wait_drained(sink, "all-twice", 1)
    newest = str(store.steps("all-twice")[0].generation)
    wait_until(lambda: sink.children("all-twice@1/") == [f"{newest}/"], "the newest alone is there")


def test_what_somebody_removed_from_a_store_is_drained_again(
    store: ckpt.Store, places: tuple[Path, Path]
) -> None:
    """By hand, or by another cluster's retention. Else the tier would evict the only copy."""
    sink = FileSink(places[0])
    for step in (1, 2):
        save(store, "all-removed", step)
    wait_drained(sink, "all-removed", 1, 2)
    assert_once_and_whole(sink, "all-removed", 1)
    shutil.rmtree(places[0] / "all-removed@1")
    save(store, "all-removed", 3)
    wait_drained(sink, "all-removed", 1, 2, 3)
    assert_once_and_whole(sink, "all-removed", 1)


def wait_refused(cluster: Cluster, sink: FileSink, step: str, *newer: int) -> None:
    """Until the store's error names the step, and newer ones of a cluster called foreign."""
    named = ", ".join(f"{one} (cluster foreign)" for one in newer)

    def is_refused() -> bool:
        shown = json.loads(command("status", "--json", "--store", cluster.url).out)
        (error,) = [store["error"] for store in shown["stores"] if store["url"] == sink.url]
        return error.startswith(f"{step}: {sink.url} keeps 2 steps") and named in error

    wait_until(is_refused, f"{step} is refused for {named}", 30.0)


def put_foreign(sink: FileSink, run: str, *steps: int) -> None:
    """As another cluster drains them, of a training that uses the same name."""
    for step in steps:
        header = replace(HEADER, run=run, step=step, cluster="foreign")
        source = MemorySource({"w": np.arange(9)}, header=header)
        write_checkpoint(sink, source, WriteOptions(), WriteLimits())


def test_a_step_that_another_clusters_steps_would_delete_at_once_is_refused_by_name(
    cluster: Cluster, store: ckpt.Store, places: tuple[Path, Path]
) -> None:
    """It was drained and deleted without end; between the two the tier could evict it."""
    sink = FileSink(places[1])
    put_foreign(sink, "keep-shared", 100, 101)
    there = list(sink.list("keep-shared@"))
    save(store, "keep-shared", 1)
    try:
        wait_refused(cluster, sink, "keep-shared@1", 100, 101)
        assert list(sink.list("keep-shared@")) == there
    finally:
        command("rm", "keep-shared@1", "--yes", "--force", "--store", cluster.url)


def test_what_another_clusters_retention_took_away_counts_as_lost(
    cluster: Cluster, store: ckpt.Store, places: tuple[Path, Path]
) -> None:
    """Its newer steps made it look expired: the tier still took it for stored, and might evict."""
    sink = FileSink(places[1])
    for step in (1, 2):
        save(store, "keep-taken", step)
    wait_drained(sink, "keep-taken", 1, 2)
    put_foreign(sink, "keep-taken", 3, 4)
    for step in (1, 2):
        shutil.rmtree(places[1] / f"keep-taken@{step}")
    save(store, "keep-taken", 5)
    try:
        wait_refused(cluster, sink, "keep-taken@2", 4)
        wait_drained(sink, "keep-taken", 4, 5)
    finally:
        for step in (1, 2, 5):
            command("rm", f"keep-taken@{step}", "--yes", "--force", "--store", cluster.url)


def test_status_and_metrics_tell_how_far_it_is(
    cluster: Cluster, store: ckpt.Store, places: tuple[Path, Path]
) -> None:
    save(store, "keep-told", 1)

    def stores() -> list[dict[str, object]]:
        shown = json.loads(command("status", "--json", "--store", cluster.url).out)
        return list(shown["stores"])

    def idle() -> bool:
        return all(s["state"] == "idle" and s["last"] == "keep-told@1" for s in stores())

    wait_until(idle, "nothing is left to drain", DRAIN_TIMEOUT_S)
    found = {store["url"]: store for store in stores()}
    assert sorted(found) == sorted(f"file://{place}" for place in places)
    kept = found[f"file://{places[1]}"]
    assert (kept["keep"], kept["runs"], kept["conditional"]) == (2, ["keep*"], True)
    assert kept["backlog"] == 0
    assert kept["drained"] >= 1
    shown = command("status", "--store", cluster.url).out
    assert f"file://{places[1]}  idle, 1 worker" in shown
    text = metrics(cluster)
    label = f'{{store="file://{places[1]}"}}'
    assert f"ckpt_drain_backlog{label} 0\n" in text
    assert f"ckpt_drain_checkpoints_total{label} {kept['drained']}\n" in text
    assert f"ckpt_drain_workers{label} 1\n" in text
    assert f"ckpt_drain_oldest_undrained_timestamp_seconds{label}" not in text


def metrics(cluster: Cluster) -> str:
    """The coordinator's own page."""
    token = (cluster.directory / "metrics.token").read_text().strip()
    request = urllib.request.Request(f"http://{cluster.ready()['http']}/metrics")
    request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return str(answer.read().decode())


def test_the_supervisor_starts_a_killed_worker_again(
    cluster: Cluster, store: ckpt.Store, places: tuple[Path, Path]
) -> None:
    first = cluster.ready()["drain_pid"]
    assert isinstance(first, int)
    os.kill(first, signal.SIGKILL)
    save(store, "all-again", 3)
    wait_drained(FileSink(places[0]), "all-again", 3)
    assert cluster.ready()["drain_pid"] not in (first, None)


# tests/stores kills at requests; here between two bytes of a file.
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 10))]
)
def test_a_worker_killed_anywhere_leaves_each_checkpoint_whole_or_absent(
    cluster: Cluster, store: ckpt.Store, tmp_path: Path, seed: int
) -> None:
    run = f"killed-{seed}"
    save(store, run, 1)
    sink = FileSink(tmp_path)
    to, slow = f"{sink.url}?runs={run}", ("--bandwidth-bytes", "20MB", "--compression", "none")
    enough = random.Random(seed).randrange(1, 12_000_000)
    drain = Drain(cluster.directory, to, *slow)
    try:
        what = f"seed {seed}: {enough} bytes"
        wait_until(lambda: bytes_below(tmp_path) >= enough, what, DRAIN_TIMEOUT_S)
    finally:
        drain.kill()
    again = Drain(cluster.directory, to)
    try:
        wait_drained(sink, run, 1)
        assert_once_and_whole(sink, run, 1)
        assert_same(ckpt.load(f"{sink.url}/{run}@1", whole=True), 1)
    finally:
        assert again.stop() == 0


def test_a_drained_step_is_fetched_back_as_its_ranks_saved_it(
    cluster: Cluster, store: ckpt.Store, places: tuple[Path, Path]
) -> None:
    save(store, "all-back", 7)
    sink = FileSink(places[0])
    wait_drained(sink, "all-back", 7)
    command("rm", "all-back@7", "--yes", "--force", "--store", cluster.url)
    assert store.steps("all-back") == []
    with ckpt.open(cluster.url, durable=sink.url) as other:
        with pytest.warns(UserWarning, match="all-back@7 is loaded from file://"):
            found = other.load("all-back", 7, whole=True)
        assert_same(found, 7)
        with pytest.raises(ckpt.NotFound):
            other.load("all-back", 8, whole=True)
    command("fetch", f"{sink.url}/all-back@7", "--store", cluster.url)
    assert [commit.step for commit in store.steps("all-back")] == [7]
    assert_same(store.load("all-back", 7, whole=True), 7)
    mine = store.load("all-back", 7, rank=1, world_size=2)
    assert isinstance(mine, dict)
    assert mine["w"].offset == (3000, 0)
    assert mine["same"]["lr"] == 0.5
    assert mine["rng"].tolist() == [1, 7]


def test_what_was_known_of_a_step_comes_back_with_it(
    cluster: Cluster, store: ckpt.Store, places: tuple[Path, Path]
) -> None:
    known = {"loss": 0.25, "tokens": 1e12}
    for rank, metrics in enumerate((None, known)):
        last = store.save("all-known", 7, {}, rank=rank, world_size=2, metrics=metrics)
    last.wait(60.0)
    sink = FileSink(places[0])
    wait_drained(sink, "all-known", 7)
    command("rm", "all-known@7", "--yes", "--force", "--store", cluster.url)
    command("fetch", f"{sink.url}/all-known@7", "--store", cluster.url)
    assert [commit.metrics for commit in store.steps("all-known")] == [known]


def test_a_drain_keeps_its_bandwidth(cluster: Cluster, store: ckpt.Store, tmp_path: Path) -> None:
    run, rate, sink = "capped", 8_000_000, FileSink(tmp_path)
    rows = np.random.default_rng(3).integers(0, 255, (5, 8 * MiB), "u1")
    store.save(run, 1, {"w": rows}, rank=0, world_size=1).wait(60.0)
    to, capped = f"{sink.url}?runs={run}", ("--bandwidth-bytes", str(rate), "--compression", "none")
    begun_s = time.monotonic()
    drain = Drain(cluster.directory, to, *capped)
    try:
        wait_drained(sink, run, 1)
    finally:
        drain.stop()
    # The last chunk may go at once when its turn comes, and a second of idling is made up for.
    assert time.monotonic() - begun_s >= (rows.nbytes - CHUNK_BYTES) / rate - IDLE_CREDIT_S
    assert_once_and_whole(sink, run, 1)


def test_what_the_tier_deleted_half_drained_is_abandoned(
    cluster: Cluster, store: ckpt.Store, tmp_path: Path
) -> None:
    for step in (1, 2):
        save(store, "left", step)
    sink = FileSink(tmp_path)
    to, plain = f"{sink.url}?runs=left", ("--compression", "none", "--abandon-s", "0.5")
    drain = Drain(cluster.directory, to, "--bandwidth-bytes", "1MB", *plain)
    try:
        wait_until(lambda: any(sink.list("left@1/")), "step 1 is begun", DRAIN_TIMEOUT_S)
    finally:
        drain.kill()
    command("rm", "left@1", "--yes", "--force", "--store", cluster.url)
    again = Drain(cluster.directory, to, *plain)
    try:
        wait_drained(sink, "left", 2)
        left = lambda: [*sink.list("left@1/"), *sink.pending_uploads("left@1/")]  # noqa: E731
        wait_until(lambda: not left(), "step 1 is gone", DRAIN_TIMEOUT_S)
        assert_once_and_whole(sink, "left", 2)
    finally:
        assert again.stop() == 0


def test_a_store_that_was_emptied_is_filled_again_though_nobody_saves(
    cluster: Cluster, store: ckpt.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = Event()
    monkeypatch.setattr(worker, "LOOK_AGAIN_S", 0.5)
    monkeypatch.setattr(daemon, "set_by_signals", lambda: stopped)
    to, address = f"file://{tmp_path}?runs=emptied", str(cluster.ready()["address"])
    secret = bytes.fromhex((cluster.directory / "secret").read_text().strip())
    config = daemon.DrainConfig(to=to, coordinator=address, poll_s=0.2)
    serving = Thread(target=daemon.run_drain, args=(config, secret))
    serving.start()
    try:
        sink = FileSink(tmp_path)
        save(store, "emptied", 1)
        wait_drained(sink, "emptied", 1)
        assert_once_and_whole(sink, "emptied", 1)
        shutil.rmtree(tmp_path)
        wait_drained(sink, "emptied", 1)
        assert_once_and_whole(sink, "emptied", 1)
    finally:
        stopped.set()
        serving.join()


def test_two_workers_share_a_store(cluster: Cluster, store: ckpt.Store, tmp_path: Path) -> None:
    sink = FileSink(tmp_path)
    for step in (1, 2):
        save(store, "shared", step)
    workers = [Drain(cluster.directory, f"{sink.url}?runs=shared") for _ in range(2)]
    try:
        wait_drained(sink, "shared", 1, 2)
        for step in (1, 2):
            assert_once_and_whole(sink, "shared", step)
    finally:
        for worker in workers:
            assert worker.stop() == 0


def bytes_below(folder: Path) -> int:
    """Of all files that are there at this moment; a worker renames and removes some."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += Path(place, name).stat().st_size
    return total
