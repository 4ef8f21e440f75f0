"""Four rank processes load one state from an object store: each byte leaves the store once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ckpt
from ckpt.objects.names import COMMITTED, MANIFEST, TREES
from ckpt.objects.sinks.file_sink import FileSink
from tests.e2e.cluster import Cluster, command
from tests.e2e.ranks import Answer, done, every, launched
from tests.e2e.states import digests_of
from tests.landing import in_turn
from tests.objects.drainkit import draining, rot, wait_drained
from tests.objects.http_store import HttpStore, served

RANKS = 4
PATIENCE_S = 8.0
"""Of a load whose peer hangs: so long its launch waits for that one in the end."""
RUNS = ("lost", "gone", "died", "hung")


def content() -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
    """40 MB in chunks that are stored as they are, compressed, at an edge, and packed together."""
    rng = np.random.default_rng(7)
    half = rng.standard_normal((2000, 1500)).astype("<f4").view("<u4") & np.uint32(0xFFFF0000)
    return {
        "plain": rng.integers(0, 256, 16 << 20, np.uint8),
        "edge": rng.integers(0, 256, 9_000_001, np.uint8),
        "half": half.view("<f4"),
        "small": rng.standard_normal((300, 200)),
    }


@pytest.fixture(scope="module")
def cluster(
    mark: str, tmp_path_factory: pytest.TempPathFactory, sink: FileSink
) -> Iterator[Cluster]:
    """It has drained every run, and has none of them any more: rotten, or deleted."""
    with draining(tmp_path_factory.mktemp("burst"), sink.url) as made:
        with ckpt.open(made.url) as store:
            for run in RUNS:
                store.save(run, 1, ckpt.Replicated(content())).wait(60.0)
            for (
                stager
            ) in store._stagers.links.values():  # Its memory would still hold the last one.
                os.kill(stager.pid, signal.SIGKILL)
        for run in RUNS:
            wait_drained(sink, run, 1)
            rot(made, run, 1)
        command("rm", "gone@1", "--yes", "--force", "--store", made.url)
        yield made


@pytest.fixture
def web(cluster: Cluster, sink: FileSink) -> Iterator[HttpStore]:
    """The drained runs, behind a server that counts."""
    with served(Path(sink.url.removeprefix("file://"))) as store:
        yield store


def shards(sink: FileSink, run: str) -> dict[str, int]:
    """Objects of the run's arrays, and their bytes: chunks and index."""
    return {name: sink.head(name) or 0 for name in sink.list(f"{run}@1/") if "/c/" in name}


def moved_by(load: Answer) -> dict[str, int]:
    """A rank's own count."""
    moved = load["moved"]
    assert isinstance(moved, dict)
    return moved


def test_what_is_lost_in_the_tier_leaves_the_store_once(
    cluster: Cluster, sink: FileSink, web: HttpStore
) -> None:
    unique = sum(shards(sink, "lost").values())
    web.meet(RANKS)
    with launched(cluster.url, RANKS, launch="lost", durable=web.url) as team:
        loads = done(every(team, "load_whole", run="lost"))
    assert [load["digests"] for load in loads] == [digests_of(content())] * RANKS
    moved = [moved_by(load) for load in loads]
    assert 0.99 * unique <= sum(each["fetched_bytes"] for each in moved) <= 1.05 * unique
    assert web.given_bytes <= 1.05 * unique, "all documents too"
    for load, each in zip(loads, moved, strict=True):
        assert each["wanted_bytes"] <= each["fetched_bytes"] + each["peer_bytes"]
        assert load["sources"] in (["peers", "store"], ["store"])
    assert sum(each["peer_bytes"] for each in moved) >= 0.9 * (RANKS - 1) * unique
    assert web.asked["index"] == 0, "where chunks lie the manifest says"
    documents = [web.asked[name] for name in (COMMITTED, MANIFEST, TREES)]
    assert documents == [RANKS] * 3


def test_what_the_tier_knows_nothing_of_leaves_the_store_once(
    cluster: Cluster, sink: FileSink, web: HttpStore
) -> None:
    web.meet(RANKS)
    with launched(cluster.url, RANKS, launch="gone", durable=web.url) as team:
        loads = done(every(team, "load_instead", run="gone", step=1))
    assert [load.value for load in loads] == [digests_of(content())] * RANKS
    assert web.given_bytes <= 1.05 * sum(shards(sink, "gone").values())


@pytest.mark.parametrize("harm", in_turn(["died", "hung"], every=2))
def test_ranks_fetch_themselves_what_a_peer_does_not_give(
    cluster: Cluster, sink: FileSink, web: HttpStore, harm: str
) -> None:
    web.meet(RANKS)
    web.pause(after_chunks=2)
    with launched(cluster.url, RANKS, launch=harm, durable=web.url) as team:
        for rank in team:
            rank.tell("load_whole", run=harm, timeout_s=PATIENCE_S)
        assert web.wait_paused(120.0), "the ranks are in the middle of it"
        last = team[-1]
        last.process.send_signal(signal.SIGKILL if harm == "died" else signal.SIGSTOP)
        web.go_on()
        loads = done([rank.heard() for rank in team[:-1]])
    assert [load["digests"] for load in loads] == [digests_of(content())] * (RANKS - 1)


def test_a_rank_that_loads_alone_waits_for_nobody(cluster: Cluster, web: HttpStore) -> None:
    with launched(cluster.url, RANKS, launch="alone", durable=web.url) as team:
        load = done([team[2].ask("load_whole", run="lost", step=1)])[0]
    assert load["digests"] == digests_of(content())
    assert load["sources"] == ["store"]
