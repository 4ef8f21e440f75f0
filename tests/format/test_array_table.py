"""The table of a rank that is alone: as arrays it says and becomes what it does entry by entry."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ckpt.base.errors import Corrupt
from ckpt.base.ids import Rank
from ckpt.base.limits import PAYLOAD_BYTES_MAX, TENSOR_NAME_BYTES_MAX
from ckpt.format import array_table
from ckpt.format.array_table import ArrayTable
from ckpt.format.envelope import Packing, wrap
from ckpt.format.index.document import TensorPages
from ckpt.format.packed_table import Table, table_arrays
from ckpt.format.table import (
    MAGIC,
    VERSION,
    HomePiece,
    Meaning,
    Piece,
    RankTable,
    TensorEntry,
    encode_sound_table,
    encode_table,
)
from ckpt.format.table_decoding import decode_table
from ckpt.plan.coverage import TableMerger
from ckpt.plan.tensor_merger import Differing
from tests.format.strategies import flipped, masks, positions
from tests.format.test_packed_table import body
from tests.format.test_table import entries, tables

ONE = TensorEntry("w", Meaning.OWN, "<f4", (8, 4), (0, 0), (8, 4), (Piece(0, 4096, 128),))


def as_arrays(document: bytes) -> ArrayTable | None:
    arrays = table_arrays(document)
    return None if arrays is None else ArrayTable.of(arrays)


@st.composite
def whole_entries(draw: st.DrawFn, name: str) -> TensorEntry:
    """A tensor in one piece, or nearly."""
    shape = tuple(draw(st.lists(st.integers(0, 70), max_size=3)))
    dtype, size = draw(st.sampled_from([("<f4", 4), ("bfloat16", 2), ("unheard", 1)]))
    for count in shape:
        size *= count
    piece = Piece(draw(st.sampled_from([0, 0, 0, 1])), draw(st.integers(0, 1 << 40)), size or 1)
    return TensorEntry(
        name, draw(st.sampled_from(Meaning)), dtype, shape, (0,) * len(shape), shape, (piece,)
    )


@st.composite
def lone_tables(draw: st.DrawFn) -> RankTable:
    """Of a rank alone: most of its tensors are whole, some have several boxes or a fault."""
    names = sorted(draw(st.sets(st.text("ab.é", max_size=6), max_size=12)))
    found: list[TensorEntry] = []
    for name in names:
        entry = draw(st.one_of(whole_entries(name), whole_entries(name), entries(name)))
        found.append(entry)
        if entry.meaning is Meaning.SHARD and draw(st.booleans()) and entry.offset:
            offset = (entry.offset[0] + 1, *entry.offset[1:])
            if offset[0] + entry.shape[0] <= entry.global_shape[0]:
                found.append(replace(entry, offset=offset))
    return RankTable(Rank(0), 1, tuple(found))


def paged(table: Table) -> tuple[list[bytes], list[object], list[str]]:
    """Packed pages, their entries in the directory, and what is wrong."""
    pages = TensorPages(in_rows=True)
    merger = TableMerger([table], Differing.ABORT, pages)
    while not merger.done:
        merger.go_on(5)
    pages.finish()
    return pages.parts, list(pages.entries), [problem.message for problem in merger.problems]


@given(st.one_of(tables(), lone_tables()))
def test_it_holds_what_was_declared(table: RankTable) -> None:
    found = as_arrays(encode_table(table))
    assert found is not None
    assert found.unpacked() == table
    pieces = [piece for entry in table.entries for piece in entry.pieces]
    here = [piece for piece in pieces if piece.home is None]
    assert found.here_end() == max([p.payload_offset + p.length for p in here], default=0)
    assert found.away() == table.away()
    assert found.away_bytes() == table.away_bytes()


@given(lone_tables())
def test_it_becomes_the_same_pages_and_problems(table: RankTable) -> None:
    found = as_arrays(encode_table(table))
    assert found is not None
    assert paged(found) == paged(table)


def test_pages_of_many_tensors_end_where_they_would_one_by_one() -> None:
    random = Random(7)
    made: list[TensorEntry] = []
    for number in range(9000):
        name = f"{number:05}" + "x" * random.choice((0, 1, 30, 900))
        shape = tuple(random.randrange(1, 5) for _ in range(random.randrange(7)))
        size = 4
        for count in shape:
            size *= count
        pieces = (Piece(0, random.randrange(1 << 40), size),)
        if number % 500 == 77:  # In two pieces: it goes its own way.
            pieces = (Piece(0, 0, 1), Piece(1, 8, size - 1))
        made.append(
            TensorEntry(name, Meaning.REPLICATED, "<f4", shape, (0,) * len(shape), shape, pieces)
        )
    table = RankTable(Rank(0), 1, tuple(made))
    found = as_arrays(encode_table(table))
    assert found is not None
    assert len(found.kinds) > 512, "more kinds than C keeps in mind"
    parts, directory, problems = paged(table)
    assert len(parts) > 20
    assert paged(found) == (parts, directory, problems)


@given(
    st.one_of(tables(), lone_tables()),
    st.lists(st.tuples(positions, masks), min_size=1, max_size=2),
)
def test_of_a_damaged_body_it_takes_what_the_decoder_does(
    table: RankTable, damages: list[tuple[int, int]]
) -> None:
    raw = body(encode_table(table))
    for position, mask in damages:
        raw = flipped(raw, position, mask)
    damaged = wrap(MAGIC, VERSION, raw, Packing.LZ4)
    found = as_arrays(damaged)
    if found is not None:
        assert found.unpacked() == decode_table(damaged)
        assert paged(found) == paged(decode_table(damaged))


@pytest.mark.parametrize(
    "bad",
    [
        (replace(ONE, name="b"), replace(ONE, name="a")),
        (ONE, ONE),
        (replace(ONE, name="é"), ONE),
        (replace(ONE, name="x" * (TENSOR_NAME_BYTES_MAX + 1)),),
        (replace(ONE, pieces=(Piece(0, PAYLOAD_BYTES_MAX - 127, 128),)),),
        (replace(ONE, dtype="x" * 33),),
        (replace(ONE, offset=(1, 0)),),
        (replace(ONE, fingerprint=b"x"),),
        (replace(ONE, pieces=(HomePiece(0, 0, 9, -1, 2),)),),
        (replace(ONE, pieces=(Piece(0, 0, 9), Piece(8, 9, 1))),),
    ],
)
def test_what_breaks_a_rule_is_left_to_the_decoder(bad: tuple[TensorEntry, ...]) -> None:
    document = encode_sound_table(RankTable(Rank(0), 1, bad))
    assert as_arrays(document) is None
    with pytest.raises(Corrupt):
        decode_table(document)


def test_a_further_box_of_a_whole_tensor_is_merged_with_it() -> None:
    whole = replace(ONE, meaning=Meaning.SHARD)
    part = replace(whole, offset=(4, 0), shape=(4, 4), pieces=(Piece(0, 8192, 64),))
    table = RankTable(Rank(0), 1, (whole, part, replace(ONE, name="x")))
    found = as_arrays(encode_table(table))
    assert found is not None
    assert paged(found) == paged(table)


def test_a_table_of_many_odd_entries_is_left_to_the_decoder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(array_table, "DECODED_MAX", 4)
    odd = [replace(ONE, name=f"é{number}") for number in range(4)]
    assert as_arrays(encode_table(RankTable(Rank(0), 1, tuple(odd[:3])))) is not None
    assert as_arrays(encode_table(RankTable(Rank(0), 1, tuple(odd)))) is None


def test_a_table_of_many_kinds_is_left_to_the_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of each would be decoded at once, and nobody else heard meanwhile."""
    monkeypatch.setattr(array_table, "DECODED_MAX", 4)
    each = [
        replace(
            ONE,
            name=f"{n}",
            global_shape=(n,),
            offset=(0,),
            shape=(n,),
            pieces=(Piece(0, 0, 4 * n),),
        )
        for n in range(1, 6)
    ]
    assert as_arrays(encode_table(RankTable(Rank(0), 1, tuple(each[:4])))) is not None
    assert as_arrays(encode_table(RankTable(Rank(0), 1, tuple(each)))) is None
