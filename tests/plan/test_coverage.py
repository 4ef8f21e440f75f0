"""Coverage: all ranks' tables become tensors without holes, or problems that name rank and path."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from ckpt.base.ids import CheckpointId, Generation, LaunchNumber, Rank, RunName, Step
from ckpt.format.index.document import Index
from ckpt.format.index.pages import IndexBox, IndexTensor, Location
from ckpt.format.index.reader import decode_index
from ckpt.format.table import Meaning, Piece, TensorEntry, encode_table
from ckpt.format.table_decoding import decode_table
from ckpt.plan import tensor_merger
from ckpt.plan.disagreement import ranks_text
from ckpt.plan.reads import plan_read
from ckpt.plan.tensor_merger import Differing, Overlap
from ckpt.testing.indexes import encode_index
from tests.landing import examples
from tests.plan.clusters import entry, tables
from tests.plan.merged import Merged, merge_tables

OWN, REPLICATED, SHARD = Meaning.OWN, Meaning.REPLICATED, Meaning.SHARD
A, B = b"a" * 16, b"b" * 16


def shard(
    offset: tuple[int, ...],
    shape: tuple[int, ...],
    whole: tuple[int, ...],
    fingerprint: bytes = b"",
    name: str = "w",
) -> TensorEntry:
    return entry(name, SHARD, whole, offset, shape, fingerprint=fingerprint)


def replica(*pieces: Piece, fingerprint: bytes = A, size: int = 10) -> TensorEntry:
    return entry("bias", REPLICATED, (size,), pieces=pieces, fingerprint=fingerprint)


def the_problem(merged: Merged) -> str:
    (problem,) = merged.problems
    assert merged.tensors == ()
    return problem.message


def test_own_tensors_get_one_box_for_each_rank_that_has_them() -> None:
    merged = merge_tables(
        tables((entry("a", OWN, (3,)), entry("b", OWN, (2,))), (entry("b", OWN, (2,)),))
    )
    assert merged == Merged(
        (
            IndexTensor(
                "a",
                OWN,
                "|u1",
                (3,),
                (IndexBox(Rank(0), (0,), (3,), (Location(Rank(0), 0, 4096, 3),)),),
            ),
            IndexTensor(
                "b",
                OWN,
                "|u1",
                (2,),
                (
                    IndexBox(Rank(0), (0,), (2,), (Location(Rank(0), 0, 4096, 2),)),
                    IndexBox(Rank(1), (0,), (2,), (Location(Rank(1), 0, 4096, 2),)),
                ),
            ),
        ),
        (),
        (),
        (),
    )


def test_own_tensors_of_one_name_may_differ_in_dtype_and_shape() -> None:
    merged = merge_tables(
        tables(
            (entry("b", OWN, (4,)),),
            (entry("b", OWN, (2,)),),
            (entry("b", OWN, (4,)),),
            (entry("b", OWN, (4,), dtype="|i1"),),
        )
    )
    assert merged.problems == ()
    assert [(t.dtype, t.global_shape, [box.rank for box in t.boxes]) for t in merged.tensors] == [
        ("|i1", (4,), [3]),
        ("|u1", (2,), [1]),
        ("|u1", (4,), [0, 2]),
    ]


def test_a_byte_stored_by_several_ranks_has_one_place_in_a_box_and_its_own_payload_first() -> None:
    ranks = [(replica(Piece(0, 100, 6)),), (replica(Piece(4, 50, 6)),), (replica(Piece(2, 9, 3)),)]
    (tensor,) = merge_tables(tables(*ranks)).tensors
    assert tensor.boxes[0].locations == (
        Location(Rank(0), 0, 100, 6),
        Location(Rank(1), 6, 52, 4),
    )
    full = (replica(Piece(0, 0, 10)),)
    kept = merge_tables(
        tables(full, full, (replica(Piece(0, 0, 10), fingerprint=B),)), Differing.KEEP
    )
    assert [box.locations for box in kept.tensors[0].boxes] == [
        (Location(Rank(rank), 0, 0, 10),) for rank in range(3)
    ]


def test_a_replica_is_one_box_with_the_pieces_of_all_writers() -> None:
    merged = merge_tables(
        tables(
            (replica(Piece(0, 7, 4)),), (replica(Piece(4, 0, 5), Piece(9, 50, 1)),), (replica(),)
        )
    )
    assert merged.problems == ()
    (tensor,) = merged.tensors
    assert tensor.boxes == (
        IndexBox(
            Rank(0),
            (0,),
            (10,),
            (
                Location(Rank(0), 0, 7, 4),
                Location(Rank(1), 4, 0, 5),
                Location(Rank(1), 9, 50, 1),
            ),
        ),
    )


def test_a_replica_that_differs_is_named_by_path_and_rank() -> None:
    ranks = [(replica(Piece(0, 0, 10)),), (replica(fingerprint=B),), (replica(),)]
    merged = merge_tables(tables(*ranks))
    assert the_problem(merged) == "tensor 'bias': replicas differ: rank 1 against ranks 0, 2"
    assert merged.problems[0].ranks == (1,)


def test_a_replica_that_differs_is_kept_apart_by_policy() -> None:
    full = Piece(0, 0, 10)
    ranks = [
        (replica(Piece(0, 0, 4)),),
        (replica(full, fingerprint=B),),
        (replica(Piece(4, 9, 6)),),
    ]
    merged = merge_tables(tables(*ranks), Differing.KEEP)
    assert merged.problems == ()
    assert [w.message for w in merged.warnings] == [
        "tensor 'bias': replicas differ: rank 1 against ranks 0, 2; kept apart"
    ]
    (tensor,) = merged.tensors
    shared = (Location(Rank(0), 0, 0, 4), Location(Rank(2), 4, 9, 6))
    assert tensor.meaning is OWN
    assert [(box.rank, box.locations) for box in tensor.boxes] == [
        (0, shared),
        (1, (Location(Rank(1), 0, 0, 10),)),
        (2, shared),
    ]


def test_a_replica_kept_apart_must_be_stored_whole() -> None:
    ranks = [(replica(Piece(0, 0, 5)),), (replica(Piece(5, 0, 5), fingerprint=B),)]
    merged = merge_tables(tables(*ranks), Differing.KEEP)
    assert (
        the_problem(merged)
        == "tensor 'bias': bytes 5 to 10 of the replica are stored by none of rank 0"
    )


def test_a_replica_that_a_rank_lacks_is_named_by_path_and_rank() -> None:
    ranks = [(replica(Piece(0, 0, 10)),), (), (replica(),)]
    message = "tensor 'bias': replicated on ranks 0, 2 but absent on rank 1"
    assert the_problem(merge_tables(tables(*ranks))) == message
    kept = merge_tables(tables(*ranks), Differing.KEEP)
    assert [w.message for w in kept.warnings] == [message]
    assert len(kept.tensors) == 1


def test_a_replica_without_fingerprint_is_a_problem_unless_it_is_alone() -> None:
    silent = replica(Piece(0, 0, 10), fingerprint=b"")
    assert the_problem(merge_tables(tables((silent,), (replica(),)))) == (
        "tensor 'bias': rank 0 did not fingerprint its replica"
    )
    assert merge_tables(tables((silent,))).problems == ()


@pytest.mark.parametrize(
    ("first", "second", "gap"),
    [
        ((Piece(0, 0, 4),), (Piece(5, 0, 5),), "4 to 5"),
        ((Piece(0, 0, 4),), (Piece(4, 0, 5),), "9 to 10"),
        ((), (Piece(1, 0, 9),), "0 to 1"),
    ],
)
def test_bytes_of_a_replica_that_nobody_stores_are_named(
    first: tuple[Piece, ...], second: tuple[Piece, ...], gap: str
) -> None:
    assert the_problem(merge_tables(tables((replica(*first),), (replica(*second),)))) == (
        f"tensor 'bias': bytes {gap} of the replica are stored by none of ranks 0, 1"
    )


def test_shards_that_cover_their_tensor_are_all_in_the_index() -> None:
    merged = merge_tables(
        tables(
            (shard((4, 0), (4, 6), (8, 6)),),
            (shard((0, 3), (4, 3), (8, 6)),),
            (shard((0, 0), (4, 3), (8, 6)),),
        )
    )
    assert merged.problems == merged.overlaps == ()
    (tensor,) = merged.tensors
    assert [(box.rank, box.offset, box.shape) for box in tensor.boxes] == [
        (2, (0, 0), (4, 3)),
        (1, (0, 3), (4, 3)),
        (0, (4, 0), (4, 6)),
    ]


def test_a_hole_is_named_by_path_and_box_also_when_volumes_add_up() -> None:
    missing = merge_tables(
        tables((shard((0, 0), (4, 6), (8, 6)),), (shard((4, 0), (4, 5), (8, 6)),))
    )
    assert the_problem(missing) == (
        "tensor 'w': no rank holds the box at (4, 5) of shape (4, 1) of the global shape (8, 6); "
        "it is declared by ranks 0, 1"
    )
    doubled = merge_tables(tables((shard((0,), (5,), (8,)),), (shard((3,), (3,), (8,)),)))
    assert "no rank holds the box at (6,) of shape (2,)" in the_problem(doubled)


def test_scalar_and_empty_shards_are_covered_by_anyone() -> None:
    merged = merge_tables(tables((shard((), (), ()), shard((0, 0), (0, 4), (0, 4), name="e"))))
    assert merged.problems == ()
    assert [t.name for t in merged.tensors] == ["e", "w"]


def test_identical_boxes_with_fingerprints_are_compared_at_once() -> None:
    same = merge_tables(tables(*[(shard((0,), (4,), (4,), A),)] * 3))
    assert same.problems == same.overlaps == ()
    differ = merge_tables(tables(*[(shard((0,), (4,), (4,), f),) for f in (A, A, B)]))
    assert the_problem(differ) == (
        "tensor 'w': shards of the same box at (0,) of shape (4,) differ: rank 2 against ranks 0, 1"
    )


def test_identical_boxes_without_fingerprints_are_asked_for() -> None:
    merged = merge_tables(tables(*[(shard((0,), (4,), (4,), f),) for f in (A, b"", A)]))
    assert merged.problems == ()
    assert merged.overlaps == (Overlap("w", (0,), (4,), (Rank(0), Rank(1), Rank(2))),)


def test_identical_boxes_share_their_pieces() -> None:
    halves = [
        replace(shard((0,), (8,), (16,), A), pieces=(Piece(0, 4096, 5),)),
        replace(shard((0,), (8,), (16,), A), pieces=(Piece(5, 9000, 3),)),
    ]
    other = shard((8,), (8,), (16,))
    merged = merge_tables(tables((halves[0],), (halves[1],), (other,)))
    assert merged.problems == merged.overlaps == ()
    both = (Location(Rank(0), 0, 4096, 5), Location(Rank(1), 5, 9000, 3))
    (tensor,) = merged.tensors
    assert [box.locations for box in tensor.boxes] == [both, both, _all_of(2, 8)]

    differ = merge_tables(tables((halves[0],), (replace(halves[1], fingerprint=B),), (other,)))
    assert "shards of the same box at (0,)" in the_problem(differ)
    silent = merge_tables(tables((halves[0],), (replace(halves[1], fingerprint=b""),), (other,)))
    assert "rank 1 did not fingerprint the box" in the_problem(silent)
    gap = merge_tables(tables((halves[0],), (other,)))
    assert the_problem(gap) == (
        "tensor 'w': bytes 5 to 8 of the box at (0,) of shape (8,) are stored by none of rank 0"
    )


def _all_of(rank: int, size: int) -> tuple[Location, ...]:
    return (Location(Rank(rank), 0, 4096, size),)


def test_several_boxes_of_one_rank_are_all_in_the_index() -> None:
    merged = merge_tables(tables((shard((0,), (4,), (8,)), shard((4,), (4,), (8,)))))
    assert merged.problems == merged.overlaps == ()
    assert [box.offset for box in merged.tensors[0].boxes] == [(0,), (4,)]


def test_overlaps_are_asked_for_once_for_each_part() -> None:
    merged = merge_tables(
        tables(
            (shard((0, 0), (4, 4), (6, 4)),),
            (shard((2, 0), (4, 4), (6, 4)),),
            (shard((2, 0), (2, 4), (6, 4)),),
        )
    )
    assert merged.problems == ()
    assert merged.overlaps == (Overlap("w", (2, 0), (2, 4), (Rank(0), Rank(1), Rank(2))),)


def test_more_overlaps_than_can_be_asked_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_merger, "OVERLAPS_MAX", 10)
    ranks = [(shard((0,), (20 + rank,), (40,)),) for rank in range(21)]
    assert the_problem(merge_tables(tables(*ranks))).startswith("tensor 'w': more than 10 overlaps")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"meaning": REPLICATED, "shape": (8,), "offset": (0,)}, "ranks disagree about the meaning: ranks 0, 1: shard; rank 2: replicated"),
        ({"dtype": "<f4"}, "ranks disagree about the dtype: ranks 0, 1: |u1; rank 2: <f4"),
        ({"global_shape": (9,)}, "ranks disagree about the global shape: ranks 0, 1: (8,); rank 2: (9,)"),
    ],
)  # fmt: skip
def test_ranks_that_disagree_are_named(change: dict[str, object], text: str) -> None:
    ranks = [shard((0,), (4,), (8,)), shard((4,), (4,), (8,)), shard((4,), (4,), (8,))]
    ranks[2] = replace(ranks[2], **change)  # type: ignore[arg-type]
    merged = merge_tables(tables(*[(r,) for r in ranks]))
    assert the_problem(merged) == f"tensor 'w': {text}"
    assert merged.problems[0].ranks == (2,)


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (shard((6,), (4,), (8,)), "rank 0 declares a box at (6,) of shape (4,), which reaches out of the global shape (8,)"),
        (shard((0,), (8, 1), (8,)), "the numbers of axes differ"),
        (entry("w", OWN, (8,), (0,), (4,)), "that is no shard"),
        (entry("w", OWN, (8,), pieces=(Piece(0, 0, 7),)), "rank 0 stores 7 bytes from the beginning of a box of 8"),
        (entry("w", OWN, (8,), pieces=(Piece(1, 0, 7),)), "rank 0 stores 0 bytes from the beginning of a box of 8"),
        (entry("w", OWN, (8,), pieces=(Piece(0, 0, 9),)), "rank 0 stores bytes 0 to 9 of a box of 8"),
        (entry("w", OWN, (8,), pieces=(Piece(0, 0, 4), Piece(3, 0, 5))), "stores bytes 3 to 8 of a box of 8, out of order"),
        (entry("w", OWN, (8,), pieces=(Piece(0, 0, 8), Piece(8, 9, 0))), "stores bytes 8 to 8 of a box of 8, out of order"),
        (entry("w", OWN, (8,), pieces=(Piece(0, -1, 8),)), "stores bytes 0 to 8 of a box of 8, out of order"),
        (entry("w", OWN, (8,), dtype="<q9"), "rank 0 declares what cannot be stored: dtype '<q9' is unknown here"),
    ],
)  # fmt: skip
def test_an_entry_that_cannot_be_is_a_problem(bad: TensorEntry, text: str) -> None:
    assert text in the_problem(merge_tables(tables((bad,))))


def test_a_problem_does_not_hide_others_and_their_number_is_bounded() -> None:
    bad = tuple(shard((0,), (4,), (8,), name=f"t{i:03}") for i in range(200))
    merged = merge_tables(tables((*bad, entry("z", OWN, (1,)))))
    assert len(merged.problems) == tensor_merger.PROBLEMS_MAX
    assert merged.problems[-1].message == "there are more problems"
    assert [t.name for t in merged.tensors] == ["z"]


def test_ranks_of_different_world_sizes_do_not_meet() -> None:
    two = tables((entry("a", OWN, (1,)),), ())
    assert merge_tables([two[0], replace(two[1], world_size=3)]).problems != ()


def test_many_ranks_are_named_briefly() -> None:
    assert ranks_text([Rank(3)]) == "rank 3"
    assert (
        ranks_text([Rank(r) for r in range(1024)]) == "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 1016 more"
    )


@settings(max_examples=examples(200))
@given(st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple), st.data())
def test_shards_merge_exactly_when_they_cover_and_all_shared_items_are_asked_for(
    whole: tuple[int, ...], data: st.DataObject
) -> None:
    axes = [
        st.integers(0, n).flatmap(lambda a, n=n: st.tuples(st.just(a), st.integers(0, n - a)))
        for n in whole
    ]
    boxes = data.draw(st.lists(st.tuples(*axes), min_size=1, max_size=6))
    if data.draw(st.booleans()):
        boxes.append(tuple((0, n) for n in whole))
    holders: list[tuple[TensorEntry, ...]] = [
        (shard(tuple(a for a, _ in box), tuple(n for _, n in box), whole),) for box in boxes
    ]
    merged = merge_tables(tables(*holders))

    times = np.zeros(whole, dtype=np.int64)
    for box in boxes:
        times[tuple(slice(a, a + n) for a, n in box)] += 1
    assert (not merged.problems) == bool((times > 0).all())
    if not merged.problems:
        asked = np.zeros(whole, dtype=bool)
        for overlap in merged.overlaps:
            part = tuple(
                slice(a, a + n) for a, n in zip(overlap.offset, overlap.shape, strict=True)
            )
            asked[part] = True
            assert len(overlap.ranks) >= 2
            assert times[part].min() >= 2
        assert (asked == (times > 1)).all()


def test_a_thousand_ranks_merge_hundreds_of_tensors_cut_in_two_axes() -> None:
    side, ranks = 32, []
    for rank in range(side * side):
        x, y = divmod(rank, side)
        ranks.append(
            tuple(shard((8 * x, 8 * y), (8, 8), (256, 256), name=f"t{i}") for i in range(50))
        )
    Random(0).shuffle(ranks)
    merged = merge_tables(tables(*ranks))
    assert merged.problems == merged.overlaps == ()
    assert len(merged.tensors) == 50
    ranks[17] = ranks[17][1:]
    assert [p.name for p in merge_tables(tables(*ranks)).problems] == ["t0"]


def test_a_merged_index_gives_every_box_back_after_its_way_through_the_formats() -> None:
    random = Random(5)
    array = np.arange(24 * 18, dtype="<u2").reshape(24, 18)
    payloads: list[bytes] = []
    holders: list[tuple[TensorEntry, ...]] = []
    for x in range(3):
        for y in range(2):
            held = array[8 * x : 8 * x + 8, 9 * y : 9 * y + 9].tobytes()
            cut = random.randrange(1, len(held))
            payloads.append(held[cut:] + b"\xee" * 5 + held[:cut])
            pieces = (Piece(0, len(held) - cut + 5, cut), Piece(cut, 0, len(held) - cut))
            box = entry("w", SHARD, (24, 18), (8 * x, 9 * y), (8, 9), dtype="<u2", pieces=pieces)
            holders.append((box, entry("own", OWN, (x + 1,), pieces=(Piece(0, 0, x + 1),))))
    merged = merge_tables([decode_table(encode_table(table)) for table in tables(*holders)])
    assert merged.problems == ()

    checkpoint = CheckpointId(RunName("run"), Step(7), Generation(1, 1))
    index = Index(checkpoint, LaunchNumber(1), len(holders), (), merged.tensors)
    (tensor,) = [t for t in decode_index(encode_index(index)).tensors if t.name == "w"]
    plan = plan_read(tensor.boxes, 2, (5, 3), (14, 12))

    out = bytearray(plan.wanted_bytes)
    for source in plan.sources:
        for copy in source.copies():
            part = payloads[source.payload.rank][copy.start : copy.end]
            out[copy.destination : copy.destination + len(part)] = part
    assert bytes(out) == array[5:19, 3:15].tobytes()
    assert plan.missing_bytes == 0
