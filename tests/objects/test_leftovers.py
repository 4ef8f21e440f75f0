"""Half-written checkpoints that the tier no longer has go, once nobody writes to them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from ckpt.base.errors import Refused
from ckpt.base.ids import Generation, Rank, RunName, Step
from ckpt.format.tree import Node
from ckpt.objects import names
from ckpt.objects.documents import Header
from ckpt.objects.leftovers import (
    Leftovers,
    crowding,
    delete_unfinished,
    expired_in,
    tidy_committed,
)
from ckpt.objects.planning import WriteOptions
from ckpt.objects.reader import open_stored
from ckpt.objects.sinks.file_sink import FileSink
from ckpt.objects.writer import WriteJob, WriteLimits, write_checkpoint
from ckpt.plan.drains import StorePolicy
from tests.objects.sources import HEADER, MemorySource

RUN, ONE = RunName(HEADER.run), (Step(HEADER.step), Generation(1, 3))
PREFIX = names.generation_prefix(RUN, *ONE)
QUIET_S = 100.0


class Clock:
    """Stands until it is set."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def sink(tmp_path: Path) -> FileSink:
    return FileSink(tmp_path)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def leftovers(sink: FileSink, clock: Clock) -> Leftovers:
    return Leftovers(sink, QUIET_S, clock)


def begin(sink: FileSink, source: MemorySource | None = None) -> WriteJob:
    source = source or MemorySource({"small": np.arange(9), "w": np.zeros((600, 1000), "f4")})
    job = WriteJob.begin(sink, source, WriteOptions(), WriteLimits())
    assert job is not None
    job.write_item(0)
    return job


def finish(job: WriteJob) -> None:
    for number in range(len(job.plan.items)):
        job.write_item(number)
    job.finish()


def test_it_goes_when_nothing_changed_for_long(
    sink: FileSink, clock: Clock, leftovers: Leftovers
) -> None:
    begin(sink)
    assert leftovers.found(RUN, HEADER.cluster, []) == []
    clock.now_s = QUIET_S - 1
    assert leftovers.found(RUN, HEADER.cluster, []) == []
    clock.now_s = 2 * QUIET_S
    assert leftovers.found(RUN, HEADER.cluster, []) == [ONE]
    delete_unfinished(sink, RUN, *ONE)
    assert list(sink.list("")) == []


def test_whoever_still_writes_is_left_alone(
    sink: FileSink, clock: Clock, leftovers: Leftovers
) -> None:
    begin(sink)
    for n in range(5):
        sink.put(PREFIX + names.receipt_key(n + 10), b"{}")
        assert leftovers.found(RUN, HEADER.cluster, []) == []
        clock.now_s += QUIET_S
    begun = sink.upload(PREFIX + "packed/0.zip")
    begun.__enter__().part(b"half")
    assert leftovers.found(RUN, HEADER.cluster, []) == [], "an upload is a change, too"
    begun.__exit__(None, None, None)


def test_what_the_tier_has_stays_however_old(
    sink: FileSink, clock: Clock, leftovers: Leftovers
) -> None:
    begin(sink)
    leftovers.found(RUN, HEADER.cluster, [])
    clock.now_s = 2 * QUIET_S
    assert leftovers.found(RUN, HEADER.cluster, [ONE]) == []
    clock.now_s = 3 * QUIET_S
    assert leftovers.found(RUN, HEADER.cluster, []) == [], "its time begins anew"


def test_another_clusters_and_committed_ones_stay(
    sink: FileSink, clock: Clock, leftovers: Leftovers
) -> None:
    job = begin(sink)
    leftovers.found(RUN, "other", [])
    clock.now_s = 2 * QUIET_S
    assert leftovers.found(RUN, "other", []) == []
    finish(job)
    clock.now_s = 4 * QUIET_S
    assert leftovers.found(RUN, HEADER.cluster, []) == []
    delete_unfinished(sink, RUN, *ONE)
    open_stored(sink, RUN).verify()


def test_a_writer_that_slept_meanwhile_does_not_commit(sink: FileSink) -> None:
    class Sleeping(MemorySource):
        """Its trees are asked for between the last receipt and the marker."""

        def trees(self) -> Mapping[Rank, Node]:
            delete_unfinished(sink, RUN, *ONE)
            return super().trees()

    arrays = {"small": np.arange(9)}
    job = begin(sink, Sleeping(arrays))
    with pytest.raises(Refused, match="its plan was deleted"):
        finish(job)
    assert sink.head(PREFIX + names.COMMITTED) is None
    write_checkpoint(sink, MemorySource(arrays), WriteOptions(), WriteLimits())
    open_stored(sink, RUN).verify()


def test_of_a_step_that_was_saved_again_the_older_generation_goes_and_first(sink: FileSink) -> None:
    for step, generation in [(500, "1.3"), (500, "2.1"), (600, "2.2")]:
        _commit(sink, replace(HEADER, step=step, generation=generation))
    older, newer = (Step(500), Generation(1, 3)), (Step(500), Generation(2, 1))
    assert expired_in(sink, StorePolicy("file://x"), RUN, HEADER.cluster) == [older]
    one_stays = StorePolicy("file://x", keep=1)
    assert expired_in(sink, one_stays, RUN, HEADER.cluster) == [older, newer]


def test_what_another_cluster_committed_in_a_shared_place_is_not_replaced(sink: FileSink) -> None:
    _commit(sink, HEADER)
    _commit(sink, replace(HEADER, generation="9.1", cluster="another"))
    for cluster in (HEADER.cluster, "another"):
        assert expired_in(sink, StorePolicy("file://x"), RUN, cluster) == []


def test_a_step_goes_at_once_where_another_cluster_has_newer_ones(sink: FileSink) -> None:
    for step, cluster in [(600, "another"), (700, HEADER.cluster), (800, "third")]:
        _commit(sink, replace(HEADER, step=step, cluster=cluster))
    sink.put(names.generation_prefix(RUN, Step(900), Generation(1, 1)) + names.PLAN, b"{}")

    def found(keep: int | None, step: int = 500) -> dict[Step, str]:
        policy = StorePolicy("file://x", keep=keep)
        return crowding(sink, policy, RUN, Step(step), HEADER.cluster)

    assert found(3) == {600: "another", 800: "third"}
    assert found(1) == {800: "third"}
    assert found(2, step=650) == {800: "third"}
    # It stays there.
    assert found(None) == found(4) == found(2, step=750) == {}
    assert crowding(sink, StorePolicy("file://x", keep=1), RUN, Step(500), "third") == {}


def _commit(sink: FileSink, header: Header) -> None:
    source = MemorySource({"small": np.arange(9)}, header=header)
    write_checkpoint(sink, source, WriteOptions(), WriteLimits())


def test_receipts_and_uploads_behind_a_marker_go_and_an_unfinished_neighbour_stays(
    sink: FileSink,
) -> None:
    write_checkpoint(
        sink, MemorySource({"w": np.zeros((600, 1000), "f4")}), WriteOptions(), WriteLimits()
    )
    whole = list(sink.list(""))
    # Its writer died behind the marker (seeds 9 and 11 of the killed drains).
    sink.put(f"{PREFIX}{names.PLAN}", b"{}")
    sink.put(f"{PREFIX}{names.receipt_key(0)}", b"{}")
    upload = sink.upload(f"{PREFIX}half")
    upload.__enter__().part(b"half")
    neighbour = names.generation_prefix(RUN, ONE[0], Generation(1, 2)) + names.PLAN
    sink.put(neighbour, b"{}")
    tidy_committed(sink, RUN)
    assert list(sink.list("")) == sorted([*whole, neighbour])
    assert not sink.pending_uploads("")
    upload.__exit__(None, None, None)
