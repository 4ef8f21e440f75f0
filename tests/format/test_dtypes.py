"""Element types keep their name, their size and their byte order."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt.base.errors import Refused
from ckpt.format.dtypes import dtype_name, dtype_of

NUMPY = [
    "|b1", "|i1", "|u1", "<i2", ">i8", "<u4", "<f2", "<f4", ">f8", "<c8", ">c16", "|S5",
    "<U7", ">U2",
    "<M8[ns]", ">m8[us]", "<M8[25s]", "<m8",
]  # fmt: skip
EXTENSIONS = sorted(
    name
    for name, kind in vars(ml_dtypes).items()
    if isinstance(kind, type) and issubclass(kind, np.generic)
)


@pytest.mark.parametrize("name", NUMPY)
def test_numpys_names_are_kept(name: str) -> None:
    assert dtype_name(np.dtype(name)) == name
    assert dtype_of(name) == np.dtype(name)


@pytest.mark.parametrize("name", EXTENSIONS)
def test_every_type_of_ml_dtypes_has_its_name(name: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name))
    assert dtype_name(dtype) == name
    assert dtype_of(name) == dtype


def test_there_are_extensions() -> None:
    assert {"bfloat16", "float8_e4m3fn", "float8_e5m2"} <= set(EXTENSIONS)


@pytest.mark.parametrize(
    "dtype",
    [
        np.dtype(object), np.dtype([("a", "<f4")]), np.dtype("V8"), np.dtype(("<f4", (2,))),
        np.dtype((np.int32, {"low": (np.int16, 0), "high": (np.int16, 2)})),
    ],
    ids=str,
)  # fmt: skip
def test_objects_and_structures_are_refused(dtype: np.dtype[np.generic]) -> None:
    with pytest.raises(Refused):
        dtype_name(dtype)


def test_an_extension_in_the_other_byte_order_is_refused() -> None:
    """Its name says nothing of an order: it would be read in this machine's."""
    swapped = np.dtype(ml_dtypes.bfloat16).newbyteorder()
    assert swapped.name == "bfloat16"
    with pytest.raises(Refused):
        dtype_name(swapped)


@pytest.mark.parametrize(
    "name",
    ["", "O", "|O", "|O8", "f4", "float32", "<f3", "<f4,<f4", "(2,)<f4", "|V8", "finfo",
     "float99_x",
     "<U9999999999", "<M8[nonsense]", "__class__", "<f4 "],
)  # fmt: skip
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(Refused):
        dtype_of(name)


@given(st.text(max_size=40))
def test_any_text_is_refused_or_a_type_of_that_name(name: str) -> None:
    try:
        dtype = dtype_of(name)
    except Refused:
        return
    assert dtype_of(dtype_name(dtype)) == dtype
