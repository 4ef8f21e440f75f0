"""When and whom does the demo kill? Decisions over what the coordinator says, without effects.

The moment: inside a burst, after the first and before the last fragment of a save is on a target.
The victims stand still from before the burst on, so that it cannot be over before it was seen.
The victims: the targets whose loss leaves no rank without something to rebuild.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import msgspec


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


class StrikeWatch:
    """I say when a save has something stored and lacks something, and when it is too late.

    step: of the save, which has not begun.
    stored: fragments on all targets before it; nothing else is under way.
    total: fragments that it is going to have, as those before it showed.
    """

    def __init__(self, step: int, stored: int, total: int) -> None:
        self._step = step
        self._before = stored
        self._total = total

    def look(self, status: StatusNow) -> Glimpse | None:
        """The burst, if it is under way, has stored something, and can be struck."""
        attempt, stored = status.attempt(self._step), status.fragments - self._before
        if attempt is None or attempt.ranks_certified or not 0 < stored < self._total:
            return None
        return Glimpse(self._step, stored, self._total)

    def is_over(self, status: StatusNow) -> bool:
        """A rank is certified, or the whole save has ended."""
        attempt = status.attempt(self._step)
        if attempt is not None:
            return attempt.ranks_certified > 0
        return status.fragments > self._before


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
