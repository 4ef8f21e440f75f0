"""Tensors that are cut like one before are merged faster, and looked at all the same."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ckpt.base.ids import Generation, Rank
from ckpt.format.index.pages import IndexBox, Location
from ckpt.format.index.rows import BoxRows
from ckpt.format.table import Meaning, Piece, TensorEntry
from tests.plan.clusters import entry, tables
from tests.plan.merged import Merged, merge_tables
from tests.plan.packing import packed

HALVES = [((0,), (4,)), ((4,), (4,))]


def halves(name: str, *pieces: tuple[Piece, ...]) -> list[TensorEntry]:
    """Of eight items, cut in two, with these pieces."""
    return [
        entry(name, Meaning.SHARD, (8,), *box, pieces=stored)
        for box, stored in zip(HALVES, pieces, strict=True)
    ]


def merged_halves(*names: list[TensorEntry]) -> Merged:
    return merge_tables(packed(tables(*zip(*names, strict=True))))


def test_tensors_that_are_cut_like_one_before_are_merged_as_that_was() -> None:
    whole = [(Piece(0, 100 * n, 4),) for n in range(2)]
    merged = merged_halves(halves("a", *whole), halves("b", *whole), halves("c", *whole))
    assert merged.problems == merged.overlaps == ()
    assert [tensor.name for tensor in merged.tensors] == ["a", "b", "c"]
    assert merged.tensors[1].boxes == merged.tensors[0].boxes
    assert [box.locations for box in merged.tensors[2].boxes] == [
        (Location(Rank(n), 0, 100 * n, 4),) for n in range(2)
    ]


def test_pieces_in_earlier_generations_keep_their_home_in_whatever_order_tensors_come() -> None:
    away = (Piece(0, 7, 4).at(Generation(3, 5)),)
    merged = merged_halves(
        halves("a", (Piece(0, 0, 4),), (Piece(0, 0, 4),)), halves("b", away, (Piece(0, 4, 4),))
    )
    assert merged.problems == ()
    (place,) = merged.tensors[1].boxes[0].locations
    assert place.generation == Generation(3, 5)


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ((), "bytes 0 to 4 of the box at (4,) of shape (4,) are stored by none of rank 1"),
        ((Piece(0, 0, 3),), "bytes 3 to 4 of the box at (4,) of shape (4,) are stored by none"),
        ((Piece(0, 0, 5),), "rank 1 stores bytes 0 to 5 of a box of 4, out of order"),
        ((Piece(1, 0, 4),), "rank 1 stores bytes 1 to 5 of a box of 4, out of order"),
        ((Piece(1, 0, 3),), "bytes 0 to 1 of the box at (4,) of shape (4,) are stored by none"),
    ],
)
def test_what_is_cut_like_one_before_is_looked_at_all_the_same(
    pieces: tuple[Piece, ...], text: str
) -> None:
    good = halves("a", (Piece(0, 0, 4),), (Piece(0, 0, 4),))
    assert text in merged_halves(good, halves("b", (Piece(0, 4, 4),), pieces)).problems[0].message


def test_several_pieces_of_a_box_are_all_in_the_index_also_of_one_cut_like_another() -> None:
    good = halves("a", (Piece(0, 0, 4),), (Piece(0, 0, 4),))
    two = (Piece(0, 10, 1), Piece(1, 20, 3))
    merged = merged_halves(good, halves("b", two, (Piece(0, 4, 4),)))
    assert merged.tensors[1].boxes[0].locations == (
        Location(Rank(0), 0, 10, 1),
        Location(Rank(0), 1, 20, 3),
    )


def test_another_dtype_is_another_cut() -> None:
    good = halves("a", (Piece(0, 0, 4),), (Piece(0, 0, 4),))
    wide = [replace(half, dtype="<u2") for half in halves("b", *[(Piece(0, 4, 4),)] * 2)]
    problem = merged_halves(good, wide).problems[0]
    assert "bytes 4 to 8 of the box at (0,)" in problem.message


def quarters(name: str, places: list[Piece]) -> list[TensorEntry]:
    """Of 16 items, cut in four, each stored in one piece."""
    return [
        entry(name, Meaning.SHARD, (16,), (4 * n,), (4,), pieces=(piece,))
        for n, piece in enumerate(places)
    ]


@pytest.mark.parametrize("home", [None, Generation(3, 5)])
def test_shards_at_one_place_of_all_payloads_are_one_row(home: Generation | None) -> None:
    first, second = (Piece(0, at, 4) for at in (0, 64))
    if home is not None:
        first, second = first.at(home), second.at(home)
    merged = merged_halves(quarters("a", [first] * 4), quarters("b", [second] * 4))
    assert merged.problems == ()
    boxes = merged.tensors[1].boxes
    assert isinstance(boxes, BoxRows)
    assert len(boxes.rows) == 1
    assert tuple(boxes) == tuple(
        IndexBox(Rank(n), (4 * n,), (4,), (Location(Rank(n), 0, 64, 4).at(home),)) for n in range(4)
    )


@pytest.mark.parametrize("odd", [Piece(0, 68, 4), Piece(0, 64, 4).at(Generation(1, 1))])
def test_a_shard_at_a_place_of_its_own_keeps_it(odd: Piece) -> None:
    first, second = [Piece(0, 0, 4)] * 4, [Piece(0, 64, 4)] * 3
    merged = merged_halves(quarters("a", first), quarters("b", [*second, odd]))
    *places, last = (box.locations for box in merged.tensors[1].boxes)
    assert places == [(Location(Rank(n), 0, 64, 4),) for n in range(3)]
    assert last == (Location(Rank(3), 0, odd.payload_offset, 4).at(odd.home),)


def test_the_same_cut_among_other_ranks_is_of_those_ranks() -> None:
    """As the stages of a pipeline have it."""
    low, high = quarters("a", [Piece(0, 0, 4)] * 4), quarters("b", [Piece(0, 0, 4)] * 4)
    merged = merge_tables(packed(tables(*[(each,) for each in (*low, *high)])))
    assert merged.problems == ()
    assert [box.rank for box in merged.tensors[0].boxes] == [0, 1, 2, 3]
    assert [box.rank for box in merged.tensors[1].boxes] == [4, 5, 6, 7]
    assert [box.locations[0].rank for box in merged.tensors[1].boxes] == [4, 5, 6, 7]


def test_two_places_of_payloads_are_two_rows() -> None:
    """As where some ranks store a small replica first."""
    first = quarters("a", [Piece(0, 0, 4)] * 4)
    second = quarters("b", [Piece(0, at, 4) for at in (64, 64, 128, 128)])
    boxes = merged_halves(first, second).tensors[1].boxes
    assert [box.locations[0].payload_offset for box in boxes] == [64, 64, 128, 128]
    assert [box.rank for box in boxes] == [0, 1, 2, 3]


def copies(name: str, *holders: int) -> list[TensorEntry]:
    """Of 8 items, cut in two; each half on two ranks, and stored by these."""
    return [
        entry(
            name, Meaning.SHARD, (8,), (rank % 2 * 4,), (4,), fingerprint=bytes([rank % 2] * 16),
            pieces=(Piece(0, 100 + rank, 4),) if rank in holders else (),
        )
        for rank in range(4)
    ]  # fmt: skip


@pytest.mark.parametrize("holders", [(0, 1), (2, 3), (0, 3), (0, 1, 2, 3)])
def test_copies_are_found_at_those_who_store_them(holders: tuple[int, ...]) -> None:
    """As a hybrid of replicas and shards has it."""
    merged = merged_halves(copies("a", 0, 1), copies("b", *holders))
    assert merged.problems == merged.overlaps == ()
    for box in merged.tensors[1].boxes:
        (place,) = box.locations
        assert place.rank in holders
        assert place == Location(place.rank, 0, 100 + place.rank, 4)
        assert place.rank % 2 == box.rank % 2
        assert place.rank == box.rank or box.rank not in holders


def test_copies_that_differ_are_found_out_also_in_a_tensor_cut_like_one_before() -> None:
    odd = copies("b", 0, 1)
    odd[3] = replace(odd[3], fingerprint=b"?" * 16)
    (problem,) = merged_halves(copies("a", 0, 1), odd).problems
    assert "shards of the same box at (4,) of shape (4,) differ" in problem.message


def test_a_half_that_nobody_stores_is_found_out_also_in_a_tensor_cut_like_one_before() -> None:
    (problem,) = merged_halves(copies("a", 0, 1), copies("b", 0, 2)).problems
    assert "the box at (4,) of shape (4,) are stored by none of ranks 1, 3" in problem.message


def test_copies_without_fingerprints_are_asked_for_also_in_a_tensor_cut_like_one_before() -> None:
    everyone = 0, 1, 2, 3
    silent = [replace(each, fingerprint=b"") for each in copies("b", *everyone)]
    merged = merged_halves(copies("a", *everyone), silent)
    assert merged.problems == ()
    assert [(each.name, each.offset, each.ranks) for each in merged.overlaps] == [
        ("b", (0,), (0, 2)), ("b", (4,), (1, 3)),
    ]  # fmt: skip


@pytest.mark.parametrize("odd", [b"?" * 8 + bytes(8), bytes(8) + b"?" * 8, b""])
def test_replicas_of_one_form_are_compared(odd: bytes) -> None:
    """Whichever half of a fingerprint differs, or where there is none."""
    same = [
        entry("a", Meaning.REPLICATED, (8,), fingerprint=bytes(16), pieces=pieces)
        for pieces in ((Piece(0, 0, 4),), (Piece(4, 0, 4),), ())
    ]
    assert merged_halves(same).problems == ()
    (box,) = merged_halves(same).tensors[0].boxes
    assert box.locations == (Location(Rank(0), 0, 0, 4), Location(Rank(1), 4, 0, 4))
    (problem,) = merged_halves([*same[:2], replace(same[2], fingerprint=odd)]).problems
    expected = "replicas differ" if odd else "rank 2 did not fingerprint its replica"
    assert expected in problem.message


def test_a_replica_that_only_some_ranks_declare_is_found_out() -> None:
    two = [entry("a", Meaning.REPLICATED, (8,), fingerprint=bytes(16)) for _ in range(2)]
    other = entry("z", Meaning.OWN, (8,))
    (problem,) = merge_tables(packed(tables((two[0],), (two[1],), (other,)))).problems
    assert "replicated on ranks 0, 1 but absent on rank 2" in problem.message


def test_a_replica_of_which_a_part_is_stored_by_nobody_is_found_out() -> None:
    parts = ((Piece(0, 0, 4),), (Piece(5, 0, 3),))
    two = [
        entry("a", Meaning.REPLICATED, (8,), fingerprint=bytes(16), pieces=part) for part in parts
    ]
    (problem,) = merged_halves(two).problems
    assert "bytes 4 to 5 of the replica are stored by none" in problem.message


def test_boxes_that_cross_are_asked_for_also_in_a_tensor_cut_like_one_before() -> None:
    crossing = [((0,), (5,)), ((4,), (4,))]
    both = [
        [
            entry(name, Meaning.SHARD, (8,), *box, pieces=(Piece(0, 0, box[1][0]),))
            for box in crossing
        ]
        for name in "ab"
    ]
    merged = merged_halves(*both)
    assert merged.problems == ()
    assert [(each.name, each.offset, each.shape) for each in merged.overlaps] == [
        ("a", (4,), (1,)), ("b", (4,), (1,)),
    ]  # fmt: skip


def own(*names: str) -> tuple[TensorEntry, ...]:
    return tuple(entry(name, Meaning.OWN, (8,)) for name in names)


def test_what_a_rank_lacks_is_no_cut_for_those_who_have_it() -> None:
    """Tensors that the same rank lacks look alike, and are merged of the others."""
    merged = merge_tables(packed(tables(own(*"abcd"), own(*"abcd"), own(*"cd"))))
    assert merged.problems == ()
    assert [[box.rank for box in tensor.boxes] for tensor in merged.tensors] == [
        [0, 1], [0, 1], [0, 1, 2], [0, 1, 2],
    ]  # fmt: skip


def test_boxes_ascend_by_rank_also_where_one_of_them_has_no_form() -> None:
    decoded = tables(own("a"), own("a"), own("a"))
    first, _, third = packed(decoded)
    (tensor,) = merge_tables([first, decoded[1], third]).tensors
    assert [box.rank for box in tensor.boxes] == [0, 1, 2]
