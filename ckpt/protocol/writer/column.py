"""Where one column of a payload stands while it is written; PayloadWriter moves it on."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from ckpt.base.ids import BootId, ColumnNumber, TargetId
from ckpt.format.messages import Place
from ckpt.format.target_messages import ColumnProof, TargetPace

REFILL_US: Final = 50_000
"""A socket that is full again so soon was full all the time."""


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
    heard_us: int = -1
    """When its target last said anything, if only that others come first."""
    pace: TargetPace | None = None
    """What its target said last of itself."""
    opened_us: int = 0
    """When the stream began, and"""
    open_us: int | None = None
    """how long its target took to accept it."""
    sent_us: int = 0
    """When its last fragment went."""
    seal_asked_us: int = 0
    """When the seal was asked for, and"""
    seal_us: int | None = None
    """how long that took."""
    blocked_since_us: int | None = None
    """Since when its socket is full; moments in which it was not do not count."""
    blocked_at_bytes: int = 0
    """What had been sent by then."""
    moved_us: int = -1
    """When the socket took bytes last."""
    slow_since_us: int | None = None
    """Since when its target is slower than its peers."""
    late: bool = False
    """Its target failed it, by silence or slowness, and no spare could take it yet."""
    asked: bool = False
    """An AskSpares is not answered yet."""
    failed: list[tuple[TargetId, BootId]] = field(default_factory=list)
    """Where it was tried in vain; a target that came back with a new boot may be tried again."""
    proof: ColumnProof | None = None

    def begins(self, place: Place, stream: int, now_us: int) -> None:
        """A new stream, from stripe 0; nothing of an earlier one counts."""
        self.state, self.place, self.stream = ColumnState.OPENING, place, stream
        self.credit_bytes = self.next_stripe = self.sent_bytes = 0
        self.waiting_since_us, self.late, self.proof = now_us, False, None
        self.heard_us, self.pace, self.slow_since_us = -1, None, None
        self.opened_us = self.sent_us = now_us
        self.open_us = self.seal_us = self.blocked_since_us = None

    def blocked(self, now_us: int) -> None:
        """Its socket takes no more."""
        if self.waiting_since_us is None:
            self.waiting_since_us = now_us
        if self.blocked_since_us is None or now_us - self.moved_us > REFILL_US:
            self.blocked_since_us, self.blocked_at_bytes = now_us, self.sent_bytes
        self.moved_us = now_us

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
