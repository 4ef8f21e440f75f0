"""ISA-L, found on this machine: its kernels for CRC-32 and the erasure code.

The library comes inside pyeclib's wheel, under a private name; a distribution's own `libisal.so.2`
serves where pyeclib was built from source. Only the dispatching entry points are bound: each picks
the instructions of this CPU by itself.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Final

from ckpt.base.errors import CkptError
from ckpt.native.loading import ensure_loading

Tables = ctypes.Array[ctypes.c_char]

TABLE_BYTES_PER_COEFFICIENT: Final = 32
"""What `ec_init_tables` may write for each coefficient, whichever instructions it serves."""

_SYSTEM_NAMES: Final = ("libisal.so.2", "libisal.so", "libisal.2.dylib")


class Kernels(ctypes.Structure):
    """`ckpt_kernels` of source/ckpt_native.h: where our C library finds ISA-L's functions."""

    _fields_ = (("crc32", ctypes.c_void_p), ("encode", ctypes.c_void_p))


class Isal:
    """One loaded library. Stateless and safe to call from any thread."""

    def __init__(self, path: str) -> None:
        """Binds the library at `path`; raises OSError or AttributeError when it is not ISA-L."""
        self.path = path
        self._library = library = ctypes.CDLL(path)
        pointer, integer, byte = ctypes.c_void_p, ctypes.c_int, ctypes.c_ubyte
        self._init_tables = library.ec_init_tables
        self._init_tables.argtypes = [integer, integer, pointer, pointer]
        self._init_tables.restype = None
        self._invert = library.gf_invert_matrix
        self._invert.argtypes = [pointer, pointer, integer]
        self._invert.restype = integer
        self._multiply = library.gf_mul
        self._multiply.argtypes = [byte, byte]
        self._multiply.restype = byte
        self.kernels = Kernels(
            crc32=ctypes.cast(library.crc32_gzip_refl, pointer),
            encode=ctypes.cast(library.ec_encode_data, pointer),
        )
        """For calls of our own library."""

    def tables(self, rows: Sequence[bytes]) -> Tables:
        """What `ec_encode_data` reads in the place of a matrix of coefficients.

        They are never stored: their form depends on the CPU.
        """
        coefficients = b"".join(rows)
        tables = ctypes.create_string_buffer(TABLE_BYTES_PER_COEFFICIENT * len(coefficients))
        if rows:
            self._init_tables(len(rows[0]), len(rows), coefficients, tables)
        return tables

    def invert(self, matrix: bytes, size: int) -> bytes | None:
        """The inverse of a size x size matrix; None when it is singular."""
        assert len(matrix) == size * size
        # The library works in its input as well.
        scratch = ctypes.create_string_buffer(matrix, len(matrix))
        result = ctypes.create_string_buffer(len(matrix))
        return None if self._invert(scratch, result, size) else result.raw

    def multiply(self, a: int, b: int) -> int:
        """The product of two field elements."""
        return int(self._multiply(a, b))


@cache
def find_isal() -> Isal:
    """The first ISA-L that loads; raises CkptError when this machine has none."""
    ensure_loading("ISA-L")
    for path in _candidates():
        try:
            return Isal(path)
        except (OSError, AttributeError):
            continue
    raise CkptError(
        "no ISA-L library was found, neither inside pyeclib nor on the system",
        hint="reinstall pyeclib from a wheel, or install libisal",
    )


def _candidates() -> Iterator[str]:
    """Paths and names to try, the bundled library first: its version is the one we test with."""
    spec = importlib.util.find_spec("pyeclib")
    for package in spec.submodule_search_locations or () if spec else ():
        # Wheel repair tools put private libraries beside the package or inside it.
        for folder in (f"{package}.libs", os.path.join(package, ".dylibs"), package):
            if os.path.isdir(folder):
                names = sorted(name for name in os.listdir(folder) if name.startswith("libisal"))
                yield from (os.path.join(folder, name) for name in names)
    yield from _SYSTEM_NAMES
