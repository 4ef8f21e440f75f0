"""bfloat16 and float8 as data types of zarr-python (entry points in group `zarr.data_type`).

zarr-python has none of them; the names are zarr-extensions' and TensorStore reads them. Importing
this module registers all of them: a zarr that does not load its entry points (3.1) needs
`import ckpt.objects.dtypes` before it opens such an array.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import ml_dtypes
import numpy as np
from zarr.core.dtype.common import HasItemSize
from zarr.core.dtype.wrapper import ZDType
from zarr.dtype import data_type_registry

from ckpt.objects.elements import EXTENSIONS

try:
    from zarr.errors import DataTypeValidationError  # type: ignore[attr-defined]
except ImportError:  # zarr 3.1
    from zarr.dtype import DataTypeValidationError

_NAMES = {math.inf: "Infinity", -math.inf: "-Infinity"}
_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True, kw_only=True)
class ExtensionFloat(ZDType[np.dtype[np.generic], np.generic], HasItemSize):
    """A float of ml_dtypes, little-endian. Its scalars in JSON are numbers or the names of those
    that JSON has not."""

    _zarr_v3_name: ClassVar[str]

    @property
    def item_size(self) -> int:
        return EXTENSIONS[self._zarr_v3_name]

    @classmethod
    def from_native_dtype(cls, dtype: np.dtype[np.generic]) -> Self:
        if dtype != _native(cls._zarr_v3_name):
            raise DataTypeValidationError(f"{dtype} is not {cls._zarr_v3_name}")
        return cls()

    def to_native_dtype(self) -> np.dtype[np.generic]:
        return _native(self._zarr_v3_name)

    @classmethod
    def _from_json_v2(cls, data: object) -> Self:
        raise DataTypeValidationError(f"Zarr v2 has no {cls._zarr_v3_name}: {data!r}")

    @classmethod
    def _from_json_v3(cls, data: object) -> Self:
        if data != cls._zarr_v3_name:
            raise DataTypeValidationError(f"{data!r} is not {cls._zarr_v3_name}")
        return cls()

    def to_json(self, zarr_format: int) -> str:  # type: ignore[override]
        if zarr_format != 3:
            raise ValueError(f"Zarr v2 has no {self._zarr_v3_name}")
        return self._zarr_v3_name

    def _check_scalar(self, data: object) -> bool:
        return isinstance(data, int | float | np.number) or type(data) is self._scalar

    def cast_scalar(self, data: object) -> np.generic:
        if not self._check_scalar(data):
            raise TypeError(f"{data!r} is no scalar of {self._zarr_v3_name}")
        return self._scalar(data)

    def default_scalar(self) -> np.generic:
        return self.cast_scalar(0.0)

    def from_json_scalar(self, data: object, *, zarr_format: int) -> np.generic:
        return self.cast_scalar(_FLOATS.get(data, data) if isinstance(data, str) else data)

    def to_json_scalar(self, data: object, *, zarr_format: int) -> float | str:
        value = float(self.cast_scalar(data))
        return "NaN" if math.isnan(value) else _NAMES.get(value, value)

    @property
    def _scalar(self) -> type[np.generic]:
        return self.to_native_dtype().type


class BFloat16(ExtensionFloat):
    """The upper half of a float32."""

    _zarr_v3_name = "bfloat16"


class Float8E3M4(ExtensionFloat):
    _zarr_v3_name = "float8_e3m4"


class Float8E4M3(ExtensionFloat):
    _zarr_v3_name = "float8_e4m3"


class Float8E4M3B11FNUZ(ExtensionFloat):
    _zarr_v3_name = "float8_e4m3b11fnuz"


class Float8E4M3FN(ExtensionFloat):
    _zarr_v3_name = "float8_e4m3fn"


class Float8E4M3FNUZ(ExtensionFloat):
    _zarr_v3_name = "float8_e4m3fnuz"


class Float8E5M2(ExtensionFloat):
    _zarr_v3_name = "float8_e5m2"


class Float8E5M2FNUZ(ExtensionFloat):
    _zarr_v3_name = "float8_e5m2fnuz"


class Float8E8M0FNU(ExtensionFloat):
    """Powers of two alone; it has no zero: the least of them stands for it."""

    _zarr_v3_name = "float8_e8m0fnu"


def _native(name: str) -> np.dtype[np.generic]:
    native: np.dtype[np.generic] = np.dtype(getattr(ml_dtypes, name))
    return native


for _kind in ExtensionFloat.__subclasses__():
    data_type_registry.register(_kind._zarr_v3_name, _kind)
