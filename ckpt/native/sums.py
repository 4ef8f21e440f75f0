"""CRC-32 of bytes and of each of their blocks: what a target keeps, and what a reader compares."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ckpt.base.limits import BLOCK_BYTES
from ckpt.native.arrays import Crcs, address_of
from ckpt.native.isal import find_isal
from ckpt.native.library import find_library

Buffer = bytes | bytearray | memoryview


class Sums(NamedTuple):
    """Of some bytes."""

    whole: int
    blocks: Crcs
    """Of each block of BLOCK_BYTES, the last one of what is left."""


def block_count(length: int) -> int:
    """How many blocks so many bytes have."""
    return -(-length // BLOCK_BYTES)


def sums_of(view: Buffer) -> Sums:
    """Sums bytes that lie in memory; those of a `Landing` are summed as they come.

    The buffer is contiguous. Raises CkptError where there is no native library.
    """
    flat = np.frombuffer(view, np.uint8)
    blocks = np.empty(block_count(flat.nbytes), np.uint32)
    whole = find_library().sum_blocks(
        find_isal().kernels, address_of(flat), flat.nbytes, BLOCK_BYTES, address_of(blocks)
    )
    return Sums(whole, blocks)
