"""What it means that two states are equal: types, keys, dtypes, shapes and every bit.

Apart from how they are drawn (`trees`): processes of tests compare without importing hypothesis.
"""

from __future__ import annotations

import struct

import numpy as np


def bits_of(value: object) -> object:
    """Something that is equal exactly when type, shape and every bit are."""
    match value:
        case dict():
            return ("dict", [(_key(key), bits_of(child)) for key, child in value.items()])
        case list() | tuple():
            return (type(value).__name__, [bits_of(child) for child in value])
        case np.ndarray() | np.generic():
            array = np.asarray(value)
            return (array.dtype.str, array.dtype.name, array.shape, array.tobytes())
        case float():
            return ("float", struct.pack("<d", value))
        case complex():
            return ("complex", struct.pack("<dd", value.real, value.imag))
        case _:
            return (type(value).__name__, value)


def _key(key: object) -> object:
    if isinstance(key, tuple):
        return ("tuple", [_key(part) for part in key])
    return (type(key).__name__, key)
