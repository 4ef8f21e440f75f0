"""What does Prometheus' text format look like? Families of samples in, one text out.

# HELP name text        backslash and newline escaped
# TYPE name kind
name{label="value"} number      backslash, quote and newline escaped

A histogram has one _bucket for each bound, _sum and _count.
"""

from __future__ import annotations

import bisect
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")

Labels = tuple[tuple[str, str], ...]


class Kind(Enum):
    """The types of the format that are used here."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Histogram:
    """Counts by upper bound. Cumulative since the process began, as the format wants it."""

    def __init__(self, bounds: Sequence[float]) -> None:
        assert list(bounds) == sorted(set(bounds))
        assert all(math.isfinite(bound) for bound in bounds)
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        """Of each bucket alone; the last has no upper bound."""
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value into the first bucket whose bound (inclusive) is not below it."""
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.total += value


@dataclass(slots=True)
class Family:
    """One metric: its name, what it means, and its samples."""

    name: str
    kind: Kind
    help: str
    samples: list[tuple[Labels, float]] = field(default_factory=list)
    histograms: list[tuple[Labels, Histogram]] = field(default_factory=list)

    def __post_init__(self) -> None:
        assert _NAME.fullmatch(self.name), self.name
        assert (self.kind is Kind.COUNTER) == self.name.endswith("_total"), self.name

    def add(self, value: float, **labels: str) -> Family:
        """One sample; returns itself."""
        assert self.kind is not Kind.HISTOGRAM
        self.samples.append((tuple(labels.items()), value))
        return self


def render(families: Iterable[Family]) -> str:
    """The text. Families without a sample are left out; a name may come once."""
    lines: list[str] = []
    names: set[str] = set()
    for family in families:
        assert family.name not in names, family.name
        names.add(family.name)
        if not (family.samples or family.histograms):
            continue
        lines.append(f"# HELP {family.name} {_escape(family.help)}")
        lines.append(f"# TYPE {family.name} {family.kind.value}")
        lines += [f"{family.name}{_labels(ls)} {_number(v)}" for ls, v in family.samples]
        for labels, histogram in family.histograms:
            lines += _histogram_lines(family.name, labels, histogram)
    return "".join(line + "\n" for line in lines)


def _histogram_lines(name: str, labels: Labels, histogram: Histogram) -> list[str]:
    lines = []
    count = 0
    for bound, bucket in zip((*histogram.bounds, math.inf), histogram.counts, strict=True):
        count += bucket
        lines.append(f"{name}_bucket{_labels((*labels, ('le', _number(bound))))} {count}")
    lines.append(f"{name}_sum{_labels(labels)} {_number(histogram.total)}")
    lines.append(f"{name}_count{_labels(labels)} {count}")
    return lines


def _labels(labels: Labels) -> str:
    assert all(_LABEL.fullmatch(name) for name, _ in labels)
    if not labels:
        return ""
    quoted = (f'{name}="{_escape(value, quote=True)}"' for name, value in labels)
    return "{" + ",".join(quoted) + "}"


def _escape(text: str, *, quote: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quote else text


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1 << 53 else repr(value)
