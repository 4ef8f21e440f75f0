"""How far a load is, reported when it takes long."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

PROGRESS_AFTER_S: Final = 2.0
PROGRESS_EVERY_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """How far a load is, once it takes longer than two seconds."""

    done_bytes: int
    total_bytes: int
    seconds: float


OnProgress = Callable[[LoadProgress], None]


class ProgressTeller:
    """I tell `on_progress`, if anybody, a few times a second."""

    def __init__(self, on_progress: OnProgress | None) -> None:
        self._on_progress = on_progress
        self.begin()

    def begin(self) -> None:
        """A load begins."""
        self._begun_s = self._told_s = time.monotonic()

    def tell(self, done_bytes: int, total_bytes: int) -> None:
        """So much is here."""
        now = time.monotonic()
        if self._on_progress is None or now - self._begun_s < PROGRESS_AFTER_S:
            return
        if now - self._told_s >= PROGRESS_EVERY_S or done_bytes == total_bytes:
            self._told_s = now
            self._on_progress(LoadProgress(done_bytes, total_bytes, now - self._begun_s))
