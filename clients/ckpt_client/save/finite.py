"""Does an array hold NaN or infinity? For savers who asked; looked at in parts, to save memory."""

from __future__ import annotations

from typing import Final

import numpy as np

from ckpt.base.errors import Refused
from ckpt_client.save.arrays import AnyArray

PART_ELEMENTS: Final = 1 << 20
#: numpy's kinds of floats and complex numbers; V is ml_dtypes', whose integers are all finite.
_KINDS: Final = "fcV"


def check_finite(name: str, array: AnyArray) -> None:
    """Raises Refused naming the tensor, and its first element that is NaN or infinite."""
    if array.dtype.kind not in _KINDS:
        return
    with np.errstate(invalid="ignore"):  # Numpy warns of signalling NaNs, as it looks or prints.
        place = _first_non_finite(array)
        value = "" if place is None else str(array[place])
    if place is not None:
        where = ", ".join(str(one) for one in place)
        raise Refused(
            f"{name}: element [{where}] of {array.shape} is {value}",
            hint="go back to an earlier step, or save without check_finite",
        )


def _first_non_finite(array: AnyArray) -> tuple[int, ...] | None:
    """Its index, in C order."""
    flat = array.reshape(-1) if array.flags.c_contiguous else array.flat
    for begin in range(0, array.size, PART_ELEMENTS):
        good = np.isfinite(flat[begin : begin + PART_ELEMENTS])
        if not good.all():
            found = np.unravel_index(begin + int(good.argmin()), array.shape)
            return tuple(int(one) for one in found)
    return None
