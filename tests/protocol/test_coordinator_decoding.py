"""Tables that take long to decode: a slice at a time, while others are served."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ckpt.base.ids import Rank
from ckpt.format.index.reader import decode_index
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.saving import Certified, PayloadGivenUp
from ckpt.format.table import Piece, RankTable, encode_table
from ckpt.protocol.coordinator.saving import decoding
from tests.protocol.coordinating import RankFake, every, own_entry, ready
from tests.protocol.late_bench import LateBench, index_of

NAMES = [f"a{n}" for n in range(6)]
SLICES = 3
"""Of a table of so many."""
ONE = (own_entry(200),)
"""What a rank has that has nothing large."""


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "ENTRIES_AT_ONCE", 2)
    monkeypatch.setattr(decoding, "AT_ONCE_BYTES", len(encode_table(RankTable(Rank(0), 1, ONE))))


@pytest.fixture
def bench() -> LateBench:
    return LateBench()


def many(bench: LateBench, world_size: int) -> list[RankFake]:
    """All have sealed what they are to certify."""
    ranks = ready(bench, world_size)
    for rank in ranks:
        rank.entries = tuple(own_entry(8, name) for name in NAMES)
    return ranks


def test_others_are_served_between_two_slices(bench: LateBench) -> None:
    (rank,) = many(bench, 1)
    other = RankFake(bench, key="other", run="other")
    assert not rank.certify(), "nothing is said of it yet"
    slices = 0
    for slices in bench.work_off():
        assert bool(rank.commits()) is (slices == SLICES)
        if slices == 1:
            other.entries = ONE
            other.open(1)
            other.seal_all()
            other.certify()
            assert other.commits(), "a small table is decoded at once, beside a large one"
    assert slices == SLICES
    assert [tensor.name for tensor in decode_index(index_of(bench, rank)).tensors] == NAMES


def test_each_of_many_ranks_has_its_turn(bench: LateBench) -> None:
    ranks = many(bench, 4)
    every(ranks, lambda rank: rank.certify())
    assert bench.work_left == 1, "one slice is asked for at a time"
    assert list(bench.work_off())[-1] == 4 * SLICES
    assert all(rank.commits() for rank in ranks)


def test_what_is_wrong_in_its_last_slice_is_said_and_nothing_is_certified(bench: LateBench) -> None:
    (rank,) = many(bench, 1)
    last = rank.entries[-1]
    rank.entries = (*rank.entries[:-1], replace(last, pieces=(Piece(0, 1 << 40, 8),)))
    rank.certify()
    assert list(bench.work_off())[-1] == SLICES
    failed = bench.to(rank.session)[-1]
    assert isinstance(failed, Failed)
    assert "the table does not fit its payload" in failed.message
    rank.entries = (*rank.entries[:-1], last)
    rank.certify()
    assert list(bench.work_off())
    assert rank.commits()


def test_a_large_document_that_is_damaged_is_refused(bench: LateBench) -> None:
    (rank,) = many(bench, 1)
    table = bytearray(rank.table())
    table[-1] ^= 1
    bench.tell(rank.session, replace(rank.certificate(), table_bytes=len(table)), bytes(table))
    assert list(bench.work_off()) == [1]
    failed = bench.to(rank.session)[-1]
    assert isinstance(failed, Failed)
    assert failed.code == "corrupt"
    assert not rank.commits()


def test_a_save_that_ends_meanwhile_is_told_as_it_ended(bench: LateBench) -> None:
    ranks = many(bench, 2)
    every(ranks, lambda rank: rank.certify())
    bench.work()
    bench.tell(ranks[0].session, PayloadGivenUp(ranks[0].payload, "aborted", "too late"))
    assert list(bench.work_off())
    assert all(rank.aborts() for rank in ranks)
    assert not any(rank.commits() for rank in ranks)
    assert bench.states() == {"run@1#1.1": "aborted"}


def test_a_large_table_of_a_rank_alone_is_read_at_once(bench: LateBench) -> None:
    (rank,) = many(bench, 1)
    names = [f"a{number:03}" for number in range(200)]
    whole = [own_entry(8, name) for name in names]
    odd = replace(whole[77], pieces=(Piece(0, 0, 3), Piece(3, 16, 5)))
    rank.entries = (*whole[:77], odd, *whole[78:])
    assert len(rank.table()) > decoding.FORM_BYTES_MIN
    rank.certify()
    assert list(bench.work_off()) == [1]
    assert rank.commits()
    tensors = decode_index(index_of(bench, rank)).tensors
    assert [tensor.name for tensor in tensors] == names
    assert [len(tensor.boxes[0].locations) for tensor in tensors] == [1] * 77 + [2] + [1] * 122


@pytest.mark.parametrize("at", [0, 77, 199])
def test_of_a_large_table_what_lies_outside_of_its_payload_is_refused(
    bench: LateBench, at: int
) -> None:
    (rank,) = many(bench, 1)
    entries = [own_entry(8, f"a{number:03}") for number in range(200)]
    entries[at] = replace(entries[at], pieces=(Piece(0, 1 << 40, 8),))
    rank.entries = tuple(entries)
    rank.certify()
    assert list(bench.work_off()) == [1]
    failed = bench.to(rank.session)[-1]
    assert isinstance(failed, Failed)
    assert "the table does not fit its payload" in failed.message
    assert not rank.commits()


def test_a_stager_that_comes_back_meanwhile_is_answered_where_it_is(bench: LateBench) -> None:
    (rank,) = many(bench, 1)
    gone = rank.session
    rank.certify()
    bench.work()
    rank.reconnect()
    rank.certify()
    assert list(bench.work_off())
    assert not [each for each in bench.to(gone) if isinstance(each, Certified)]
    assert rank.commits()


def test_a_stager_that_says_the_same_again_is_answered_at_once(bench: LateBench) -> None:
    ranks = many(bench, 2)
    ranks[0].certify()
    assert list(bench.work_off())
    ranks[0].reconnect()
    assert isinstance(ranks[0].certify()[-1], Certified)
    assert not bench.work_left
    ranks[1].certify()
    assert list(bench.work_off())
    assert all(rank.commits() for rank in ranks)
