"""Tables that take long to merge: a slice at a time, while others are served."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ckpt.format.index.pages import HEADER_BYTES, ROWS_VERSION, VERSION, decode_header
from ckpt.format.index.reader import decode_index
from ckpt.format.messages.hello import OLDEST_VERSION, PROTOCOL_VERSION
from ckpt.format.messages.saving import Certified, PayloadGivenUp
from ckpt.protocol.coordinator.saving import merging
from tests.protocol.coordinating import Bench, RankFake, every, own_entry, ready, shard_entry
from tests.protocol.late_bench import LateBench, index_of

RANKS = 4
NAMES = 6


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "ENTRIES_AT_ONCE", RANKS)


def sharded(bench: Bench) -> list[RankFake]:
    """All have sealed what they are to certify."""
    ranks = ready(bench, RANKS)
    for rank in ranks:
        first = int(rank.rank) * 8
        rank.entries = tuple(shard_entry(first, 8, RANKS * 8, name=f"m{n}") for n in range(NAMES))
    return ranks


def test_others_are_served_between_two_slices() -> None:
    bench = LateBench()
    ranks = sharded(bench)
    other = RankFake(bench, key="other", run="other")
    every(ranks, lambda rank: rank.certify())
    slices = 0
    for slices in bench.work_off():
        assert bench.work_left in (0, 1), "one slice is asked for at a time"
        assert bool(ranks[0].commits()) is (bench.work_left == 0)
        if slices == 2:
            other.open(1)
            other.seal_all()
            other.certify()
            assert other.commits(), "a small table is merged at once, beside a large one"
    assert slices == NAMES - 1, "the first came with the last certificate"
    assert all(rank.commits() for rank in ranks)
    tensors = decode_index(index_of(bench, ranks[0])).tensors
    assert [tensor.name for tensor in tensors] == [f"m{n}" for n in range(NAMES)]
    assert all(len(tensor.boxes) == RANKS for tensor in tensors)


def test_a_problem_that_is_found_late_ends_the_save_on_all_ranks() -> None:
    bench = LateBench()
    ranks = sharded(bench)
    ranks[2].entries = ranks[2].entries[:-1]
    every(ranks, lambda rank: rank.certify())
    assert not any(rank.aborts() for rank in ranks)
    assert list(bench.work_off())
    for rank in ranks:
        (aborted,) = rank.aborts()
        assert "'m5': no rank holds the box at (16,)" in aborted.message
    assert bench.states() == {"run@1#1.1": "aborted"}


def test_what_a_save_that_ended_was_to_be_is_not_found_out() -> None:
    bench = LateBench()
    ranks = sharded(bench)
    every(ranks, lambda rank: rank.certify())
    bench.work()
    assert bench.work_left == 1
    bench.tell(ranks[0].session, PayloadGivenUp(ranks[0].payload, "aborted", "too late"))
    assert all(rank.aborts() for rank in ranks)
    assert list(bench.work_off()) == [1]
    assert not any(rank.commits() for rank in ranks)


def test_a_stager_that_says_the_same_again_does_not_begin_it_again() -> None:
    bench = LateBench()
    ranks = sharded(bench)
    every(ranks, lambda rank: rank.certify())
    bench.work()
    ranks[1].reconnect()
    assert isinstance(ranks[1].certify()[-1], Certified)
    assert bench.work_left == 1
    assert len(list(bench.work_off())) >= NAMES - 2
    assert all(rank.commits() for rank in ranks)


def test_a_table_that_changes_meanwhile_counts_as_it_is_at_the_end() -> None:
    """Nobody does so; what is committed is what was certified all the same."""
    bench = LateBench()
    ranks = sharded(bench)
    every(ranks, lambda rank: rank.certify())
    bench.work()
    for rank in ranks:
        rank.entries = (*rank.entries[:-1], replace(rank.entries[-1], name="z"))
        rank.certify()
    assert list(bench.work_off())
    assert all(rank.commits() for rank in ranks)
    tensors = decode_index(index_of(bench, ranks[0])).tensors
    assert [tensor.name for tensor in tensors] == [*(f"m{n}" for n in range(NAMES - 1)), "z"]


def test_what_waits_for_targets_is_merged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    merger = merging.TableMerger

    def counted(*arguments: object) -> merging.TableMerger:
        made.append(arguments)
        return merger(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(merging, "TableMerger", counted)
    bench = Bench()
    (rank,) = ready(bench)
    rank.entries = (own_entry(100),)
    bench.stop("t0", "t1", "t2")
    rank.certify()
    for _ in range(8):
        bench.tick(1)
    assert len(made) == 1
    assert not rank.commits()


def test_boxes_are_in_rows_once_all_readers_know_rows() -> None:
    """A reader of the version before would take a row for its first box, or the index for none."""
    for protocol, version in ((OLDEST_VERSION, VERSION), (PROTOCOL_VERSION, ROWS_VERSION)):
        bench = LateBench(protocol=protocol)
        ranks = sharded(bench)
        every(ranks, lambda rank: rank.certify())
        assert list(bench.work_off())
        document = index_of(bench, ranks[0])
        assert decode_header(document[:HEADER_BYTES]).version == version
        assert all(len(tensor.boxes) == RANKS for tensor in decode_index(document).tensors)
