"""What do many measurements of one thing say together? Histograms, percentiles, rates, intervals.

Histograms have fio's bins: 64 for each power of two, so that a value is known to 1.6%, whatever
its size. Those of several ranks or hosts are added; means and percentiles are taken afterwards
and never averaged.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Self

BITS: Final = 6
"""Bins for each power of two: 2 ** BITS, as fio's FIO_IO_U_PLAT_BITS."""

T_95: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Student's t at 97.5% for 1, 2, … degrees of freedom."""
T_95_MANY: Final = 1.960


def bin_index(value: int) -> int:
    """The bin of a value >= 0. fio's end at 17 s, these do not: a save may take minutes."""
    error_bits = value.bit_length() - 1 - BITS
    if error_bits <= 0:
        return value
    offset = (value >> error_bits) & ((1 << BITS) - 1)
    return ((error_bits + 1) << BITS) + offset


def bin_value(index: int) -> int:
    """The middle of a bin, by which fio names it."""
    if index < 2 << BITS:
        return index
    error_bits = (index >> BITS) - 1
    base = 1 << (error_bits + BITS)
    return base + (((index % (1 << BITS)) * 2 + 1) << error_bits) // 2


@dataclass(slots=True)
class LatencyHistogram:
    """Whole numbers >= 0, here nanoseconds; mergeable."""

    bins: dict[int, int] = field(default_factory=dict)
    """Bin (see `bin_index`) -> how many values fell into it; bins without any are left out."""
    count: int = 0
    least: int = 0
    most: int = 0
    total: int = 0
    squares: int = 0

    @classmethod
    def of(cls, values: Iterable[int]) -> Self:
        """Of these values."""
        found = cls()
        for value in values:
            found.add(value)
        return found

    def add(self, value: int) -> None:
        """Add one value."""
        index = bin_index(value)
        self.bins[index] = self.bins.get(index, 0) + 1
        self.least = value if not self.count else min(self.least, value)
        self.most = max(self.most, value)
        self.count += 1
        self.total += value
        self.squares += value * value

    def merge(self, other: LatencyHistogram) -> None:
        """Add everything that the other one has seen."""
        if not other.count:
            return
        for index, count in other.bins.items():
            self.bins[index] = self.bins.get(index, 0) + count
        self.least = other.least if not self.count else min(self.least, other.least)
        self.most = max(self.most, other.most)
        self.count += other.count
        self.total += other.total
        self.squares += other.squares

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    @property
    def stddev(self) -> float:
        """Of the sample, as fio has it.

        Of whole numbers up to the division: squares of nanoseconds are beyond a float's precision.
        """
        if self.count < 2:
            return 0.0
        spread = self.count * self.squares - self.total**2
        return math.sqrt(max(0, spread) / (self.count * (self.count - 1)))

    def percentile(self, percent: float) -> int:
        """The middle of the first bin at which so many values have been seen; 0 when empty."""
        seen = 0
        for index in sorted(self.bins):
            seen += self.bins[index]
            if seen >= percent / 100 * self.count:
                return bin_value(index)
        return 0

    def by_value(self) -> dict[int, int]:
        """fio's json+ bins: middle of the bin -> how many, ascending."""
        return {bin_value(index): self.bins[index] for index in sorted(self.bins)}


@dataclass(frozen=True, slots=True)
class Quarters:
    """One phase over all ranks, seconds from the common beginning."""

    first: float
    """When the first rank was done."""
    p50: float
    p99: float
    last: float
    """When the last one was: what counts for training."""

    @property
    def tail(self) -> float:
        """The part of the time in which some ranks were done and others not."""
        return (self.last - self.first) / self.last if self.last > 0 else 0.0


def quarters(seconds: Sequence[float]) -> Quarters:
    """Of at least one rank; percentiles are the nearest rank that was there."""
    ordered = sorted(seconds)

    def nearest(percent: float) -> float:
        return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]

    return Quarters(ordered[0], nearest(50), nearest(99), ordered[-1])


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and where it lies with 95% confidence; both ends are the mean for one value."""

    mean: float
    low: float
    high: float
    count: int


def confidence(values: Sequence[float], *, least: float = -math.inf) -> Interval:
    """Student's interval of at least one value, cut at the least that there can be."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Interval(mean, mean, mean, len(values))
    half = t_95(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, max(least, mean - half), mean + half, len(values))


def relative_change(before: Sequence[float], after: Sequence[float]) -> Interval:
    """How much larger the mean became, as a part of the first, with Welch's interval.

    Both have at least one value, none below 0, so no change is below -1; without a second one on
    either side nothing is known of the spread, and the interval is endless.
    """
    first, second = statistics.fmean(before), statistics.fmean(after)
    change = (second - first) / first
    count = min(len(before), len(after))
    if count < 2:
        return Interval(change, -math.inf, math.inf, count)
    parts = [statistics.variance(values) / len(values) for values in (before, after)]
    variance = sum(parts)
    if variance == 0:
        return Interval(change, change, change, count)
    freedom = variance**2 / sum(
        part**2 / (len(values) - 1) for part, values in zip(parts, (before, after), strict=True)
    )
    half = t_95(freedom) * math.sqrt(variance) / abs(first)
    return Interval(change, max(-1.0, change - half), change + half, count)


def t_95(freedom: float) -> float:
    """Student's two-sided 95% quantile; degrees between two rows count as the lower one."""
    index = math.floor(freedom) - 1
    return T_95[max(0, index)] if index < len(T_95) else T_95_MANY


def variation(values: Sequence[float]) -> float:
    """Coefficient of variation: standard deviation by mean; 0 for one value."""
    mean = statistics.fmean(values)
    return statistics.stdev(values) / mean if len(values) > 1 and mean else 0.0
