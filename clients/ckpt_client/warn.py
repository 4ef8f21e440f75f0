"""Warnings point at the user's own line, however deep in here their cause is found."""

from __future__ import annotations

import sys
import warnings
from types import FrameType
from typing import Final

from ckpt.base.printable import printable

_OURS: Final = frozenset({"ckpt", "ckpt_client", "ckpt_torch", "ckpt_jax", "contextlib"})


def warn(text: str) -> None:
    """A UserWarning at the innermost line that is not ours; in a thread of ours, at its start."""
    level = 1
    frame: FrameType | None = sys._getframe()
    while frame is not None and _is_ours(frame):
        level, frame = level + 1, frame.f_back
    warnings.warn(printable(text), UserWarning, stacklevel=level if frame else level - 1)


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in _OURS
