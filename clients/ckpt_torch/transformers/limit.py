"""`save_total_limit` of a run: of its steps the store keeps those that the Trainer would leave as
folders, which are N: the newest ones, or one less and an older one that is the best.

    N = 3    2 4 6, 2 is the best    save 8     2 6 8      the last 2, and the best
             2 6 8                   save 10    6 8 10     10 is the best: the last 3

A rule cannot say "N together", so it is said again before a save that moves the best into the last
N or out of them. It never takes what the Trainer would leave: said before a save that then fails,
it keeps what was kept.
"""

from __future__ import annotations

from typing import Final

from ckpt_client.warn import warn
from ckpt_torch.place import Where

BEST: Final = "best_model"
"""The metric of a step that was the best of the training when it was saved: its number. So the
step with the highest is the best: of equal ones the Trainer takes the first, `keep` the last.
"""


def best_step(where: Where, newest: int) -> int | None:
    """The best step so far of a training that continues from the step `newest`; None without
    one.
    """
    commits = where.store.steps(where.run)
    known = [one.step for one in commits if BEST in one.metrics and one.step <= newest]
    return max(known, default=None)


class SaveLimit:
    """I say to the store what stays of one training's run, in the place of earlier rules."""

    def __init__(self, where: Where, count: int, begins_at: int) -> None:
        """count: `save_total_limit`, from 1. begins_at: the step that the training goes on from."""
        self._where = where
        self._count = count
        #: How many newest steps stay by what was said last.
        self._said: int | None = None
        newest = where.store.latest(where.run)
        if newest is not None and newest > begins_at:
            warn(
                f"{where.run} has steps up to {newest}, and this training begins at {begins_at}: "
                "save_total_limit goes by a step's number; delete the later ones, or take a new run"
            )

    def say(self, best: int | None, saving: int | None = None) -> None:
        """Set the rules, before a step is saved or once all saves are committed. `best` is the best
        step, that one included. Raises Unavailable.
        """
        last = self._count
        if best is not None and self._steps_since(best, saving) >= last:
            last = max(1, last - 1)
        if last != self._said:
            self._where.store.keep(self._where.run, last=last, best=(BEST, 1), mode="max")
            self._said = last

    def _steps_since(self, best: int, saving: int | None) -> int:
        steps = {commit.step for commit in self._where.store.steps(self._where.run)}
        if saving is not None:
            steps.add(saving)
        return sum(step > best for step in steps)
