"""Does it pay to compress an array? A little from its beginning, middle and end tells: at most
256 KiB each, and a sixteenth of the array together.

Raw float32 weights do not shrink; bit-shuffled bfloat16 gives 1.3, optimizer state that is mostly
zero much more. Worth it is what is at least a tenth smaller.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from ckpt.base.units import KiB
from ckpt.format.dtypes import dtype_of
from ckpt.format.index.pages import IndexBox, IndexTensor
from ckpt.objects.chunks import compress
from ckpt.objects.documents import ArrayPlan
from ckpt.objects.grid import cut
from ckpt.objects.source import Source, Wish

SAMPLE_BYTES: Final = 256 * KiB
PLACES: Final = 3
SHARE: Final = 1 / 16
RATIO_MIN: Final = 1.1
ARRAYS_AT_ONCE: Final = 32
"""Arrays whose samples are in memory together."""

Candidate = tuple[ArrayPlan, IndexTensor, IndexBox | None]


def sampled(source: Source, arrays: Sequence[Candidate]) -> list[bool]:
    """Whether to compress each of the arrays."""
    found: list[bool] = []
    for at in range(0, len(arrays), ARRAYS_AT_ONCE):
        samples = [_wishes(*candidate) for candidate in arrays[at : at + ARRAYS_AT_ONCE]]
        source.read([wish for wishes in samples for wish in wishes])
        for (array, _, _), wishes in zip(arrays[at:], samples, strict=False):
            found.append(_pays(array, wishes))
    return found


def _wishes(array: ArrayPlan, tensor: IndexTensor, box: IndexBox | None) -> list[Wish]:
    shape, dtype = tensor.global_shape, dtype_of(tensor.dtype)
    share = math.prod(shape) * dtype.itemsize * SHARE / PLACES
    sample = cut(shape, dtype.itemsize, min(SAMPLE_BYTES, int(share))).chunk_shape
    last = tuple(n - s for n, s in zip(shape, sample, strict=True))
    offsets = {tuple(n * part // (PLACES - 1) for n in last) for part in range(PLACES)}
    rank = None if box is None else box.rank
    return [Wish(tensor, rank, offset, np.empty(sample, dtype)) for offset in sorted(offsets)]


def _pays(array: ArrayPlan, wishes: Sequence[Wish]) -> bool:
    raw = packed = 0
    for wish in wishes:
        memory = wish.memory.reshape(-1).view(np.uint8)
        raw += len(memory)
        packed += len(compress(memory, array.item_bytes))
    return raw >= RATIO_MIN * packed
