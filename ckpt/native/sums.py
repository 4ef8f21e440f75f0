"""CRC-32 of bytes and of each of their blocks: what a target keeps, and what a reader compares.

Numpy comes in with the first bytes that are summed here: commands receive answers without it.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final, NamedTuple

from ckpt.base.limits import BLOCK_BYTES
from ckpt.native.isal import find_isal
from ckpt.native.library import find_library

if TYPE_CHECKING:
    from ckpt.native.arrays import Crcs

Buffer = bytes | bytearray | memoryview
_UINT32: Final = "I"

assert array(_UINT32).itemsize == 4


class Sums(NamedTuple):
    """The checksums of some bytes."""

    whole: int
    blocks: array[int]
    """Of each block of BLOCK_BYTES, the last one of what is left."""


def blocks_for(length: int) -> array[int]:
    """Room for the checksums of so many bytes' blocks."""
    return array(_UINT32, bytes(4 * -(-length // BLOCK_BYTES)))


def joined(blocks: Crcs, length: int) -> int:
    """CRC-32 of so many bytes, from those of their blocks, which are contiguous."""
    assert blocks.flags.c_contiguous
    assert len(blocks) == -(-length // BLOCK_BYTES)
    whole: int = find_library().join_blocks(
        blocks.__array_interface__["data"][0], length, BLOCK_BYTES
    )
    return whole


def sums_of(view: Buffer) -> Sums:
    """Sums bytes that lie in memory; those of a `Landing` are summed as they come.

    The buffer is contiguous. Raises CkptError where there is no native library.
    """
    import numpy as np

    from ckpt.native.arrays import address_of

    flat = np.frombuffer(view, np.uint8)
    blocks = blocks_for(flat.nbytes)
    whole = find_library().sum_blocks(
        find_isal().kernels, address_of(flat), flat.nbytes, BLOCK_BYTES, blocks.buffer_info()[0]
    )
    return Sums(whole, blocks)
