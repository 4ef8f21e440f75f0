"""What engines share that write one file for each rank: its name, its sync, what is left of older
steps. The save is synchronous: its stall is all of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from ckptbench.engines.base import (
    KEEP_STEPS,
    Done,
    EnginePlan,
    rank_file,
    remove_old,
    sync_file,
)
from ckptbench.workload import State


class FileEngine(ABC):
    """A format says how a file is written; no file outlives a call."""

    suffix: ClassVar[str]
    """Of the files' names."""

    def __init__(self, plan: EnginePlan) -> None:
        self._plan = plan
        #: Steps whose files lie there, oldest first.
        self._saved: list[int] = []

    @abstractmethod
    def write(self, path: Path, state: State) -> None:
        """The state into a new file."""

    def save(self, step: int, state: State) -> None:
        path = self._path(step, self._plan.rank)
        self.write(path, state)
        if self._plan.settings["end_fsync"] == "1":
            sync_file(path)
        self._saved.append(step)

    def wait(self) -> Done:
        return Done()  # It was done when `save` returned.

    def tidy(self) -> None:
        while len(self._saved) > KEEP_STEPS:
            remove_old(self._path(self._saved.pop(0), self._plan.rank))

    def close(self) -> None:
        """Nothing is open between calls; what was saved stays."""
        self._saved.clear()

    def _path(self, step: int, rank: int) -> Path:
        return rank_file(self._plan, step, rank, self.suffix)
