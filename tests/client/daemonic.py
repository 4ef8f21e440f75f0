"""What a spawned process of a test saves: it imports this module alone."""

from __future__ import annotations

import numpy as np

import ckpt

TIMEOUT_S = 60.0


def save_once(url: str, run: str) -> None:
    with ckpt.open(url) as store:
        store.save(run, 1, {"x": np.arange(10)}).wait(TIMEOUT_S)
