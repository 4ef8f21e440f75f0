"""Cells from cells. An address is passed on only for a checked buffer.

A caller that breaks a rule gets ValueError: an assert can be switched off, and then C code would
write where it must not.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Final

import numpy as np

from ckpt.native.arrays import Crcs, address_of
from ckpt.native.isal import TABLE_BYTES_PER_COEFFICIENT, Tables, find_isal
from ckpt.native.library import find_library

CELL_BYTES_MAX: Final = (1 << 31) - 1
"""ISA-L takes lengths as C ints."""
COLUMNS_MAX: Final = 256
"""`CKPT_COLUMNS_MAX` of source/ckpt_native.h."""


def transform(
    tables: Tables, inputs: Sequence[memoryview], outputs: Sequence[memoryview], *,
    sum_inputs: bool = True,
) -> tuple[Crcs, Crcs]:  # fmt: skip
    """Compute cells from cells by ISA-L's tables; the CRC-32 of all inputs and of all outputs.

    Every cell is a contiguous memoryview of one length, from 0 on; outputs are writable and overlap
    neither an input nor each other. Without `sum_inputs` the first array is empty.
    Raises ValueError for other buffers, and CkptError where there is no library.
    """
    length, count = inputs[0].nbytes, len(inputs)
    _check_tables(tables, count, len(outputs))
    _check_cells(length, inputs, outputs)
    crcs = np.zeros(count + len(outputs), np.uint32)
    reads, writes = crcs[:count] if sum_inputs else crcs[:0], crcs[count:]
    if not length:
        return reads, writes
    # The arrays keep the buffers exported, so nobody can free them during the call.
    arrays = [np.frombuffer(cell, np.uint8) for cell in (*inputs, *outputs)]
    addresses = [address_of(array) for array in arrays]
    _check_overlap(length, addresses, count)
    find_library().transform(
        find_isal().kernels, length, count, len(outputs), tables,
        (ctypes.c_void_p * count)(*addresses[:count]),
        (ctypes.c_void_p * len(outputs))(*addresses[count:]),
        address_of(reads) if sum_inputs else None, address_of(writes),
    )  # fmt: skip
    return reads, writes


def _check_tables(tables: Tables, inputs: int, outputs: int) -> None:
    needed = TABLE_BYTES_PER_COEFFICIENT * inputs * outputs
    if max(inputs, outputs) > COLUMNS_MAX or len(tables) != needed:
        raise ValueError(f"{len(tables)} bytes of tables for {inputs} inputs, {outputs} outputs")


def _check_cells(length: int, inputs: Sequence[memoryview], outputs: Sequence[memoryview]) -> None:
    """Lengths, contiguity and writability, without which C must not be called."""
    if length > CELL_BYTES_MAX:
        raise ValueError(f"cells of {length} bytes: at most {CELL_BYTES_MAX} are allowed")
    for cell in (*inputs, *outputs):
        if cell.nbytes != length or not cell.c_contiguous:
            raise ValueError(f"a cell of {cell.nbytes} bytes among contiguous ones of {length}")
    if any(cell.readonly for cell in outputs):
        raise ValueError("an output is read-only")


def _check_overlap(length: int, addresses: Sequence[int], input_count: int) -> None:
    """Inputs may be one and the same (a page of zeros); an output is nobody else's."""
    for index in range(input_count, len(addresses)):
        begin = addresses[index]
        if any(abs(begin - other) < length for other in addresses[:index]):
            raise ValueError("an output overlaps an input or another output")
