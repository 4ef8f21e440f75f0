"""Does cost grow with size, or faster? Pure: the sizes to measure, and what was found of them.

Along an axis one thing grows and all else stays. `growth` of two neighbours is how many times the
CPU seconds grew over how many times the thing did: below 1 where fixed costs are shared out, 1 for
what is linear, above it for a cliff. `added` is what each one more cost between two neighbours: the
same from pair to pair for what is linear, whatever stands below it as a fixed cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from ckpt.base.units import KiB, MiB, format_bytes

CLIFF: Final = 1.15
"""Growth above this is more than noise."""


@dataclass(frozen=True, slots=True)
class Axis:
    """The quantity that grows."""

    of: str
    """One of it: rank, target, tensor, MiB."""
    sizes: tuple[int, ...]
    settings: Callable[[int], str]
    """Of the job at a size, as in a job file."""


TENSORS_BYTES: Final = 80 * MiB
AXES: Final[Mapping[str, Axis]] = {
    "bytes": Axis("MiB", (16, 64, 256), lambda size: f"numjobs=2 size={size}Mi"),
    "ranks": Axis("rank", (4, 16, 64), lambda size: f"numjobs={size} size=4Mi"),
    "targets": Axis(
        "target", (4, 8, 16, 32), lambda size: f"targets={size} code=2+1 numjobs=8 size=8Mi"
    ),
    "tensors": Axis(
        "tensor",
        (80, 640, 5120),
        lambda size: f"numjobs=1 size={TENSORS_BYTES} tensor_size={TENSORS_BYTES // size // KiB}k",
    ),
}


@dataclass(frozen=True, slots=True)
class Point:
    """What a save costs at one size: medians."""

    size: int
    bytes: int
    """Of all ranks."""
    cpu_s: Mapping[str, float]
    """By stage."""

    @property
    def total_s(self) -> float:
        """CPU seconds of a save."""
        return sum(self.cpu_s.values())


@dataclass(frozen=True, slots=True)
class Growth:
    """The measurements along one axis."""

    axis: str
    points: tuple[Point, ...]

    @property
    def growth(self) -> tuple[float, ...]:
        """Of each size but the first, over the one before."""
        return tuple(
            (late.total_s / early.total_s) / (late.size / early.size)
            for early, late in pairwise(self.points)
        )

    @property
    def added_s(self) -> tuple[float, ...]:
        """CPU seconds of each one more, of each size but the first."""
        return tuple(
            (late.total_s - early.total_s) / (late.size - early.size)
            for early, late in pairwise(self.points)
        )

    @property
    def cliffs(self) -> list[int]:
        """Sizes at which cost grew faster than the thing."""
        return [
            point.size
            for point, growth in zip(self.points[1:], self.growth, strict=True)
            if growth > CLIFF
        ]


def growth_rows(found: Sequence[Growth]) -> list[dict[str, object]]:
    """For tools: the points of each axis, and what follows from them."""
    return [
        {
            "axis": one.axis,
            "points": one.points,
            "growth": one.growth,
            "added_s": one.added_s,
            "cliffs": one.cliffs,
        }
        for one in found
    ]


def growth_text(found: Sequence[Growth]) -> str:
    """For people."""
    return "\n".join(line for one in found for line in _lines(one))


def _lines(found: Growth) -> Iterator[str]:
    of, stages = AXES[found.axis].of, list(found.points[0].cpu_s)
    heads = "".join(f"{stage:>13}" for stage in stages)
    yield (
        f"{found.axis:>8} {'payload':>10} {'CPU s':>8} {'s/GB':>7} {'ms/' + of:>10}{heads}"
        f" {'growth':>7} {'ms added/' + of:>16}"
    )
    blanks: list[tuple[float, float] | None] = [None]
    pairs = [*blanks, *zip(found.growth, found.added_s, strict=True)]
    for point, pair in zip(found.points, pairs, strict=True):
        grown = "" if pair is None else f" {pair[0]:7.2f} {1000 * pair[1]:16.3f}"
        cells = "".join(f"{point.cpu_s[stage]:13.3f}" for stage in stages)
        yield (
            f"{point.size:8} {format_bytes(point.bytes):>10} {point.total_s:8.3f}"
            f" {point.total_s / point.bytes * 1e9:7.2f}"
            f" {1000 * point.total_s / point.size:10.2f}{cells}{grown}"
        )
    if found.cliffs:
        yield f"CLIFF    more than {CLIFF} x linear at {', '.join(map(str, found.cliffs))}"
