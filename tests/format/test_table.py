"""Rank tables come back equal; what breaks a rule is refused on both sides."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ckpt.base.errors import Corrupt, Refused
from ckpt.base.ids import Generation, Rank
from ckpt.format.checksum import crc32
from ckpt.format.envelope import ENVELOPE_BYTES, Packing, wrap
from ckpt.format.table import (
    DIM_MAX,
    MAGIC,
    Meaning,
    Piece,
    RankTable,
    TensorEntry,
    encode_table,
)
from ckpt.format.table_decoding import TableDecoder, decode_table
from tests.format.strategies import flipped, masks, positions, read_or_refused

SHARD = TensorEntry(
    name="w",
    meaning=Meaning.SHARD,
    dtype="<f4",
    global_shape=(8, 4),
    offset=(2, 0),
    shape=(2, 4),
    pieces=(Piece(0, 4096, 16), Piece(16, 0, 16)),
    fingerprint=bytes(16),
)


@st.composite
def entries(draw: st.DrawFn, name: str) -> TensorEntry:
    """Any entry that keeps the rules."""
    meaning = draw(st.sampled_from(Meaning))
    dims = draw(st.lists(st.tuples(*[st.integers(0, 1 << 40)] * 3), max_size=4))
    shard = meaning is Meaning.SHARD
    pieces, start = [], 0
    for gap, at, length in draw(st.lists(st.tuples(*[st.integers(1, 1 << 30)] * 3), max_size=3)):
        home = draw(st.sampled_from([None, Generation(0, 0), Generation(at, length)]))
        piece = Piece(start + gap - 1, at, length)
        pieces.append(piece if home is None else piece.at(home))
        start += gap + length
    return TensorEntry(
        name=name,
        meaning=meaning,
        dtype=draw(st.sampled_from(["<f4", "bfloat16", ">i8"])),
        global_shape=tuple(a + b + c for a, b, c in dims),
        offset=tuple(a if shard else 0 for a, _, _ in dims),
        shape=tuple(b if shard else a + b + c for a, b, c in dims),
        pieces=tuple(pieces),
        fingerprint=draw(st.sampled_from([b"", bytes(range(16))])),
    )


@st.composite
def tables(draw: st.DrawFn) -> RankTable:
    """Any table that keeps the rules."""
    names = sorted(draw(st.sets(st.text(max_size=20), max_size=6)))
    rank = draw(st.integers(0, 1000))
    return RankTable(Rank(rank), rank + 1, tuple(draw(entries(name)) for name in names))


@given(tables())
def test_a_table_comes_back_equal(table: RankTable) -> None:
    assert decode_table(encode_table(table)) == table


@given(tables(), positions, masks)
def test_a_damaged_table_is_refused(table: RankTable, position: int, mask: int) -> None:
    with pytest.raises(Corrupt):
        decode_table(flipped(encode_table(table), position, mask))


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(noise: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_table(noise)
    with pytest.raises(Corrupt):
        decode_table(wrap(MAGIC, 1, noise, Packing.LZ4))


@given(tables(), positions, masks)
def test_a_lying_stager_is_refused_or_read(table: RankTable, position: int, mask: int) -> None:
    body = encode_table(table)
    raw = msgspec.msgpack.encode([table.rank, table.world_size, []])
    found = read_or_refused(decode_table, wrap(MAGIC, 1, flipped(raw, position, mask), Packing.LZ4))
    assert found is None or found.entries == ()
    assert len(body) >= ENVELOPE_BYTES


def as_wire(table: RankTable) -> bytes:
    """The document of any table, without the encoder's checks."""
    entries = [
        [e.name, e.meaning.value, e.dtype, e.global_shape, e.offset, e.shape,
         [[p.start, p.payload_offset, p.length] for p in e.pieces], e.fingerprint]
        for e in table.entries
    ]  # fmt: skip
    raw = msgspec.msgpack.encode([table.rank, table.world_size, entries])
    return wrap(MAGIC, 1, raw, Packing.LZ4)


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        (replace(SHARD, name="n" * 5000), "name"),
        (replace(SHARD, dtype=""), "dtype"),
        (replace(SHARD, dtype="f\n4"), "dtype"),
        (replace(SHARD, global_shape=(1,) * 65, offset=(0,) * 65, shape=(1,) * 65), "bounds"),
        (replace(SHARD, global_shape=(8, -1)), "bounds"),
        (replace(SHARD, global_shape=(8, DIM_MAX + 1)), "bounds"),
        (replace(SHARD, shape=(2,)), "dimensions"),
        (replace(SHARD, offset=(7, 0)), "not inside"),
        (replace(SHARD, offset=(-1, 0)), "not inside"),
        (replace(SHARD, meaning=Meaning.OWN), "only a shard"),
        (replace(SHARD, fingerprint=b"x"), "fingerprint"),
        (replace(SHARD, pieces=(Piece(0, 0, 9), Piece(8, 9, 1))), "overlap"),
        (replace(SHARD, pieces=(Piece(0, 0, 0),)), "overlap"),
        (replace(SHARD, pieces=(Piece(0, 1 << 44, 1),)), "outside"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_entry_that_breaks_a_rule_is_refused_on_both_sides(bad: TensorEntry, word: str) -> None:
    table = RankTable(Rank(0), 1, (bad,))
    with pytest.raises(Refused, match=word):
        encode_table(table)
    with pytest.raises(Corrupt, match=word):
        decode_table(as_wire(table))


@pytest.mark.parametrize(
    "piece", [[0, 0], [0, 0, 9, 1], [0, 0, 9, -1, 2], [0, 0, 9, 1, -2], [0, 0, 9, 1, 2, 3]]
)
def test_a_piece_is_three_numbers_and_perhaps_a_generation(piece: list[int]) -> None:
    entry = ["w", "shard", "<f4", [8, 4], [2, 0], [2, 4], [piece], b""]
    raw = msgspec.msgpack.encode([0, 1, [entry]])
    with pytest.raises(Corrupt, match="piece"):
        decode_table(wrap(MAGIC, 1, raw, Packing.LZ4))


def test_names_are_unique_and_ascending() -> None:
    for names in (("b", "a"), ("a", "a")):
        table = RankTable(Rank(0), 1, tuple(replace(SHARD, name=name) for name in names))
        with pytest.raises(Refused, match="ascending"):
            encode_table(table)
        with pytest.raises(Corrupt, match="ascending"):
            decode_table(as_wire(table))


def test_a_rank_outside_of_its_world_is_refused() -> None:
    for rank, world_size in ((1, 1), (-1, 2), (0, (1 << 20) + 1)):
        with pytest.raises(Refused):
            encode_table(RankTable(Rank(rank), world_size, ()))


def test_a_raw_size_over_the_limit_is_refused_before_anything_is_unpacked() -> None:
    document = bytearray(encode_table(RankTable(Rank(0), 1, (SHARD,))))
    document[8:16] = (1 << 50).to_bytes(8, "little")
    crc = crc32(bytes(document[ENVELOPE_BYTES:]), crc32(bytes(document[:28])))
    document[28:32] = crc.to_bytes(4, "little")
    with pytest.raises(Corrupt, match="allowed"):
        decode_table(document)


@given(tables(), st.integers(1, 4))
def test_a_slice_at_a_time_it_is_the_same_table(table: RankTable, count: int) -> None:
    decoder = TableDecoder(encode_table(table))
    assert len(decoder) == len(table.entries)
    entries = []
    while not decoder.done:
        slice_ = decoder.go_on(count)
        assert 0 < len(slice_) <= count
        entries += slice_
    assert tuple(entries) == table.entries
    assert decoder.table() == table


def test_names_ascend_across_slices_as_well() -> None:
    entry = TensorEntry("a", Meaning.OWN, "<f4", (1,), (0,), (1,), (Piece(0, 0, 4),))
    decoder = TableDecoder(as_wire(RankTable(Rank(0), 1, (entry, entry))))
    assert decoder.go_on(1) == [entry]
    with pytest.raises(Corrupt, match="unique and ascending"):
        decoder.go_on(1)
