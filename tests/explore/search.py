"""All histories of a scenario, those with fewer disturbances first.

A history is its disturbances and where each struck: all else follows. Each is begun again from the
beginning, since machines cannot be copied, and ends where another one with the same past came by
that may be disturbed as often.
"""

from __future__ import annotations

import gc
from collections import Counter
from dataclasses import dataclass, field
from itertools import groupby

from tests.explore.history import Choice, History, Scenario, kind_of

Path = tuple[tuple[int, Choice], ...]
"""After how many steps each disturbance came."""


@dataclass(slots=True)
class Found:
    """What a search has seen."""

    histories: int = 0
    states: int = 0
    ends: int = 0
    """Histories that came to their end."""
    left: int = 0
    """Histories that were not begun, for there are more than were wanted."""
    path: Path = ()
    """Of the first one in which something is wrong."""
    wrong: Exception | None = None
    steps: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """What went wrong, and how it came to that."""
        lines = [f"{type(self.wrong).__name__}: {self.wrong}"]
        for step, same in groupby(self.steps):
            count = len(list(same))
            lines.append(step if count == 1 else f"{step}, {count} times")
        return "\n".join(lines)


class Search:
    """I look for a history in which a rule is broken."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        #: By state, what had been spent of each kind in histories that came by.
        self._seen: dict[int, list[tuple[int, ...]]] = {}
        self._kinds = sorted(scenario.faults)

    def run(self, most: int | None = None) -> Found:
        """Stops at the first one; `most`: after so many histories."""
        # Each history is a heap of cycles: they are collected together, and nothing else with them.
        gc.collect()
        gc.freeze()
        gc.disable()
        try:
            return self._run(most)
        finally:
            gc.enable()
            gc.unfreeze()

    def _run(self, most: int | None) -> Found:
        found = Found()
        level: list[Path] = [()]
        for depth in range(self._scenario.most + 1):
            following: list[Path] = []
            for number, path in enumerate(level):
                if most is not None and found.histories >= most:
                    found.left += len(level) - number
                    return found
                found.histories += 1
                if found.histories % 64 == 0:
                    gc.collect()
                if not self._follow(
                    path, found, following if depth < self._scenario.most else None
                ):
                    return found
            level = following
        return found

    def _follow(self, path: Path, found: Found, following: list[Path] | None) -> bool:
        """False when something is wrong."""
        history = History(self._scenario)
        try:
            for position, choice in path:
                while history.position < position:
                    history.advance()
                history.apply(choice)
            spent = Counter(kind_of(choice) for _, choice in path)
            while self._is_new(history, spent):
                found.states += 1
                if following is not None:
                    at = history.position
                    following += [
                        (*path, (at, choice))
                        for choice in history.choices()
                        if spent[kind_of(choice)] < self._scenario.faults[kind_of(choice)]
                    ]
                if not history.advance():
                    found.ends += 1
                    break
        except Exception as wrong:
            found.path, found.wrong, found.steps = path, wrong, history.world.steps
            return False
        return True

    def _is_new(self, history: History, spent: Counter[str]) -> bool:
        now = tuple(spent[kind] for kind in self._kinds)
        seen = self._seen.setdefault(history.fingerprint(), [])
        if any(all(a <= b for a, b in zip(one, now, strict=True)) for one in seen):
            return False
        seen.append(now)
        return True
