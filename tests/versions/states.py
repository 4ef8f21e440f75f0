"""What the frozen cluster holds, made anew from nothing but numbers."""

from __future__ import annotations

from typing import Final

import numpy as np

import ckpt

RUN: Final = "llm/größe 7b"
OTHER_RUN: Final = "small"
RANKS: Final = 2
STEPS: Final = (100, 200, 300)
DELETED: Final = 100
"""Saved, and removed again. 300 refers to what did not change since 200."""
WORDS: Final = 40_000


def frozen_words(rank: int) -> np.ndarray:
    """A part of the state that never changes."""
    return np.arange(rank, rank + WORDS, dtype="<u4") * np.uint32(2654435761)


def state(step: int, rank: int) -> dict[str, object]:
    """Of one rank: shards, a replica, arrays of its own, scalars, odd names, nested trees."""
    rows = np.arange(24, dtype="<f4").reshape(6, 4) + np.float32(step)
    return {
        "frozen": frozen_words(rank),
        "own": (np.arange(5_000, dtype="<i8") * step + rank).reshape(50, 100),
        "w": ckpt.Shard(rows[3 * rank : 3 * rank + 3], (6, 4), (3 * rank, 0)),
        "same": ckpt.Replicated(np.full((3, 3), step / 8, "<f8")),
        "optimizer": {"lr": 1e-3, "betas": (0.9, 0.999), 3: [None, True, -1, 1 << 70]},
        "größe/=\x7f": np.array([], dtype="<f2"),
        "text": "ä" * 10,
        "bytes": b"\x00\xff",
        "step": step,
    }
