"""Random states."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

DTYPES = (
    "<f4", ">f4", "<f8", "<f2", ">i8", "<i2", "|u1", "|i1", "|b1", "<c8", "<c16", "<U3", "|S5", "<M8[ns]",
    "bfloat16", "float8_e4m3fn", "float8_e5m2", "int4",
)  # fmt: skip

keys = st.recursive(
    st.text(max_size=6) | st.integers() | st.booleans(),
    lambda inner: st.tuples(inner) | st.tuples(inner, inner),
    max_leaves=3,
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.complex_numbers()
    | st.text(max_size=8)
    | st.binary(max_size=8)
)


def dtype_named(name: str) -> np.dtype[np.generic]:
    return np.dtype(getattr(ml_dtypes, name, None) or name)


@st.composite
def arrays(draw: st.DrawFn) -> NDArray[np.generic]:
    """Any bits of any dtype: 0-d, empty, Fortran, sliced, reversed."""
    name = draw(st.sampled_from(DTYPES))
    dtype = dtype_named(name)
    shape = draw(st.lists(st.integers(0, 5), max_size=3))
    size = math.prod(shape)
    if name == "<U3":
        flat = np.array(
            draw(st.lists(st.text("abé", max_size=3), min_size=size, max_size=size)), dtype
        )
    elif name in ("|b1", "int4"):
        bits = draw(st.lists(st.integers(0, 1), min_size=size, max_size=size))
        flat = np.array(bits, "u1").astype(dtype)
    else:
        count = size * dtype.itemsize
        flat = np.frombuffer(draw(st.binary(min_size=count, max_size=count)), dtype)
    array: NDArray[np.generic] = flat.reshape(shape)
    match draw(st.integers(0, 3)):
        case 0:
            return np.asfortranarray(array)
        case 1 if array.ndim:
            return array[::-1]
        case 2 if array.ndim:
            return np.repeat(array, 2, axis=-1)[..., ::2]
        case _:
            return array


states = st.recursive(
    arrays() | scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=3)
    ),
    max_leaves=8,
)
