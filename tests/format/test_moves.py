"""Moves: which columns of a page of ranks lie elsewhere than the index says."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt.base.errors import Corrupt
from ckpt.base.ids import ColumnNumber, Rank, TargetId
from ckpt.base.limits import CODE_COLUMNS_MAX, TARGET_ID_BYTES_MAX
from ckpt.format.documents.moves import (
    MOVES_MAGIC,
    RANKS_A_PAGE,
    VERSION,
    decode_moves,
    encode_moves,
    page_of,
)
from ckpt.format.envelope import Packing, wrap
from tests.format.strategies import flipped, masks, positions, read_or_refused

ranks = st.integers(0, RANKS_A_PAGE - 1)
columns = st.integers(0, CODE_COLUMNS_MAX - 1).map(ColumnNumber)
targets = st.text("abc0-", min_size=1, max_size=8).map(TargetId)
SOME = {(Rank(2048), ColumnNumber(1)): TargetId("b"), (Rank(3071), ColumnNumber(9)): TargetId("a")}


@given(
    st.integers(0, 1023),
    st.dictionaries(st.tuples(ranks, columns), targets, max_size=40),
)
def test_moves_come_back_equal(page: int, within: dict[tuple[int, ColumnNumber], TargetId]) -> None:
    moves = {
        (Rank(page * RANKS_A_PAGE + rank), column): target
        for (rank, column), target in within.items()
    }
    assert decode_moves(page, encode_moves(page, moves)) == moves
    assert {page_of(rank) for rank, _ in moves} <= {page}


def test_a_page_of_which_all_has_moved_fits_a_value_of_a_catalog() -> None:
    """etcd takes 1.5 MiB; 1,024 targets with the longest names."""
    names = [TargetId(f"{number:0{TARGET_ID_BYTES_MAX}}") for number in range(1024)]
    moves = {
        (Rank(rank), ColumnNumber(column)): names[(rank * 7 + column) % 1024]
        for rank in range(RANKS_A_PAGE)
        for column in range(CODE_COLUMNS_MAX)
    }
    document = encode_moves(0, moves)
    assert len(document) < 1 << 20
    assert decode_moves(0, document) == moves


@given(positions, masks)
def test_a_flipped_bit_is_seen(position: int, mask: int) -> None:
    document = flipped(encode_moves(2, SOME), position, mask)
    assert read_or_refused(lambda damaged: decode_moves(2, damaged), document) in (None, SOME)


def test_another_pages_moves_are_refused() -> None:
    with pytest.raises(Corrupt, match="moves of page 2 where those of 1 should be"):
        decode_moves(1, encode_moves(2, SOME))


@pytest.mark.parametrize("move", [(1024, 0, 0), (-1, 0, 0), (0, 32, 0), (0, 0, 1), (0, -1, 0)])
def test_a_move_that_cannot_be_is_refused(move: tuple[int, int, int]) -> None:
    body = msgspec.msgpack.encode((0, ("a",), (move,)))
    with pytest.raises(Corrupt, match="cannot be"):
        decode_moves(0, wrap(MOVES_MAGIC, VERSION, body, Packing.STORED))
