"""What did this rank save last? The fingerprints of a run's last save, until the stager ends.

Not kept on disk: the first save of a launch is compared with nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from ckpt.base.ids import RunName, Step
from ckpt.format.messages.saving import Repeats
from ckpt.format.table import RankTable
from ckpt.plan.repeats import Fingerprints, compare_saves, fingerprints_of
from ckpt_client.stager.fingerprint import Samples

RUNS_MAX: Final = 4
"""A trainer that saves into more runs has only the newest of them compared."""


class History:
    """I remember one save of each of a few runs. Used by one thread at a time."""

    def __init__(self) -> None:
        self._last: OrderedDict[RunName, tuple[Step, Fingerprints]] = OrderedDict()
        self._samples: dict[RunName, Samples] = {}

    def samples(self, run: RunName) -> Samples | None:
        """Of the run's last save; None when it is not known."""
        return self._samples.get(run)

    def note(self, run: RunName, step: Step, table: RankTable, samples: Samples) -> Repeats | None:
        """How much of this save repeats the one before; None when there was none, or none of an
        earlier step. What was not fingerprinted counts as changed.
        """
        now = fingerprints_of(table)
        before = self._last.pop(run, None)
        self._last[run] = step, now
        self._samples[run] = samples
        while len(self._last) > RUNS_MAX:
            del self._samples[self._last.popitem(last=False)[0]]
        if before is None or before[0] >= step:
            return None
        return compare_saves(*before, now)
