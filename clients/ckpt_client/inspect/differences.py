"""How do two checkpoints differ? Names, shapes and dtypes first, then every value.

Arrays have the names under which they are exported (`exchange.tensors`): what belongs to ranks is
`NAME@rank-R`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from ckpt.base.errors import Refused
from ckpt.objects.source import Source
from ckpt_client.exchange.tensors import NamedArray, values
from ckpt_client.inspect.statistics import Values, as_reals


class DifferenceKind(Enum):
    """From the first checkpoint to the second."""

    SAME = "same"
    """All bytes are equal."""
    CHANGED = "changed"
    """Shape and dtype are the same."""
    RESHAPED = "reshaped"
    """Shape or dtype are others; values were not compared."""
    ADDED = "added"
    REMOVED = "removed"


@dataclass(slots=True)
class Shift:
    """How far the values of one array have moved, added part by part. NaN and infinities are left
    out of the sums.
    """

    changed_count: int = 0
    """Elements whose bytes differ."""
    largest: float = 0.0
    """The greatest distance of one element."""
    square_sum: float = 0.0
    """Of the distances."""
    before_square_sum: float = 0.0
    """Of the values before."""

    @property
    def distance(self) -> float:
        """Norm of the difference: the square root of the sum of squares."""
        return math.sqrt(self.square_sum)

    @property
    def relative(self) -> float:
        """Of the norm before; infinity where that was 0 and something moved."""
        if not self.square_sum:
            return 0.0
        before = math.sqrt(self.before_square_sum)
        return self.distance / before if before else math.inf


@dataclass(frozen=True, slots=True)
class Difference:
    """Of one name."""

    name: str
    change: DifferenceKind
    before: NamedArray | None
    after: NamedArray | None
    moved: Shift | None = None
    """Of numbers that changed."""


@dataclass(slots=True)
class Comparison:
    """I compare the arrays of two checkpoints. `bytes_read` grows while I do."""

    before: Source
    after: Source
    bytes_read: int = 0
    _moved: dict[str, Shift] = field(default_factory=dict)

    def run(
        self,
        before: Sequence[NamedArray],
        after: Sequence[NamedArray],
        *,
        read_values: bool = True,
    ) -> Iterator[Difference]:
        """One for each name, ascending. Without values, what is alike counts as the same.

        Raises what reading raises.
        """
        olds, news = ({array.name: array for array in arrays} for arrays in (before, after))
        alike = [name for name in sorted(olds.keys() & news.keys())
                 if _form(olds[name]) == _form(news[name])]  # fmt: skip
        self._moved = {name: Shift() for name in alike}
        if read_values:
            self._compare([olds[name] for name in alike], [news[name] for name in alike])
        for name in sorted(olds.keys() | news.keys()):
            old, new, moved = olds.get(name), news.get(name), self._moved.get(name)
            if old is None or new is None:
                yield Difference(
                    name, DifferenceKind.REMOVED if new is None else DifferenceKind.ADDED, old, new
                )
            elif moved is None:
                yield Difference(name, DifferenceKind.RESHAPED, old, new)
            else:
                change = DifferenceKind.CHANGED if moved.changed_count else DifferenceKind.SAME
                yield Difference(name, change, old, new, moved)

    def _compare(self, olds: Sequence[NamedArray], news: Sequence[NamedArray]) -> None:
        both = zip(values(self.before, olds), values(self.after, news), strict=True)
        for (array, old), (_, new) in both:
            _add(self._moved[array.name], old, new)
            self.bytes_read += old.nbytes + new.nbytes


def _form(array: NamedArray) -> tuple[tuple[int, ...], str]:
    return array.shape, array.tensor.dtype


def _add(moved: Shift, old: Values, new: Values) -> None:
    width = old.dtype.itemsize
    differs = (old.view(f"V{width}") != new.view(f"V{width}")) if width else np.zeros(0, bool)
    moved.changed_count += int(np.count_nonzero(differs))
    try:
        was, now = (as_reals(_parts(v)).astype(np.float64, copy=False) for v in (old, new))
    except Refused:  # Text has no distance.
        return
    finite = np.isfinite(was) & np.isfinite(now)
    # Beyond float64 a square is infinite, which says enough.
    with np.errstate(over="ignore"):
        moved.before_square_sum += float(np.square(was[finite]).sum())
        if moved.changed_count:
            apart = np.abs(now[finite] - was[finite])
            moved.square_sum += float(np.square(apart).sum())
            moved.largest = max(moved.largest, float(apart.max(initial=0.0)))


def _parts(values: Values) -> Values:
    """Complex numbers as their two parts: the distance of both is theirs."""
    return values.view(values.real.dtype) if values.dtype.kind == "c" else values
