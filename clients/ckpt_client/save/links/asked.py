"""Saves that were asked for, until each is handed over or its half is given back.

A Ctrl-C may take a save from whoever stages it, at any step. So each ends with one message, however
often its end is said, and one that nobody stages any more is found.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from pathlib import Path

from ckpt.base.errors import Aborted
from ckpt_client.stager import wire


def stager_ended(rank: int, pid: int, log: Path) -> Aborted:
    """Why no save goes on that this stager had. pid: 0 when it had not come up yet."""
    if not pid:
        return Aborted(
            f"the stager of rank {rank} ended as it started",
            hint=f"its log is {log}; if nothing is there, the system may have killed it for memory",
        )
    return Aborted(
        f"the stager of rank {rank} (pid {pid}) ended before the save did",
        hint=f"store.steps() tells what committed; save again; its log is {log}",
    )


@dataclass(slots=True)
class AskedSave:
    """One of them."""

    number: int
    run: str
    step: int
    owner: weakref.ref[object] | None
    """Who stages it: without him nobody does. None where the caller answers for it himself."""
    answered: bool = False
    """Granted or refused."""
    sent: list[int] = field(default_factory=list)
    """Not empty once the message that ends it was sent."""

    @property
    def is_lost(self) -> bool:
        """Nobody stages it any more."""
        return self.owner is not None and self.owner() is None

    def giving_back(self, world_size: int, why: str) -> wire.FromTrainer:
        """What ends it when nothing was staged: other ranks that save the step hear of it."""
        if world_size > 1:
            return wire.RefuseStep(self.number, self.run, self.step, wire.cut_text(why))
        return wire.DropStaging(self.number)
