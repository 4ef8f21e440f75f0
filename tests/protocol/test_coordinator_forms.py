"""Ranks whose tables have one form: it is decoded once, and of the others only the numbers."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ckpt.base.ids import Generation, Home
from ckpt.format.index.reader import decode_index
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.saving import Certified, PayloadGivenUp
from ckpt.format.packed_table import PackedTable
from ckpt.format.table import Piece
from ckpt.protocol.coordinator.saving import decoding
from tests.protocol.coordinating import Bench, RankFake, every, own_entry, ready, shard_entry
from tests.protocol.late_bench import LateBench, index_of
from tests.protocol.test_coordinator_homes import HELD_BYTES

RANKS = 4
NAMES = [f"m{n}" for n in range(6)]
SLICES = 3
"""Of a table of so many, decoded entry by entry."""


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "ENTRIES_AT_ONCE", 2)
    monkeypatch.setattr(decoding, "FORM_BYTES_MIN", 0)
    monkeypatch.setattr(decoding, "AT_ONCE_BYTES", 0)


@pytest.fixture
def bench() -> LateBench:
    return LateBench()


def sharded(bench: Bench) -> list[RankFake]:
    """All have sealed what they are to certify."""
    ranks = ready(bench, RANKS)
    for rank in ranks:
        first = int(rank.rank) * 8
        rank.entries = tuple(shard_entry(first, 8, RANKS * 8, name=name) for name in NAMES)
    return ranks


def tables_of(bench: Bench) -> list[object]:
    (attempt,) = bench.machine.book.open()
    return [payload.table for _, payload in sorted(attempt.payloads.items())]


def test_a_form_is_decoded_once(bench: LateBench) -> None:
    ranks = sharded(bench)
    every(ranks, lambda rank: rank.certify())
    # Each is looked at; the others wait for the first, and are looked at again.
    slices = RANKS + SLICES + (RANKS - 1)
    assert list(bench.work_off())[-1] == slices
    assert all(rank.commits() for rank in ranks)
    tensors = decode_index(index_of(bench, ranks[0])).tensors
    assert [tensor.name for tensor in tensors] == NAMES
    assert all(
        [(box.rank, box.offset) for box in tensor.boxes] == [(n, (8 * n,)) for n in range(RANKS)]
        for tensor in tensors
    )


def test_who_comes_later_finds_the_form(bench: LateBench) -> None:
    ranks = sharded(bench)
    for rank in ranks[:-1]:
        rank.certify()
        assert list(bench.work_off())
    assert isinstance(tables_of(bench)[2], PackedTable)
    ranks[-1].certify()
    assert list(bench.work_off()) == [1]
    assert all(rank.commits() for rank in ranks)


def test_what_each_rank_has_for_itself_is_no_other_form(bench: LateBench) -> None:
    """As the state of a data loader is named by its rank."""
    ranks = sharded(bench)
    for rank in ranks:
        own = own_entry(8, f"m3.{rank.rank}")
        rank.entries = (*rank.entries[:4], own, *rank.entries[4:])
    every(ranks[:-1], lambda rank: rank.certify())
    assert list(bench.work_off())
    tables = tables_of(bench)[:-1]
    assert all(isinstance(table, PackedTable) for table in tables)
    assert len({table.form for table in tables if isinstance(table, PackedTable)}) == 1
    ranks[-1].certify()
    assert list(bench.work_off())
    assert all(rank.commits() for rank in ranks)
    tensors = decode_index(index_of(bench, ranks[0])).tensors
    owners = {tensor.name: [box.rank for box in tensor.boxes] for tensor in tensors}
    everyone = list(range(RANKS))
    assert owners == dict.fromkeys(NAMES, everyone) | {f"m3.{n}": [n] for n in everyone}


def test_a_small_table_is_looked_at_in_the_event_that_brings_it(
    bench: LateBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "AT_ONCE_BYTES", 4096)
    monkeypatch.setattr(decoding, "ENTRIES_AT_ONCE", 2048)
    ranks = sharded(bench)
    every(ranks[:2], lambda rank: rank.certify())
    assert not bench.work_left
    first, second = tables_of(bench)[:2]
    assert isinstance(first, PackedTable)
    assert isinstance(second, PackedTable)
    assert first.form is second.form


def test_a_fault_of_the_first_is_its_own(bench: LateBench) -> None:
    """Those that waited for it have another of them make the form."""
    ranks = sharded(bench)
    sound = ranks[0].entries
    ranks[0].entries = (*sound[:-1], replace(sound[-1], pieces=(Piece(0, 1 << 40, 8),)))
    every(ranks, lambda rank: rank.certify())
    assert list(bench.work_off())
    failed = bench.to(ranks[0].session)[-1]
    assert isinstance(failed, Failed)
    assert "the table does not fit its payload" in failed.message
    assert all(isinstance(bench.to(rank.session)[-1], Certified) for rank in ranks[1:])
    ranks[0].entries = sound
    ranks[0].certify()
    assert list(bench.work_off()) == [1]
    assert all(rank.commits() for rank in ranks)


@pytest.mark.parametrize(
    ("piece", "text"),
    [
        (Piece(0, 9_999, 8), "the table does not fit its payload"),
        (Piece(0, 0, 8).at(Generation(7, 7)), "refers to what its payload did not name"),
    ],
)
def test_what_is_wrong_with_a_later_one_is_said_as_of_the_first(
    bench: LateBench, piece: Piece, text: str
) -> None:
    ranks = sharded(bench)
    for rank in ranks[:2]:
        rank.entries = (*rank.entries[:-1], replace(rank.entries[-1], pieces=(piece,)))
    for rank in (ranks[0], ranks[2], ranks[1]):
        rank.certify()
        assert list(bench.work_off())
    first, second = (bench.to(rank.session)[-1] for rank in ranks[:2])
    assert isinstance(first, Failed)
    assert isinstance(second, Failed)
    assert text in second.message
    assert second.message == first.message.replace("rank 0", "rank 1")


def test_a_later_one_may_refer_only_to_bytes_that_its_rank_has_there() -> None:
    bench = Bench()
    first = bench.save(1)
    ranks = [
        RankFake(bench, n, 2, key="wider", process=f"h/{n}", payload_bytes=4096) for n in range(2)
    ]
    for rank in ranks:
        rank.homes = (Home.of(first),)
        piece = Piece(0, 0, HELD_BYTES).at(first.generation)
        rank.entries = (replace(own_entry(HELD_BYTES), pieces=(piece,)),)
        rank.open(2)
        rank.seal_all()
    every(ranks, lambda rank: rank.certify())
    assert isinstance(bench.to(ranks[0].session)[-1], Certified)
    failed = bench.to(ranks[1].session)[-1]
    assert isinstance(failed, Failed)
    assert "has no byte 9899 of rank 1" in failed.message


def test_those_that_wait_for_a_form_are_answered_when_the_save_has_ended(bench: LateBench) -> None:
    ranks = sharded(bench)
    every(ranks, lambda rank: rank.certify())
    for _ in range(RANKS):
        bench.work()
    bench.tell(ranks[0].session, PayloadGivenUp(ranks[0].payload, "aborted", "too late"))
    assert list(bench.work_off())
    assert all(rank.aborts() for rank in ranks)
    assert not any(rank.commits() for rank in ranks)


def test_who_waits_in_vain_goes_alone(bench: LateBench) -> None:
    """Tables with two boxes of one tensor have a form of others only if all of it is equal."""
    ranks = ready(bench, 8)
    for rank in ranks:
        first = int(rank.rank) * 16
        boxes = (shard_entry(first + at, 8, 128, name="m") for at in (0, 8))
        rank.entries = (*boxes, own_entry(8, "n"), own_entry(8, f"o{rank.rank}"))
    every(ranks, lambda rank: rank.certify())
    looks = 8 + 7 + 6 + 5
    assert list(bench.work_off())[-1] <= looks + 2 * len(ranks)
    assert all(rank.commits() for rank in ranks)
