"""Encodes and reconstructs cells in place: the one door to the erasure code.

    Codec        Checks buffers, picks the k source columns, keeps tables for the patterns it meets.
    Backend      Computes: ISA-L by ctypes (`native`), or pyeclib's API (`fallback`). Same bytes.

Sketch: 4+2 over cells of 512 KiB moves 3 MiB for each stripe, about 0.1 ms at 20 GB/s and more.
The checks below cost 10 to 20 us, and the GIL is free during the rest. No byte is copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Final, Protocol

import numpy as np

from ckpt.base.errors import CkptError
from ckpt.erasure import native
from ckpt.erasure.code import Code

MATRIX_ID: Final = 1
"""Stands in every manifest: which coding matrix made the parity (`matrix.coding_matrix`)."""
CODE_VERSION: Final = 1
"""Stands in every manifest: grows if equal data ever encodes to other parity."""

PATTERNS_CACHED_MAX: Final = 1024
"""Tables kept for each code. 1024 patterns of the widest code take 4 MiB."""
LENGTH_BYTES_MAX: Final = (1 << 31) - 1
"""ISA-L takes lengths as C ints."""


class Transform(Protocol):
    """Computes columns from columns, for one pattern of them."""

    def __call__(self, length: int, inputs: Sequence[int], outputs: Sequence[int], /) -> None:
        """Reads `length` bytes at k addresses, writes as many at each output address."""
        ...


class Backend(Protocol):
    """What can compute at all."""

    @property
    def name(self) -> str: ...

    def prepare(self, code: Code, sources: tuple[int, ...], wanted: tuple[int, ...]) -> Transform:
        """What computes the `wanted` columns from the k `sources`; dear, so `Codec` caches it."""
        ...


class Codec:
    """Encodes and reconstructs for one code. Safe to share between threads.

    Every cell of a call is a contiguous memoryview of the same length, which may be anything from
    0; outputs are writable and overlap neither an input nor each other. A caller that breaks this
    gets ValueError: an assert can be switched off, and then C code would write where it must not.
    """

    def __init__(self, code: Code, backend: Backend | None = None) -> None:
        """Over `backend`, else over the fastest one here; raises CkptError when there is none."""
        self.code = code
        self._backend = find_backend() if backend is None else backend
        self._data = tuple(range(code.k))
        self._parity = tuple(range(code.k, code.n))
        #: (sources, wanted) -> what computes it. The least recently used are dropped.
        self._transforms = lru_cache(maxsize=PATTERNS_CACHED_MAX)(self._prepare)

    @property
    def backend_name(self) -> str:
        """`isa-l` or `pyeclib`, for logs and reports."""
        return self._backend.name

    def encode(self, data: Sequence[memoryview], parity: Sequence[memoryview]) -> None:
        """Computes all m parity cells from the k data cells."""
        self.encode_rows(self._parity, data, parity)

    def encode_rows(
        self, rows: Sequence[int], data: Sequence[memoryview], outputs: Sequence[memoryview]
    ) -> None:
        """Computes the parity cells of some columns only; `rows` are column numbers k .. n-1."""
        if len(data) != self.code.k or any(row not in self._parity for row in rows):
            raise ValueError(f"{self.code} cannot encode columns {rows} from {len(data)} cells")
        self._transform(self._data, tuple(rows), data, outputs)

    def reconstruct(
        self, present: Mapping[int, memoryview], wanted: Mapping[int, memoryview]
    ) -> None:
        """Computes the wanted columns, data or parity, from any k (or more) present ones.

        The k lowest present column numbers are read; the others are left alone.
        """
        columns = range(self.code.n)
        if any(column not in columns for column in (*present, *wanted)):
            raise ValueError(f"{self.code} has no such columns: {[*present, *wanted]}")
        if len(present) < self.code.k or present.keys() & wanted.keys():
            raise ValueError(f"{self.code} cannot make {[*wanted]} of columns {[*present]}")
        sources = tuple(sorted(present)[: self.code.k])
        lost = tuple(sorted(wanted))
        self._transform(sources, lost, [present[at] for at in sources], [wanted[at] for at in lost])

    def _prepare(self, sources: tuple[int, ...], wanted: tuple[int, ...]) -> Transform:
        return self._backend.prepare(self.code, sources, wanted)

    def _transform(
        self,
        sources: tuple[int, ...],
        wanted: tuple[int, ...],
        inputs: Sequence[memoryview],
        outputs: Sequence[memoryview],
    ) -> None:
        if len(outputs) != len(wanted):
            raise ValueError(f"{len(outputs)} outputs for columns {wanted}")
        length = inputs[0].nbytes
        _check_cells(length, inputs, outputs)
        if not length or not outputs:
            return
        # The arrays keep the buffers exported, so nobody can free them during the call.
        arrays = [np.frombuffer(cell, np.uint8) for cell in (*inputs, *outputs)]
        addresses = [array.__array_interface__["data"][0] for array in arrays]
        _check_overlap(length, addresses, len(inputs))
        transform = self._transforms(sources, wanted)
        transform(length, addresses[: len(inputs)], addresses[len(inputs) :])


@cache
def codec_for(code: Code) -> Codec:
    """The shared codec of a code; raises CkptError when this machine has no backend."""
    return Codec(code)


def find_backend() -> Backend:
    """ISA-L itself where it can be bound, else pyeclib's API; raises CkptError without both."""
    isal = native.find_isal()
    if isal is not None:
        return isal
    # pyeclib loads ISA-L by itself: where ours can be bound, a process has it once.
    from ckpt.erasure import fallback

    if fallback.is_available():
        return fallback.Pyeclib()
    raise CkptError(
        "no ISA-L library was found, neither inside pyeclib nor on the system",
        hint="reinstall pyeclib from a wheel, or install libisal",
    )


def _check_cells(length: int, inputs: Sequence[memoryview], outputs: Sequence[memoryview]) -> None:
    """Lengths, contiguity and writability, without which the backend must not be called."""
    if length > LENGTH_BYTES_MAX:
        raise ValueError(f"cells of {length} bytes: at most {LENGTH_BYTES_MAX} are allowed")
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
