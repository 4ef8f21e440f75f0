"""Whether a stager's memory still holds a committed payload: its columns' checksums say so.

The index, whose digest the commit record holds, has the checksum of each column as its target
computed it while sealing. A data column is every k-th cell of the payload, so the same figure comes
from memory alone: nothing is fetched, and one pass at memory speed finds any byte that changed. No
byte of it may be used before, so the first part of a load waits for all: columns are read side by
side.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from ckpt.base.units import MiB
from ckpt.format.checksum import crc32
from ckpt.format.index.pages import IndexPayload
from ckpt.format.layout import Layout

ALONE_BYTES: Final = 16 * MiB
"""Fewer bytes are read by the calling thread alone."""


def is_committed(content: memoryview, payload: IndexPayload) -> bool:
    """Whether these bytes are the payload, by every data column's CRC-32.

    False also when the index lacks a data column, so that there is nothing to compare with.
    """
    layout = Layout(payload.code, payload.payload_bytes, payload.cell_bytes)
    if len(content) != payload.payload_bytes:
        return False
    if not content:
        return True
    columns = range(layout.code.k)
    if any(payload.columns[column] is None for column in columns):
        return False

    def is_as_sealed(column: int) -> bool:
        return _column_crc(content, layout, column) == payload.column_crcs[column]

    if len(content) < ALONE_BYTES:
        return all(map(is_as_sealed, columns))
    threads = min(layout.code.k, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(threads, thread_name_prefix="ckpt-check") as pool:
        return all(pool.map(is_as_sealed, columns))


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
