"""Known answers, checked once in each process, or in the one that it was forked from: a target's
before it serves, all others' before they encode or decode. Wrong parity must never reach a disk,
nor wrong bytes a trainer.

The vectors come from pyeclib and from the plain tables of `matrix`, which agreed when they were
made. They are the format's promise as well: parity written today decodes with any later release.
"""

from __future__ import annotations

import hashlib
import zlib
from functools import cache
from typing import Final

from ckpt.base.errors import CkptError
from ckpt.erasure.code import Code
from ckpt.erasure.codec import Codec, codec_for

CELL_BYTES: Final = 1021
"""Odd, so that vector loops and their tails are both walked."""

PARITY_CRC32: Final[dict[str, tuple[int, ...]]] = {
    "1+1": (0x6AC5838A,),
    "1+2": (0x6AC5838A, 0x6AC5838A),
    "2+1": (0xFB6F91F3,),
    "2+2": (0xFB6F91F3, 0xB0EA096E),
    "3+2": (0x1769DB21, 0x086909E6),
    "4+1": (0x8F9872DD,),
    "4+2": (0x8F9872DD, 0xA080DD97),
    "5+3": (0x097DD0E7, 0x067B298E, 0x6EB4FE79),
    "6+3": (0x27FD3CFF, 0xE84B669D, 0x27F7EF5D),
    "8+2": (0x8E05D9A0, 0xEC0A0510),
    "8+3": (0x8E05D9A0, 0xEC0A0510, 0x998E17BE),
    "8+4": (0x8E05D9A0, 0xEC0A0510, 0x998E17BE, 0x36DE3CB6),
    "10+4": (0xBBE4B344, 0xAFF20630, 0x59342194, 0x3A5686E4),
    "12+4": (0x13E071BA, 0xDC576E19, 0xE10AAEEB, 0x99D04F48),
    "16+4": (0x62297B90, 0x5A208D40, 0x72CA5766, 0x05DD5B04),
    "20+4": (0xC75AD981, 0xA7FFCB57, 0xD20058A9, 0x4395842E),
    "28+4": (0x4AE63E93, 0x356A3795, 0x86CE32C4, 0x04C6260F),
}  # fmt: skip
"""Code -> CRC-32 of each parity cell over `data_cell(0)`, `data_cell(1)`, ..."""


def self_test() -> None:
    """Raises CkptError when this machine encodes or decodes otherwise than all others."""
    for text, expected in PARITY_CRC32.items():
        if not _gives_known_answers(codec_for(Code.parse(text)), expected):
            raise CkptError(
                "erasure code gives wrong answers; unsafe to start",
                hint=f"code {text} failed its known-answer test: check memory and CPU",
            )


@cache
def self_test_once() -> None:
    """`self_test`, unless it has passed before."""
    self_test()


def trusted_codec(code: Code) -> Codec:
    """The shared codec, in a process that has given the known answers.

    Raises CkptError when it has not, or when the machine has no backend.
    """
    self_test_once()
    return codec_for(code)


def data_cell(column: int) -> bytes:
    """The test's data: SHAKE-128, so that anyone can make it again."""
    return hashlib.shake_128(f"ckpt erasure self-test, column {column}".encode()).digest(CELL_BYTES)


def _gives_known_answers(codec: Codec, expected: tuple[int, ...]) -> bool:
    """Encodes, compares, then loses the first m columns and decodes them again."""
    code = codec.code
    cells = [memoryview(data_cell(column)) for column in range(code.k)]
    parity = [memoryview(bytearray(CELL_BYTES)) for _ in range(code.m)]
    codec.encode(cells, parity)
    if tuple(zlib.crc32(cell) for cell in parity) != expected:
        return False
    columns = [*cells, *parity]
    present = {column: columns[column] for column in range(code.m, code.n)}
    lost = {column: memoryview(bytearray(CELL_BYTES)) for column in range(code.m)}
    codec.reconstruct(present, lost)
    return all(cell == columns[column] for column, cell in lost.items())
