"""What C and numpy take of a table is what the decoder takes, and nothing else is taken."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ckpt.base.errors import Corrupt
from ckpt.base.ids import Generation, Rank
from ckpt.base.limits import TABLE_BYTES_MAX
from ckpt.format.envelope import Packing, unwrap, wrap
from ckpt.format.packed_table import PackedTable, TableForm, table_arrays
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
from ckpt.native.tables import read_table
from tests.format.strategies import flipped, masks, positions
from tests.format.test_table import SHARD, tables


def body(document: bytes) -> bytes:
    return unwrap(MAGIC, VERSION, document, TABLE_BYTES_MAX)


def packed_like(first: RankTable, document: bytes) -> PackedTable | None:
    """A document as one that comes after `first`."""
    arrays = table_arrays(encode_table(first))
    assert arrays is not None
    other = table_arrays(document)
    return None if other is None else TableForm(first, arrays).pack(other)


@given(tables())
def test_a_table_comes_back_equal_in_whichever_place_of_its_form(table: RankTable) -> None:
    arrays = table_arrays(encode_table(table))
    assert arrays is not None
    form = TableForm(table, arrays)
    assert form.pack_first(table, arrays).unpacked() == table
    packed = form.pack(arrays)
    assert packed is not None
    assert packed.unpacked() == table
    pieces = [piece for entry in table.entries for piece in entry.pieces]
    here = [piece for piece in pieces if piece.home is None]
    assert packed.here_end() == max([p.payload_offset + p.length for p in here], default=0)
    assert packed.away_bytes() == table.away_bytes()
    assert {p.home: end(p) for p in sorted(packed.away(), key=end)} == {
        p.home: end(p) for p in sorted(table.away(), key=end)
    }


def end(piece: HomePiece) -> int:
    return piece.payload_offset + piece.length


@given(tables(), st.lists(st.tuples(positions, masks), min_size=1, max_size=2))
def test_what_is_packed_of_a_damaged_body_is_what_the_decoder_makes_of_it(
    table: RankTable, damages: list[tuple[int, int]]
) -> None:
    raw = body(encode_table(table))
    for position, mask in damages:
        raw = flipped(raw, position, mask)
    damaged = wrap(MAGIC, VERSION, raw, Packing.LZ4)
    packed = packed_like(table, damaged)
    if packed is not None:
        assert packed.unpacked() == decode_table(damaged)


@given(st.binary(max_size=200))
def test_noise_is_no_table(noise: bytes) -> None:
    arrays = read_table(noise)
    if arrays is not None:
        assert msgspec.msgpack.decode(noise, type=tuple[int, int, list[object]], strict=False)


ONE = replace(SHARD, pieces=(Piece(0, 4096, 32),))
"""In one piece: C and numpy alone look at it."""
SHARD_OUT = replace(SHARD, offset=(7, 0))
"""In two, and out of its tensor."""


@pytest.mark.parametrize(
    "bad",
    [
        replace(ONE, offset=(7, 0)),
        replace(ONE, shape=(9, 4)),
        replace(ONE, offset=((1 << 63) - 1, 0)),
        replace(ONE, fingerprint=b"x"),
        replace(ONE, offset=(-1, 0)),
        replace(ONE, pieces=(Piece(0, 0, 0),)),
        replace(ONE, pieces=(Piece(1 << 44, 0, 1),)),
        replace(ONE, pieces=(Piece(0, 1 << 44, 1),)),
        replace(ONE, pieces=(Piece(0, 0, 1 << 45),)),
        SHARD_OUT,
        replace(ONE, pieces=(Piece(0, 0, 9), Piece(8, 9, 1))),
        replace(ONE, pieces=(Piece(0, 0, 9), Piece(9, 9, 0))),
        replace(ONE, pieces=(HomePiece(0, 0, 9, -1, 2),)),
        replace(ONE, shape=(2,), offset=(2,)),
        replace(ONE, global_shape=(9, 4)),
        replace(ONE, name="v"),
    ],
)
def test_what_breaks_a_rule_or_has_another_form_is_not_packed(bad: TensorEntry) -> None:
    first = RankTable(Rank(0), 2, (ONE,))
    document = encode_sound_table(RankTable(Rank(1), 2, (bad,)))
    assert packed_like(first, document) is None


def test_a_whole_tensor_is_no_part_of_another() -> None:
    own = replace(SHARD, meaning=Meaning.OWN, offset=(0, 0), shape=(8, 4), pieces=())
    first = RankTable(Rank(0), 2, (own,))
    part = encode_sound_table(RankTable(Rank(1), 2, (replace(own, shape=(4, 4)),)))
    assert packed_like(first, part) is None
    with pytest.raises(Corrupt, match="only a shard"):
        decode_table(part)


def test_boxes_of_one_tensor_ascend() -> None:
    low, high = replace(SHARD, offset=(0, 0), pieces=()), replace(SHARD, offset=(4, 0), pieces=())
    first = RankTable(Rank(0), 2, (low, high))
    ascending = packed_like(first, encode_sound_table(RankTable(Rank(1), 2, (low, SHARD))))
    assert ascending is not None
    assert ascending.unpacked().entries == (low, SHARD)
    for entries in ((high, low), (low, low)):
        document = encode_sound_table(RankTable(Rank(1), 2, entries))
        assert packed_like(first, document) is None
        with pytest.raises(Corrupt, match="unique and ascending"):
            decode_table(document)


def test_a_rank_that_cannot_be_is_not_packed() -> None:
    first = RankTable(Rank(0), 2, (SHARD,))
    assert packed_like(first, encode_sound_table(RankTable(Rank(2), 2, (SHARD,)))) is None


def test_equal_numbers_are_kept_once() -> None:
    first = RankTable(Rank(0), 2, (SHARD, replace(SHARD, name="x", pieces=())))
    arrays = table_arrays(encode_table(first))
    assert arrays is not None
    form = TableForm(first, arrays)
    one = form.pack_first(first, arrays)
    moved = replace(first, rank=Rank(1), entries=tuple(
        replace(entry, offset=(4, 0)) for entry in first.entries
    ))  # fmt: skip
    other_arrays = table_arrays(encode_table(moved))
    assert other_arrays is not None
    other = form.pack(other_arrays)
    assert other is not None
    assert other.shapes is one.shapes
    assert other.places is one.places
    assert other.offsets is not one.offsets
    assert other.unpacked() == moved


def test_the_last_piece_of_each_home_is_found() -> None:
    homes = Generation(1, 1), Generation(2, 1), Generation(2, 2)
    entries = tuple(
        replace(SHARD, name=f"n{n}", pieces=(Piece(0, at, 8).at(homes[home]),), fingerprint=b"")
        for n, (home, at) in enumerate([(0, 8), (1, 64), (2, 0), (0, 24), (2, 16), (1, 0)])
    )
    table = RankTable(Rank(0), 1, entries)
    packed = packed_like(table, encode_table(table))
    assert packed is not None
    assert {(piece.home, piece.payload_offset) for piece in packed.away()} == {
        (homes[0], 24), (homes[1], 64), (homes[2], 16),
    }  # fmt: skip
    assert packed.away_bytes() == 48


def named(*names: str, **changes: object) -> tuple[TensorEntry, ...]:
    return tuple(replace(SHARD, name=name, **changes) for name in names)


@pytest.mark.parametrize("names", ["abcd", "abd", "bcd", "abc", "aabbcd", "abcde", "abbcd", "acd"])
def test_a_table_that_has_more_or_less_than_the_form_comes_back_equal(names: str) -> None:
    first = RankTable(Rank(0), 2, named("a", "b", "c", "d"))
    spelled = [name * (1 + names[:n].count(name)) for n, name in enumerate(names)]
    table = RankTable(Rank(1), 2, named(*spelled, offset=(1, 0)))
    packed = packed_like(first, encode_table(table))
    assert packed is not None
    assert packed.unpacked() == table
    assert {entry.name for entry in packed.further} == set(spelled) - set("abcd")
    assert [packed.has(n) for n in range(4)] == [name in spelled for name in "abcd"]


def test_a_table_that_has_little_of_the_form_is_not_like_it() -> None:
    first = RankTable(Rank(0), 2, named("a", "b", "c", "d"))
    for names in ("a", "aefgh", "efgh", ""):
        document = encode_table(RankTable(Rank(1), 2, named(*names)))
        assert packed_like(first, document) is None


@pytest.mark.parametrize("names", ["bacd", "abdcz", "abcdd", "abcda", "zabcd"])
def test_names_ascend_also_where_a_table_has_more_than_the_form(names: str) -> None:
    first = RankTable(Rank(0), 2, named("a", "b", "c", "d"))
    own = {"meaning": Meaning.REPLICATED, "offset": (0, 0), "shape": (8, 4)}
    first = replace(first, entries=tuple(replace(e, **own) for e in first.entries))
    document = encode_sound_table(RankTable(Rank(1), 2, named(*names, **own)))
    assert packed_like(first, document) is None
    with pytest.raises(Corrupt, match="unique and ascending"):
        decode_table(document)


def test_what_is_wrong_with_an_entry_that_the_form_has_not_is_seen() -> None:
    first = RankTable(Rank(0), 2, named("a", "b", "c", "d"))
    bad = replace(SHARD, name="bb", dtype="", pieces=())
    entries = (*first.entries[:2], bad, *first.entries[2:])
    document = encode_sound_table(RankTable(Rank(1), 2, entries))
    assert packed_like(first, document) is None


def test_a_whole_tensor_is_no_part_also_where_the_table_lacks_another() -> None:
    whole = {"meaning": Meaning.OWN, "offset": (0, 0), "shape": (8, 4), "pieces": ()}
    first = RankTable(Rank(0), 2, named(*"abcd", **whole))
    part = replace(first.entries[0], shape=(4, 4))
    document = encode_sound_table(RankTable(Rank(1), 2, (part, *first.entries[1:3])))
    assert packed_like(first, document) is None
    with pytest.raises(Corrupt, match="only a shard"):
        decode_table(document)
