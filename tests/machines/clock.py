"""The wall clock of one process, which jumps when a test says so. Its monotonic clock goes on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import libfaketime

LIBRARY: Final = Path(libfaketime.__file__).parent / "vendor/libfaketime/src/libfaketime.so.1"


@dataclass(frozen=True, slots=True)
class Clock:
    """Right until it jumps."""

    file: Path
    """The process looks here at most a second after a jump."""

    def environment(self) -> dict[str, str]:
        """What the process must be started with, beside the library's preload."""
        if not self.file.exists():
            self.jump(0)
        return {
            "FAKETIME_TIMESTAMP_FILE": str(self.file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DISABLE_SHM": "1",
        }

    def jump(self, away_s: int) -> None:
        """From now on the clock is so far from the right time."""
        aside = self.file.with_suffix(".aside")
        aside.write_text(f"{away_s:+d}")
        os.replace(aside, self.file)
