"""How do the boxes of one tensor lie to each other, and what do they leave open?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ckpt.plan.boxes import Extent, bounds_of, crossing_pairs, first_hole, intersect, volume_of

OVERLAPS_MAX: Final = 1 << 16
"""Of one checkpoint; more is refused, since every one is a question to its holders."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Numbers are positions in the list of boxes."""

    identical: tuple[tuple[int, ...], ...]
    """Boxes that are given more than once, and are not empty."""
    crossings: tuple[tuple[int, int, Extent, Extent], ...]
    """Pairs of different boxes with the part that they share, by the first of each identical group.
    """
    crossing_more: bool
    """There are more than OVERLAPS_MAX crossings."""
    hole: tuple[Extent, Extent] | None

    @property
    def is_plain(self) -> bool:
        """Each item is in one box, and no box is given twice."""
        return self.hole is None and not (self.identical or self.crossings)


def geometry_of(shape: Extent, boxes: Sequence[tuple[Extent, Extent]]) -> Geometry:
    """Identical boxes, crossing boxes and the first hole; boxes lie inside the tensor."""
    same: defaultdict[tuple[Extent, Extent], list[int]] = defaultdict(list)
    for number, box in enumerate(boxes):
        if volume_of(box[1]):
            same[box].append(number)
    unique = list(same)
    starts, ends = bounds_of(unique, len(shape))
    pairs = crossing_pairs(starts, ends, OVERLAPS_MAX).tolist()
    crossings: list[tuple[int, int, Extent, Extent]] = []
    for a, b in sorted(sorted(pair) for pair in pairs[:OVERLAPS_MAX]):
        part = intersect(*unique[a], *unique[b])
        assert part is not None, "crossing_pairs names pairs that share an item"
        crossings.append((same[unique[a]][0], same[unique[b]][0], *part))
    covered = not crossings and sum(volume_of(box[1]) for box in unique) == volume_of(shape)
    return Geometry(
        identical=tuple(tuple(numbers) for numbers in same.values() if len(numbers) > 1),
        crossings=tuple(crossings),
        crossing_more=len(pairs) > OVERLAPS_MAX,
        hole=None if covered else first_hole(shape, starts, ends),
    )
