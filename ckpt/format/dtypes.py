"""How element types are named in tables and indexes.

numpy's own names with their byte order (`<f4`, `>i8`, `|b1`, `<c16`, `<U5`, `<M8[ns]`), and the
names of ml_dtypes (`bfloat16`, `float8_e4m3fn`, `int4`, ...), whose bytes are little-endian.
Structured types and Python objects have no name here: nothing that could carry code is stored.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import lru_cache
from typing import Final

import numpy as np

from ckpt.base.errors import Refused

_NUMPY: Final = re.compile(
    r"[<>|][biufcSU](0|[1-9][0-9]{0,8})|[<>][mM]8(\[[0-9]{0,9}[a-zA-Z]{1,2}\])?"
)
_EXTENSION: Final = re.compile(r"(bfloat|float|u?int|b?complex)[0-9]{1,2}(_[a-z0-9]{1,16})?")
DTYPE_CHARS_MAX: Final = 32


@lru_cache(maxsize=256)
def dtype_name(dtype: np.dtype[np.generic]) -> str:
    """The stored name; raises Refused for structured types, objects and unknown extensions."""
    if dtype.type.__module__.partition(".")[0] == "ml_dtypes" and dtype.isnative:
        name = dtype.name
        if _EXTENSION.fullmatch(name):
            return name
    elif _NUMPY.fullmatch(dtype.str) and dtype.fields is None:
        return dtype.str
    raise Refused(
        f"dtype {dtype} cannot be stored",
        hint="store numbers, booleans, text, dates, ml_dtypes; split structured arrays by field",
    )


@lru_cache(maxsize=256)
def dtype_of(name: str) -> np.dtype[np.generic]:
    """The dtype of a stored name; raises Refused when this program has no such type."""
    if _NUMPY.fullmatch(name):
        with suppress(TypeError):  # such as a float of a size that this platform has not
            return np.dtype(name)
    elif _EXTENSION.fullmatch(name):
        import ml_dtypes  # here, since most readers never meet one

        kind = getattr(ml_dtypes, name, None)
        if isinstance(kind, type) and issubclass(kind, np.generic):
            return np.dtype(kind)
    raise Refused(f"dtype {name!r} is unknown here", hint="a newer ml_dtypes may know it")
