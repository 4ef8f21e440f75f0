"""NaN and infinity are found in any floating type and layout, and named; all else passes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ckpt
from ckpt_client.save import finite
from ckpt_client.save.finite import check_finite
from ckpt_client.save.packing import PackingPlanner
from tests.client import trees

FLOATS = (
    "f2", "<f4", ">f8", "c8", ">c16", ml_dtypes.bfloat16, ml_dtypes.float8_e5m2,
    ml_dtypes.float8_e4m3fn,
)  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("place", [(0, 0, 0), (3, 1, 4), (4, 2, 6)])
def test_the_first_bad_element_is_named(
    dtype: object, place: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finite, "PART_ELEMENTS", 10)  # So that parts have edges inside.
    array = np.ones((5, 3, 7), dtype)  # type: ignore[call-overload]
    array[place] = np.nan
    array[4, 2, 6] = np.nan
    text = rf"m/w: element \[{place[0]}, {place[1]}, {place[2]}\] of \(5, 3, 7\) is .*nan"
    for one in (array, np.asfortranarray(array)):
        with pytest.raises(ckpt.Refused, match=text):
            check_finite("m/w", one)


@pytest.mark.parametrize(
    ("dtype", "kept", "bits"),
    [
        (ml_dtypes.bfloat16, "u2", 0x7F81),
        (ml_dtypes.bfloat16, "u2", 0xFF81),
        (ml_dtypes.bfloat16, "u2", 0x7FC0),
        ("f4", "u4", 0x7F80_0001),
        ("f8", "u8", 0x7FF0_0000_0000_0001),
        ("c8", "u4", 0x7F80_0001),
        ("c8", "u4", 0xFF80_0001),
        ("c16", "u8", 0x7FF0_0000_0000_0001),
    ],
)
def test_a_signalling_nan_is_named_without_a_warning(dtype: object, kept: str, bits: int) -> None:
    part_count = np.dtype(dtype).itemsize // np.dtype(kept).itemsize  # type: ignore[call-overload]
    for part in range(part_count):
        parts = np.zeros((2, part_count), kept)
        parts[1, part] = bits
        with pytest.raises(ckpt.Refused, match=r"a: element \[1\] of \(2,\) is .*nan"):
            check_finite("a", parts.view(dtype).reshape(2))  # type: ignore[call-overload]


@given(trees.arrays())
def test_what_has_no_nan_or_infinity_passes(array: np.ndarray) -> None:
    with np.errstate(invalid="ignore"):
        good = array.dtype.kind not in "fcV" or bool(np.isfinite(array).all())
    try:
        check_finite("a", array)
    except ckpt.Refused:
        assert not good
    else:
        assert good


@given(st.sampled_from(["nan", "inf", "-inf"]))
def test_a_state_is_looked_at_also_when_its_form_is_known(text: str) -> None:
    planner = PackingPlanner()
    for value in (1.0, float(text)):
        packing = planner.plan({"step": 1, "a": {"b": np.full(3, value)}}, 0, 1)
        if value == 1.0:
            packing.check_finite()
        else:
            with pytest.raises(ckpt.Refused, match=rf"a/b: element \[0\] of \(3,\) is {text}"):
                packing.check_finite()
