"""What a target says of the blocks of one read, against each block looked at by itself."""

from __future__ import annotations

import random
import zlib

import numpy as np
import pytest

from ckpt.base.ids import LaunchNumber
from ckpt.base.limits import BLOCK_BYTES
from ckpt.base.units import KiB
from ckpt.format.column import ColumnHeader
from ckpt.protocol.target.core import SealedColumn
from ckpt.protocol.target.reading.pieces import blocks_between
from ckpt.protocol.target.reading.shared_reads import DiskRead, VerifiedBlocks
from tests.protocol.target_world import CLUSTER, Column

CELLS = {
    "cells of whole blocks": 2 * BLOCK_BYTES,
    "whose last block is short": BLOCK_BYTES + 36 * KiB,
    "of less than a block": 60 * KiB,
}


def _sealed(cell_bytes: int) -> tuple[SealedColumn, bytes]:
    """A column of a few cells, the last one shorter, and its bytes."""
    column = Column(payload_bytes=9 * cell_bytes + 5_000, cell_bytes=cell_bytes, column=0)
    layout = column.layout
    header = ColumnHeader(
        CLUSTER, column.id, LaunchNumber(3), layout.code, layout.payload_bytes, cell_bytes,
        layout.column_bytes, column.crc, 0, 0, b"",
    )  # fmt: skip
    return SealedColumn(header, "a column", 0), column.data


@pytest.mark.parametrize("name", CELLS)
def test_all_is_found_that_each_block_would_say(name: str) -> None:
    sealed, data = _sealed(CELLS[name])
    layout, chance = sealed.header.layout, random.Random(name)
    every = list(blocks_between(layout, 0, layout.column_bytes))
    table = np.zeros(every[-1].number + 1, np.uint32)
    for block in every:
        table[block.number] = zlib.crc32(data[block.start : block.end])
    for _ in range(60):
        first, last = sorted(chance.choices(range(len(every)), k=2))
        start, end = every[first].start, every[last].end
        read = DiskRead(sealed, start, end, (sealed.name, 0))
        came = bytearray(data[start : chance.choice([end, end, chance.randint(start, end)])])
        for _ in range(chance.choice([0, 0, 1, 2]) if came else 0):
            came[chance.randrange(len(came))] ^= 1 << chance.randrange(8)
        found = VerifiedBlocks(read, came, table)
        assert found.bad == [
            block
            for block in every[first : last + 1]
            if came[block.start - start : block.end - start] != data[block.start : block.end]
        ]
        there = start + len(came)
        for _ in range(5):
            low, high = sorted((chance.randint(start, there), chance.randint(start, there)))
            low, high = chance.choice([(start, there), (low, high)])
            assert found.checksum(low, high) == zlib.crc32(came[low - start : high - start])
