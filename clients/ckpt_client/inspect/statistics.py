"""What values a tensor holds, part by part: extremes, mean, spread, and how many are not finite.

Parts are merged as in Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for
computing sample variances" (1979), in float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ckpt.base.errors import Refused

Values = npt.NDArray[np.generic]
Reals = npt.NDArray[np.floating]


@dataclass(slots=True)
class Statistics:
    """Of all values that were added. Of complex numbers, their absolute values."""

    count: int = 0
    nan_count: int = 0
    inf_count: int = 0
    zero_count: int = 0
    minimum: float = math.inf
    """Of the finite ones, as are the next three; infinity before there is one."""
    maximum: float = -math.inf
    mean: float = 0.0
    square_sum: float = 0.0
    """Of the distances from the mean."""

    @property
    def finite_count(self) -> int:
        return self.count - self.nan_count - self.inf_count

    @property
    def deviation(self) -> float:
        """Standard deviation of the finite values; 0 when there is none."""
        return math.sqrt(self.square_sum / self.finite_count) if self.finite_count else 0.0

    @property
    def norm(self) -> float:
        """Square root of the sum of squares of the finite values."""
        return math.sqrt(self.square_sum + self.finite_count * self.mean * self.mean)

    def add(self, values: Values) -> None:
        """Of one dimension. Raises Refused for values that are no numbers."""
        reals = as_reals(values)
        finite = reals[np.isfinite(reals)]
        known = self.finite_count
        self.count += reals.size
        nan_count = int(np.isnan(reals).sum())
        self.nan_count += nan_count
        self.inf_count += reals.size - finite.size - nan_count
        if not finite.size:
            return
        self.zero_count += int(finite.size - np.count_nonzero(finite))
        self.minimum = min(self.minimum, float(finite.min()))
        self.maximum = max(self.maximum, float(finite.max()))
        # Beyond float64 a square is infinite, which says enough.
        with np.errstate(over="ignore"):
            mean = float(finite.mean(dtype=np.float64))
            square_sum = float(np.square(finite - mean, dtype=np.float64).sum())
        both, apart = known + finite.size, mean - self.mean
        self.square_sum += square_sum + apart * apart * known * finite.size / both
        self.mean += apart * finite.size / both


@dataclass(slots=True)
class ValueHistogram:
    """How many values lie in each of equal parts of [minimum, maximum]; the last one is closed."""

    minimum: float
    maximum: float
    counts: npt.NDArray[np.int64]

    @classmethod
    def between(cls, minimum: float, maximum: float, bins: int) -> ValueHistogram:
        """Empty. One bin where both are the same."""
        return cls(minimum, maximum, np.zeros(bins if minimum < maximum else 1, np.int64))

    @property
    def edges(self) -> Reals:
        """One more than bins."""
        return np.linspace(self.minimum, self.maximum, len(self.counts) + 1)

    def add(self, values: Values) -> None:
        """Finite ones count; all of them lie between the two."""
        reals = as_reals(values)
        finite = reals[np.isfinite(reals)].astype(np.float64, copy=False)
        if len(self.counts) == 1:
            self.counts[0] += finite.size
        else:
            limits = (self.minimum, self.maximum)
            self.counts += np.histogram(finite, len(self.counts), limits)[0]


def as_reals(values: Values) -> Reals:
    """As floats: the same value where float32, or float64 for larger ones, can hold it. Raises
    Refused for text and dates.
    """
    match values.dtype.kind:
        case "f":
            least = np.promote_types(values.dtype, np.float32)
            return values.astype(least, copy=False)
        case "c":
            return np.abs(values)
        case "b" | "i" | "u":
            return values.astype(np.float64)
        # bfloat16, float8 and their like.
        case "V":
            return values.astype(np.float32)
        case _:
            raise Refused(f"values of dtype {values.dtype} are no numbers")
