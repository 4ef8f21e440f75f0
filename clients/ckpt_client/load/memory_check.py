"""Whether a stager's memory still holds a committed payload: the checksums of its cells say so.

A stager gives its memory together with the payload's manifest, whose digest stands in the index,
and the index's own digest in the commit record. So each cell is compared when it is first used, and
the first part of a load waits for its own cells alone. Where there is no manifest (a stager of an
earlier version, a very large payload), the index has the checksum of each column as its target
computed it while sealing: then all of the memory is compared before the first byte of it is used.
Either way nothing is fetched. Cells and columns are read side by side.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from ckpt.base.errors import Corrupt
from ckpt.base.units import MiB
from ckpt.format.checksum import crc32, xxh3_128
from ckpt.format.index.pages import IndexPayload
from ckpt.format.layout import Layout
from ckpt.format.manifest import decode_manifest
from ckpt.format.runs import Ranges

ALONE_BYTES: Final = 16 * MiB
"""Fewer bytes are read by the calling thread alone."""
Cell = tuple[int, int]
"""(stripe, data column)."""
Item = TypeVar("Item")


class CheckedMemory:
    """I know which cells of a payload in memory are as they were committed. Used by one thread."""

    def __init__(self, content: memoryview, payload: IndexPayload, manifest: bytes = b"") -> None:
        """manifest: what came with the memory; empty where nothing did."""
        self.content = content
        self._payload = payload
        self._crcs = _cell_crcs(payload, manifest)
        #: Cells that were compared, and are good.
        self._good: set[Cell] = set()
        #: Whether all is; None while it was not compared as a whole.
        self._all_good: bool | None = None if len(content) == payload.payload_bytes else False

    def holds(self, ranges: Ranges) -> bool:
        """Whether these bytes of the payload, [start, end) in each row, lie there unchanged."""
        if self._all_good is None and self._crcs is None:
            self._all_good = is_committed(self.content, self._payload)
        if self._all_good is not None:
            return self._all_good
        layout = _layout_of(self._payload)
        wanted: dict[Cell, int] = {}
        for start, end in ranges.tolist():
            for cell in layout.cells(start, end):
                if (cell.stripe, cell.column) not in self._good:
                    wanted[cell.stripe, cell.column] = layout.cell_bytes_of(cell.stripe)
        whole = _all_side_by_side(self._is_good, wanted, sum(wanted.values()), layout.code.k)
        if whole:
            self._good.update(wanted)
        return whole

    def _is_good(self, cell: Cell) -> bool:
        assert self._crcs is not None
        crc = _cell_crc(self.content, _layout_of(self._payload), *cell)
        return crc == int(self._crcs[cell])


def is_committed(content: memoryview, payload: IndexPayload) -> bool:
    """Whether these bytes are the payload, by every data column's CRC-32.

    False also when the index lacks a data column, so that there is nothing to compare with.
    """
    layout = _layout_of(payload)
    if len(content) != payload.payload_bytes:
        return False
    if not content:
        return True
    columns = range(layout.code.k)
    if any(payload.columns[column] is None for column in columns):
        return False

    def is_as_sealed(column: int) -> bool:
        return _column_crc(content, layout, column) == payload.column_crcs[column]

    return _all_side_by_side(is_as_sealed, columns, len(content), layout.code.k)


def _all_side_by_side(
    is_good: Callable[[Item], bool], items: Collection[Item], size: int, columns: int
) -> bool:
    """Whether all are; size: their bytes."""
    if size < ALONE_BYTES:
        return all(map(is_good, items))
    threads = min(columns, len(os.sched_getaffinity(0)))
    try:
        with ThreadPoolExecutor(threads, thread_name_prefix="ckpt-check") as pool:
            return all(pool.map(is_good, items))
    except RuntimeError:  # The system has no thread left.
        return all(map(is_good, items))


def _cell_crcs(payload: IndexPayload, document: bytes) -> NDArray[np.uint32] | None:
    """Of each [stripe, column]; None when it is not the manifest that the index names."""
    if not document or xxh3_128(document) != payload.manifest_digest:
        return None
    try:
        manifest = decode_manifest(document)
    except Corrupt:
        return None
    return manifest.fragment_crcs if manifest.layout == _layout_of(payload) else None


def _layout_of(payload: IndexPayload) -> Layout:
    return Layout(payload.code, payload.payload_bytes, payload.cell_bytes)


def _column_crc(content: memoryview, layout: Layout, column: int) -> int:
    """Of one data column's cells, including the zeros after the payload."""
    crc = 0
    for stripe in range(layout.stripe_count):
        crc = _cell_crc(content, layout, stripe, column, crc)
    return crc


def _cell_crc(content: memoryview, layout: Layout, stripe: int, column: int, crc: int = 0) -> int:
    """Of one cell, after that of what came before it."""
    size = layout.cell_bytes_of(stripe)
    start = layout.cell_offset(stripe, column)
    cell = content[start : start + size]
    crc = crc32(cell, crc)
    return crc32(bytes(size - len(cell)), crc) if len(cell) < size else crc
