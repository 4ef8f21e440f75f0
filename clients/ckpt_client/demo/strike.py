"""When and whom does the demo kill? Decisions over what the coordinator says, without effects.

The moment: inside a burst, after the first and before the last fragment of a save is on a target.
The victims: the targets whose loss leaves no rank without something to rebuild.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Final

import msgspec

LATEST_SHARE: Final = 0.6
"""With a larger share stored than this, a burst may be over before a signal arrives."""


class TargetNow(msgspec.Struct, frozen=True):
    """What the demo needs of a target's row in `status`."""

    id: str
    state: str
    pid: int | None
    counters: dict[str, int]


class AttemptNow(msgspec.Struct, frozen=True):
    """A save that has not ended."""

    run: str
    step: int
    ranks_certified: int


class StatusNow(msgspec.Struct, frozen=True):
    """The coordinator's `status`; fields that the demo does not look at are skipped."""

    targets: tuple[TargetNow, ...]
    attempts: tuple[AttemptNow, ...]

    @property
    def fragments(self) -> int:
        """Stored by all targets since they started."""
        return sum(target.counters.get("fragments", 0) for target in self.targets)

    def attempt(self, step: int) -> AttemptNow | None:
        return next((each for each in self.attempts if each.step == step), None)


class ColumnsNow(msgspec.Struct, frozen=True):
    """Where one rank's columns are, by column number."""

    rank: int
    targets: tuple[str | None, ...]


class ShowNow(msgspec.Struct, frozen=True):
    """The coordinator's `show` of one step."""

    columns: tuple[ColumnsNow, ...]


class Glimpse(msgspec.Struct, frozen=True):
    """A burst as it was seen in the middle."""

    step: int
    fragments_stored: int
    fragments_total: int


class HalfwayWatch:
    """I learn how many fragments a save has, and say when one is half way."""

    def __init__(self, save_every: int) -> None:
        self._save_every = save_every
        #: Step of a save -> fragments that were stored before it began.
        self._quiet: dict[int, int] = {}
        #: Step of the save that comes next, or is under way.
        self._next = 0

    def note_quiet(self, next_save: int, status: StatusNow) -> None:
        """What is stored before save `next_save`; until the one before has ended I keep to that."""
        if next_save != self._next and status.attempt(self._next) is not None:
            return
        self._next = next_save
        if not status.attempts:
            self._quiet[next_save] = status.fragments

    @property
    def fragments_per_save(self) -> int:
        """Fragments of a save, as the one before showed; 0 while that is not known."""
        before, now = self._quiet.get(self._next - self._save_every), self._quiet.get(self._next)
        return now - before if before is not None and now is not None else 0

    def look(self, status: StatusNow) -> Glimpse | None:
        """The burst, if it is under way, has stored something, and has enough left to be struck."""
        total = self.fragments_per_save
        attempt = status.attempt(self._next)
        if not total or attempt is None or attempt.ranks_certified:
            return None
        stored = status.fragments - self._quiet[self._next]
        if not 0 < stored <= LATEST_SHARE * total:
            return None
        return Glimpse(self._next, stored, total)


def choose_victims(columns: Sequence[ColumnsNow], data_count: int, count: int) -> tuple[str, ...]:
    """The `count` targets whose loss takes a data column (below `data_count`) from the most ranks.

    Among those that are equal, the ones with the most data columns.
    """
    names = sorted({name for each in columns for name in each.targets if name is not None})
    losses = {name: _data_ranks(columns, data_count, name) for name in names}
    if len(names) <= count:
        return tuple(names)
    return max(combinations(names, count), key=lambda chosen: _weight(losses, chosen))


def _data_ranks(columns: Sequence[ColumnsNow], data_count: int, name: str) -> frozenset[int]:
    return frozenset(each.rank for each in columns if name in each.targets[:data_count])


def _weight(losses: Mapping[str, frozenset[int]], chosen: Sequence[str]) -> tuple[int, int]:
    ranks = frozenset[int]().union(*(losses[name] for name in chosen))
    return len(ranks), sum(len(losses[name]) for name in chosen)
