"""Which columns of a generation lie elsewhere than its index says, of one page of its ranks.

The file of a column names no target: a right copy is the same bytes anywhere. So a column may get
another holder while index and record stay as they are; only what has moved is written down, in the
catalog, and readers are given it beside the index. Page p is of the ranks from p * RANKS_A_PAGE on:
what changes writes one page again, however many ranks there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct

from ckpt.base.errors import Corrupt
from ckpt.base.ids import ColumnNumber, Rank, TargetId
from ckpt.base.limits import CODE_COLUMNS_MAX
from ckpt.base.units import MiB
from ckpt.format.checksum import Buffer
from ckpt.format.envelope import Packing, decode_body, unwrap, wrap

MOVES_MAGIC: Final = b"CKPV"
VERSION: Final = 1
RANKS_A_PAGE: Final = 1024
MOVES_BYTES_MAX: Final = 4 * MiB
"""Before packing: of all columns of a page, each on a target of its own with the longest name."""

Moves = Mapping[tuple[Rank, ColumnNumber], TargetId]
"""The holder of each column that has moved."""


class _Page(Struct, array_like=True, frozen=True, gc=False):
    number: int
    targets: tuple[TargetId, ...]
    """Ascending."""
    moves: tuple[tuple[int, int, int], ...]
    """Rank in the page, column, number of the target; ascending."""


_ENCODER: Final = msgspec.msgpack.Encoder()
_PAGE: Final = msgspec.msgpack.Decoder(_Page)


def page_of(rank: Rank) -> int:
    """The number of the page that says where a rank's columns are."""
    return rank // RANKS_A_PAGE


def encode_moves(page: int, moves: Moves) -> bytes:
    """The document; all ranks are of that page."""
    targets = tuple(sorted(set(moves.values())))
    numbers = {target: number for number, target in enumerate(targets)}
    first = page * RANKS_A_PAGE
    assert all(0 <= rank - first < RANKS_A_PAGE for rank, _ in moves)
    entries = tuple(
        (rank - first, column, numbers[target]) for (rank, column), target in sorted(moves.items())
    )
    return wrap(
        MOVES_MAGIC, VERSION, _ENCODER.encode(_Page(page, targets, entries)), Packing.LZ4
    )  # fmt: skip


def decode_moves(page: int, document: Buffer) -> dict[tuple[Rank, ColumnNumber], TargetId]:
    """The inverse. Raises Corrupt, also for another page's."""
    found = decode_body(_PAGE, unwrap(MOVES_MAGIC, VERSION, document, MOVES_BYTES_MAX))
    if found.number != page:
        raise Corrupt(f"moves of page {found.number} where those of {page} should be")
    moves = {}
    for rank, column, target in found.moves:
        known = 0 <= rank < RANKS_A_PAGE and 0 <= column < CODE_COLUMNS_MAX
        if not (known and 0 <= target < len(found.targets)):
            raise Corrupt(f"moves: rank {rank}, column {column}, target {target} cannot be")
        key = Rank(page * RANKS_A_PAGE + rank), ColumnNumber(column)
        moves[key] = found.targets[target]
    return moves
