"""Where one column of a payload stands while it is written; PayloadWriter moves it on."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from ckpt.base.ids import BootId, ColumnNumber, TargetId
from ckpt.format.messages import Place
from ckpt.format.target_messages import ColumnProof


class ColumnState(Enum):
    """Where a column stands; the drawing in payload_writer has the edges."""

    WAITING = "waiting"
    OPENING = "opening"
    STREAMING = "streaming"
    SEALING = "sealing"
    SEALED = "sealed"
    FAILED = "failed"


@dataclass(slots=True)
class Column:
    """One column's whole state. Only PayloadWriter changes it."""

    number: ColumnNumber
    state: ColumnState = ColumnState.WAITING
    place: Place | None = None
    stream: int = 0
    """0 without a stream."""
    credit_bytes: int = 0
    next_stripe: int = 0
    sent_bytes: int = 0
    """Of the current stream."""
    waiting_since_us: int | None = None
    """Since when the column waits for somebody else; None while the next step is ours."""
    progress_us: int = -1
    """When its target last did something for it."""
    late: bool = False
    """It passed its deadline and no spare could take it yet."""
    asked: bool = False
    """An AskSpares is not answered yet."""
    failed: list[tuple[TargetId, BootId]] = field(default_factory=list)
    """Where it was tried in vain; a target that came back with a new boot may be tried again."""
    proof: ColumnProof | None = None

    def is_on(self, place: Place) -> bool:
        """Another reservation on the target that it is about to leave is no way out."""
        return self.place is not None and self.place.target == place.target

    def is_at(self, place: Place) -> bool:
        """It has this very reservation."""
        at = self.place
        return at is not None and (at.target, at.reservation) == (place.target, place.reservation)

    def must_move(self, place: Place | None) -> bool:
        """A repeated ColumnsReopened finds it already where it shall be, or on its way."""
        if place is not None and self.is_at(place):
            return False
        return self.state in (ColumnState.SEALED, ColumnState.FAILED, ColumnState.WAITING)
