"""Whether a stager's memory still holds a committed payload: its columns' checksums say so.

The index, whose digest the commit record holds, has the checksum of each column as its target
computed it while sealing. A data column is every k-th cell of the payload, so the same figure comes
from memory alone: nothing is fetched, and one pass at memory speed finds any byte that changed.
"""

from __future__ import annotations

from ckpt.format.checksum import crc32
from ckpt.format.index_pages import IndexPayload
from ckpt.format.layout import Layout


def is_committed(content: memoryview, payload: IndexPayload) -> bool:
    """Whether these bytes are the payload, by every data column's CRC-32.

    False also when the index lacks a data column, so that there is nothing to compare with.
    """
    layout = Layout(payload.code, payload.payload_bytes, payload.cell_bytes)
    if len(content) != payload.payload_bytes:
        return False
    if not content:
        return True
    return all(
        payload.columns[column] is not None
        and _column_crc(content, layout, column) == payload.column_crcs[column]
        for column in range(layout.code.k)
    )


def _column_crc(content: memoryview, layout: Layout, column: int) -> int:
    """Of one data column's cells, including the zeros after the payload."""
    crc = 0
    for stripe in range(layout.stripe_count):
        size = layout.cell_bytes_of(stripe)
        start = layout.cell_offset(stripe, column)
        cell = content[start : start + size]
        crc = crc32(cell, crc)
        if len(cell) < size:
            crc = crc32(bytes(size - len(cell)), crc)
    return crc
