"""Which Zarr data type carries an element type of ours, so that every bit comes back.

Zarr has numbers and booleans of both byte orders; bfloat16 and float8 by their names in Zarr's
extensions. What Zarr lacks (text, dates, int4, long double) is carried as bytes on one more axis.
In a portable checkpoint bfloat16 and float8 are carried as unsigned integers, as is one of them in
any (UNREAD). Whatever is carried has the attribute `logical_dtype`, our own name of the type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from ckpt.base.errors import Corrupt
from ckpt.format.dtypes import dtype_of

_BY_KIND: Final = {
    "b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex",
}  # fmt: skip
_BYTES_BY_KIND: Final = {
    "b": (1,), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8), "c": (8, 16),
}  # fmt: skip
EXTENSIONS: Final = {
    "bfloat16": 2,
    "float8_e3m4": 1,
    "float8_e4m3": 1,
    "float8_e4m3b11fnuz": 1,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
}
"""Names in zarr-extensions that are also ml_dtypes' names -> bytes of an element."""
UNREAD: Final = frozenset({"float8_e4m3"})
"""Types that no released reader knows: always stored as their twins."""


@dataclass(frozen=True, slots=True)
class Element:
    """How one element type is stored."""

    data_type: str
    """In zarr.json."""
    endian: str
    """little or big; empty for single bytes."""
    item_bytes: int
    """Of a stored element."""
    bytes_axis: int
    """Length of the last axis that carries an element's bytes; 0 without one."""
    logical_dtype: str
    """Ours, when it is carried by another; else empty."""

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The array's shape in Zarr."""
        return (*shape, self.bytes_axis) if self.bytes_axis else shape

    @property
    def twin(self) -> Element:
        """What carries the same bits for readers without Zarr's extensions: itself, unless it is
        one of them."""
        size = EXTENSIONS.get(self.data_type)
        if size is None:
            return self
        return Element(f"uint{8 * size}", self.endian, size, 0, self.data_type)

    @property
    def fill_value(self) -> object:
        """Zero, as zarr.json writes it."""
        if self.data_type == "bool":
            return False
        if self.data_type.startswith("complex"):
            return [0.0, 0.0]
        return 0.0 if "float" in self.data_type else 0


def element_of(dtype: str, *, portable: bool) -> Element:
    """How a type is stored, by its name in ckpt.format.dtypes. Raises Refused for unknown names."""
    if dtype in EXTENSIONS:
        size = EXTENSIONS[dtype]
        endian = "little" if size > 1 else ""
        native = Element(dtype, endian, size, 0, "")
        return native.twin if portable or dtype in UNREAD else native
    held = dtype_of(dtype)
    if held.type.__module__ == "numpy" and held.itemsize in _BYTES_BY_KIND.get(held.kind, ()):
        size = held.itemsize
        name = "bool" if held.kind == "b" else f"{_BY_KIND[held.kind]}{8 * size}"
        endian = "" if size == 1 else "big" if dtype[0] == ">" else "little"
        return Element(name, endian, size, 0, "")
    return Element("uint8", "", 1, held.itemsize, dtype)


def native_dtype(dtype: str) -> np.dtype[np.generic]:
    """The memory's type for a stored name; raises Corrupt when this program has no such type."""
    try:
        return dtype_of(dtype)
    except Exception as error:
        raise Corrupt(f"manifest: {error}") from None
