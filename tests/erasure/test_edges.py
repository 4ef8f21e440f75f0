"""ISA-L's vector loops stay inside a cell that ends where the mapped memory ends."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

from ckpt.erasure.code import Code
from ckpt.erasure.codec import codec_for
from tests.erasure.cells import data_cells, parity_by_tables

PAGE = mmap.PAGESIZE
PROT_NONE = 0


def page_before_a_wall() -> memoryview:
    """A page whose next one may be neither read nor written: a byte too far ends the process."""
    view = memoryview(mmap.mmap(-1, 2 * PAGE))
    address = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(address + PAGE), ctypes.c_size_t(PAGE), PROT_NONE) == 0
    return view[:PAGE]


def test_no_byte_behind_a_cell_is_read_or_written() -> None:
    code = Code(4, 2)
    pages = [page_before_a_wall() for _ in range(code.n)]
    for length in [*range(1, 300), 1000, PAGE - 1, PAGE]:
        data = data_cells(code, length)
        columns = [page[PAGE - length :] for page in pages]
        for column, source in zip(columns, data, strict=False):
            column[:] = source
        codec_for(code).encode(columns[: code.k], columns[code.k :])
        assert [bytes(cell) for cell in columns[code.k :]] == parity_by_tables(code, data), length
        lost = {1: columns[1], 4: columns[4]}
        for column in lost.values():
            column[:] = bytes(length)
        present = {at: cell for at, cell in enumerate(columns) if at not in lost}
        codec_for(code).reconstruct(present, lost)
        assert bytes(columns[1]) == data[1], length
