"""Encodes and reconstructs cells in place: the one door to the erasure code.

A codec picks the k source columns and keeps tables for the patterns that it meets; native code
computes, and takes the checksums of what it read and wrote while that is in the cache.

Sketch: 4+2 over cells of 4 MiB reads 16 MiB for each stripe once and writes 8, about 4 ms. The
checks of `cells` cost 10 to 20 us, and the GIL is free during the rest. No byte is copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Final

from ckpt.erasure.code import Code
from ckpt.erasure.matrix import recovery_matrix
from ckpt.native import cells
from ckpt.native.arrays import Crcs
from ckpt.native.isal import Tables, find_isal

MATRIX_ID: Final = 1
"""Names, in every manifest, the coding matrix that made the parity (`matrix.coding_matrix`)."""
CODE_VERSION: Final = 1
"""In every manifest: grows if equal data ever encodes to other parity."""

PATTERNS_CACHED_MAX: Final = 1024
"""Tables kept for each code. 1024 patterns of the widest code take 4 MiB."""


class Codec:
    """Encodes and reconstructs for one code. Safe to share between threads.

    Every cell of a call is a contiguous memoryview of the same length, which may be anything from
    0; outputs are writable and overlap neither an input nor each other. A caller that breaks this
    gets ValueError. Checksums are CRC-32.
    """

    def __init__(self, code: Code) -> None:
        """Raises CkptError when this machine has no ISA-L."""
        self.code = code
        self._isal = find_isal()
        self._data = tuple(range(code.k))
        self._parity = tuple(range(code.k, code.n))
        #: (sources, wanted) -> their tables. The least recently used are dropped.
        self._tables = lru_cache(maxsize=PATTERNS_CACHED_MAX)(self._prepare)

    def encode(self, data: Sequence[memoryview], parity: Sequence[memoryview]) -> tuple[Crcs, Crcs]:
        """Computes all m parity cells from the k data cells; the checksums of both."""
        return self._encode(self._parity, data, parity, sum_inputs=True)

    def encode_rows(
        self, rows: Sequence[int], data: Sequence[memoryview], outputs: Sequence[memoryview]
    ) -> Crcs:
        """Computes the parity cells of some columns only, and their checksums; `rows` are column
        numbers k .. n-1.
        """
        return self._encode(tuple(rows), data, outputs, sum_inputs=False)[1]

    def reconstruct(
        self, present: Mapping[int, memoryview], wanted: Mapping[int, memoryview]
    ) -> dict[int, int]:
        """Computes the wanted columns, data or parity, from any k (or more) present ones; their
        checksums by column.

        The k lowest present column numbers are read; the others are left alone.
        """
        columns = range(self.code.n)
        if any(column not in columns for column in (*present, *wanted)):
            raise ValueError(f"{self.code} has no such columns: {[*present, *wanted]}")
        if len(present) < self.code.k or present.keys() & wanted.keys():
            raise ValueError(f"{self.code} cannot make {[*wanted]} of columns {[*present]}")
        sources = tuple(sorted(present)[: self.code.k])
        lost = tuple(sorted(wanted))
        if not lost:
            return {}
        _, crcs = cells.transform(
            self._tables(sources, lost),
            [present[at] for at in sources], [wanted[at] for at in lost], sum_inputs=False,
        )  # fmt: skip
        return dict(zip(lost, crcs.tolist(), strict=True))

    def _encode(
        self, rows: tuple[int, ...], data: Sequence[memoryview], outputs: Sequence[memoryview], *,
        sum_inputs: bool,
    ) -> tuple[Crcs, Crcs]:  # fmt: skip
        if len(data) != self.code.k or any(row not in self._parity for row in rows):
            raise ValueError(f"{self.code} cannot encode columns {rows} from {len(data)} cells")
        if len(outputs) != len(rows):
            raise ValueError(f"{len(outputs)} outputs for columns {rows}")
        return cells.transform(self._tables(self._data, rows), data, outputs, sum_inputs=sum_inputs)

    def _prepare(self, sources: tuple[int, ...], wanted: tuple[int, ...]) -> Tables:
        return self._isal.tables(recovery_matrix(self.code, sources, wanted))


@cache
def codec_for(code: Code) -> Codec:
    """The shared codec of a code; raises CkptError when this machine has no ISA-L."""
    return Codec(code)
