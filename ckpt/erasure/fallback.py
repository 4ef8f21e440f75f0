"""The same code through pyeclib's public API, for machines where ISA-L cannot be bound directly.

It copies every cell, holds the GIL and is twenty times slower; its bytes are the same, which makes
it the oracle of our tests as well. pyeclib puts a header in front of each fragment, which we
neither store nor send: headers for a given length are learned from a payload of zeros.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from pyeclib.ec_iface import ECDriver, ECDriverError

from ckpt.base.units import align_up
from ckpt.erasure.code import Code

_EC_TYPE: Final = "isa_l_rs_cauchy"
_HEADER_BYTES: Final = 80
_ALIGNMENT_BYTES: Final = 64
"""Older liberasurecode rounds cells up by itself, by less than this; zeros encode to zeros."""
_HEADERS_CACHED_MAX: Final = 64


class Pyeclib:
    """The backend that needs nothing but pyeclib."""

    name = "pyeclib"

    def prepare(
        self, code: Code, sources: tuple[int, ...], wanted: tuple[int, ...]
    ) -> PyeclibTransform:
        """What computes the `wanted` columns from the k `sources`."""
        return PyeclibTransform(code, sources, wanted)


@dataclass(frozen=True, slots=True)
class PyeclibTransform:
    """Which columns to compute from which."""

    code: Code
    sources: tuple[int, ...]
    wanted: tuple[int, ...]

    def __call__(self, length: int, inputs: Sequence[int], outputs: Sequence[int], /) -> None:
        """As `IsalTransform`: `length` bytes at each address."""
        cells = [ctypes.string_at(address, length) for address in inputs]
        for address, cell in zip(outputs, self.compute(cells), strict=True):
            ctypes.memmove(address, cell, length)

    def compute(self, cells: Sequence[bytes]) -> list[bytes]:
        """The wanted columns, from source cells of equal length."""
        code, length = self.code, len(cells[0])
        if code.k == 1:  # Plain replication; see `coding_matrix`.
            return [cells[0]] * len(self.wanted)
        padded_bytes = align_up(length, _ALIGNMENT_BYTES)
        padded = [cell.ljust(padded_bytes, b"\0") for cell in cells]
        if self.sources == tuple(range(code.k)):
            fragments = _driver(code).encode(b"".join(padded))
            wanted = [fragments[column] for column in self.wanted]
        else:
            headers = _headers(code, padded_bytes)
            present = [headers[at] + cell for at, cell in zip(self.sources, padded, strict=True)]
            wanted = _driver(code).reconstruct(present, list(self.wanted))
        return [fragment[_HEADER_BYTES : _HEADER_BYTES + length] for fragment in wanted]


def is_available() -> bool:
    """Whether pyeclib can reach ISA-L here."""
    try:
        _driver(Code(2, 1))
    except ECDriverError:
        return False
    return True


@lru_cache(maxsize=_HEADERS_CACHED_MAX)
def _headers(code: Code, cell_bytes: int) -> list[bytes]:
    """pyeclib's headers of all n fragments; without a checksum they depend on the length alone."""
    zeros = _driver(code).encode(bytes(code.k * cell_bytes))
    assert all(len(fragment) == _HEADER_BYTES + cell_bytes for fragment in zeros)
    return [fragment[:_HEADER_BYTES] for fragment in zeros]


@lru_cache(maxsize=_HEADERS_CACHED_MAX)
def _driver(code: Code) -> ECDriver:
    return ECDriver(k=code.k, m=code.m, ec_type=_EC_TYPE, chksum_type="none")
