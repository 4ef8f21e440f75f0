"""A step that rotted in the tier beyond repair, and that the drain has put into a directory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import ckpt
from ckpt.base.ids import Rank
from ckpt.objects.sinks.file_sink import FileSink
from tests.e2e.cluster import Cluster, command
from tests.e2e.ranks import done, end_with_stagers, every, launched, save_and_wait
from tests.objects.drainkit import (
    FILLER_BYTES,
    assert_same,
    draining,
    rot,
    save,
    wait_drained,
)


@pytest.fixture(scope="module")
def cluster(
    mark: str, tmp_path_factory: pytest.TempPathFactory, sink: FileSink
) -> Iterator[Cluster]:
    with draining(tmp_path_factory.mktemp("burst"), sink.url) as made:
        yield made


def test_the_newest_step_comes_from_the_store_and_is_fetched_back(
    cluster: Cluster, store: ckpt.Store, sink: FileSink
) -> None:
    for step in (1, 2):
        save(store, "rotten", step)
    wait_drained(sink, "rotten", 1, 2)
    rot(cluster, "rotten", 2)
    with ckpt.open(cluster.url, durable=sink.url) as other:
        with pytest.warns(UserWarning, match=r"rotten@2\S* is lost in the tier; .* from file://"):
            found = other.load("rotten", whole=True)
        assert_same(found, 2)
        with other.resolve("rotten", rank=1, world_size=2) as checkpoint:
            with pytest.warns(UserWarning, match="is lost in the tier"):
                mine = checkpoint.load()
            assert (checkpoint.step, checkpoint.source) == (2, "store")
            assert isinstance(mine, dict)
            assert mine["rng"].tolist() == [1, 2]
            with pytest.warns(UserWarning, match="is lost in the tier"):
                values = checkpoint.read(lambda contents: contents.values(Rank(0)))
            assert values["step"] == 2
    with pytest.raises(ckpt.Lost, match="the other ranks load it from file://"):
        store.load("rotten", whole=True)  # Of the same launch, and opened without `durable`.
    walks_back = pytest.warns(UserWarning, match="rotten@1.* is loaded instead of: rotten@2")
    with ckpt.open(cluster.url, launch="without a store") as another, walks_back:
        assert_same(another.load("rotten", whole=True), 1)
    command("fetch", "rotten@2", "--store", cluster.url)
    with (
        ckpt.open(cluster.url, launch="behind the fetch") as another,
        another.resolve("rotten") as repaired,
    ):
        assert (repaired.step, repaired.skipped) == (2, ())
        assert_same(repaired.load(whole=True), 2)
        assert repaired.source != "store"


def test_damage_that_one_rank_meets_leaves_the_launch_on_its_step(
    cluster: Cluster, sink: FileSink
) -> None:
    with launched(cluster.url, 2, launch="torn 1") as team:
        for step in (1, 2):
            save_and_wait(team, "torn", step, version=step, filler_bytes=FILLER_BYTES)
        end_with_stagers(team)  # Whose memory would still hold step 2.
    wait_drained(sink, "torn", 1, 2)
    rot(cluster, "torn", 2, rank=1, at=500_000)
    with launched(cluster.url, 2, launch="torn 2", durable=sink.url) as (early, late):
        first = early.ask("load", run="torn", version=2, filler_bytes=FILLER_BYTES)
        second = late.ask("load", run="torn", version=2, filler_bytes=FILLER_BYTES)
        assert [(a["step"], a["equal"]) for a in (first, second)] == [(2, True)] * 2
        assert (first["source"], second["source"]) == ("tier", "store")
    with launched(cluster.url, 2, launch="torn 3", durable=sink.url) as team:
        loads = done(every(team, "load", run="torn", version=2, filler_bytes=FILLER_BYTES))
        assert [(a["step"], a["equal"], a["source"]) for a in loads] == [(2, True, "store")] * 2
