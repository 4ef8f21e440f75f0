"""ISA-L's erasure functions over existing buffers, found on this machine and bound by ctypes.

The library comes inside pyeclib's wheel, under a private name; a distribution's own `libisal.so.2`
serves where pyeclib was built from source. Only the dispatching entry points are bound: each picks
the instructions of this CPU by itself. ctypes lets go of the GIL for the length of a call.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Final

from ckpt.erasure.code import Code
from ckpt.erasure.matrix import recovery_matrix

TABLE_BYTES_PER_COEFFICIENT: Final = 32
"""What `ec_init_tables` may write for each coefficient, whichever instructions it serves."""

_SYSTEM_NAMES: Final = ("libisal.so.2", "libisal.so", "libisal.2.dylib")


class Isal:
    """One loaded library. Stateless and safe to call from any thread."""

    name = "isa-l"

    def __init__(self, path: str) -> None:
        """Binds the library at `path`; raises OSError or AttributeError when it is not ISA-L."""
        self.path = path
        library = ctypes.CDLL(path)
        pointer, integer, byte = ctypes.c_void_p, ctypes.c_int, ctypes.c_ubyte
        self._init_tables = library.ec_init_tables
        self._init_tables.argtypes = [integer, integer, pointer, pointer]
        self._init_tables.restype = None
        self._encode_data = library.ec_encode_data
        self._encode_data.argtypes = [integer, integer, integer, pointer, pointer, pointer]
        self._encode_data.restype = None
        self._invert = library.gf_invert_matrix
        self._invert.argtypes = [pointer, pointer, integer]
        self._invert.restype = integer
        self._multiply = library.gf_mul
        self._multiply.argtypes = [byte, byte]
        self._multiply.restype = byte

    def prepare(
        self, code: Code, sources: tuple[int, ...], wanted: tuple[int, ...]
    ) -> IsalTransform:
        """What computes the `wanted` columns from the k `sources`."""
        coefficients = b"".join(recovery_matrix(code, sources, wanted))
        tables = ctypes.create_string_buffer(TABLE_BYTES_PER_COEFFICIENT * len(coefficients))
        self._init_tables(code.k, len(wanted), coefficients, tables)
        return IsalTransform(self._encode_data, tables)

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


class IsalTransform:
    """One recovery matrix, as tables that `ec_encode_data` reads.

    They are never stored: their form depends on the CPU.
    """

    def __init__(
        self, encode_data: Callable[..., None], tables: ctypes.Array[ctypes.c_char]
    ) -> None:
        self._encode_data = encode_data
        self._tables = tables

    def __call__(self, length: int, inputs: Sequence[int], outputs: Sequence[int], /) -> None:
        """Reads `length` bytes at each input address and writes as many at each output address.

        Warning: the addresses are taken on trust; `Codec` checks the buffers at them.
        """
        sources = (ctypes.c_void_p * len(inputs))(*inputs)
        targets = (ctypes.c_void_p * len(outputs))(*outputs)
        self._encode_data(length, len(inputs), len(outputs), self._tables, sources, targets)


@cache
def find_isal() -> Isal | None:
    """The first ISA-L that loads; None when this machine has none."""
    for path in _candidates():
        try:
            return Isal(path)
        except (OSError, AttributeError):
            continue
    return None


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
