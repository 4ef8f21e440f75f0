"""One payload in the hands of one worker, and what came of all of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ckpt.base.ids import ColumnNumber, PayloadId, TargetId
from ckpt.base.limits import HEDGE_US, SEAL_WAIT_US
from ckpt.format.messages.repairs import RepairPace
from ckpt.format.messages.saving import Place
from ckpt.protocol.coordinator.repairing.pacing import NO_LOAD, TaskLoad
from ckpt.protocol.coordinator.saving.space.allotment import Allotment
from ckpt.protocol.events import Session

PATIENCE_US: Final = SEAL_WAIT_US + HEDGE_US
"""Patience with a place that is asked what there is: what it is sealing for a worker that is gone
would else be made again, and be in nobody's books.
"""


@dataclass(slots=True)
class RepairTask:
    """One payload in the hands of one worker."""

    payload: PayloadId
    worker: str
    session: Session
    heard_us: int
    begun_us: int
    columns: tuple[ColumnNumber, ...]
    """Those that were due."""
    allotment: Allotment
    """Of these; the others' holders stand in `intended` alone."""
    sources: frozenset[TargetId]
    """Who holds the others."""
    lost: tuple[ColumnNumber, ...] = ()
    """Those that have a place, once all have been asked."""
    places: dict[ColumnNumber, Place] = field(default_factory=dict)
    """Of these, also when what was reserved there has gone back."""
    alone: bool = False
    """Its only column is read where it is: no other is needed."""
    read_bytes: int = 0
    pace: RepairPace = field(default_factory=RepairPace)
    """As its worker heard it last."""
    load: TaskLoad = NO_LOAD
    """What it asks of whom while a worker makes it."""
    ending: bool = False
    """Its places are asked what there is."""

    @property
    def reads(self) -> int:
        """So many columns are read at once."""
        return 1 if self.alone else self.allotment.layout.code.k

    @property
    def bytes_left(self) -> float:
        """Of its columns."""
        column_bytes = self.allotment.layout.column_bytes
        return len(self.lost) * max(0.0, column_bytes - self.read_bytes / self.reads)

    @property
    def uses(self) -> TaskLoad:
        """What it will ask of whom, once all of its places are known."""
        targets = self.sources | {place.target for place in self.places.values()}
        return TaskLoad(targets, self.reads)


@dataclass(slots=True)
class RepairCounts:
    """Since this coordinator began."""

    columns: int = 0
    """Made again, and counted."""
    bytes: int = 0
    """Of their files."""
    failed: int = 0
    """Tasks that ended with an error."""
    problems: dict[PayloadId, str] = field(default_factory=dict)
    """Why a payload was left alone, until it is tried again."""
