"""Where one column of a payload stands while it is written; PayloadWriter moves it on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from ckpt.base.ids import BootId, ColumnNumber, TargetId
from ckpt.format.messages.saving import Place
from ckpt.format.messages.writing import ColumnProof, TargetPace

REFILL_US: Final = 50_000
"""A socket that is full again this soon was full all the time."""


IDLE: Final = TargetPace(write_us=0, seal_us=0, waiting_count=0)
"""The pace of a target that has nothing to report."""


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
    sealed_stream: int = 0
    """The stream on which its proof came; its target may be asked there whether it lives."""
    credit_bytes: int = 0
    next_stripe: int = 0
    sent_bytes: int = 0
    """Bytes sent on the current stream."""
    waiting_since_us: int | None = None
    """Since when the column waits for somebody else; None while the next step is ours."""
    progress_us: int = -1
    """When its target last did something for it."""
    heard_us: int = -1
    """When its target last said anything, if only that others come first."""
    pace: TargetPace | None = None
    """What its target last reported of itself."""
    answers: bool = False
    """Whether its target may be asked if it lives."""
    asked_us: int | None = None
    """Since when its target owes an answer. Only `questions.py` changes this and `unheard_us`."""
    unheard_us: int = 0
    """For how long since then we have listened."""
    longest_us: int = 0
    """The longest that a target of this column has taken to answer a begin or a question."""
    opened_us: int = 0
    """When the stream began."""
    open_us: int | None = None
    """How long its target took to accept the stream."""
    sent_us: int = 0
    """When its last fragment was sent."""
    seal_asked_us: int = 0
    """When the seal was asked for."""
    seal_us: int | None = None
    """How long the seal took."""
    blocked_since_us: int | None = None
    """Since when its socket is full; moments in which it was not are ignored."""
    had_stripes: tuple[int, ...] = ()
    """How many stripes each column of the payload had sent by then."""
    moved_us: int = -1
    """When the socket last took bytes."""
    slow_since_us: int | None = None
    """Since when its target is slower than its peers."""
    late: bool = False
    """Its target failed it, by silence or slowness, and no spare could take it yet."""
    asked: bool = False
    """An AskSpares has no answer yet."""
    failed: list[tuple[TargetId, BootId]] = field(default_factory=list)
    """Where it was tried in vain; a target that came back with a new boot may be tried again."""
    proof: ColumnProof | None = None

    def begins(self, place: Place, stream: int, now_us: int) -> None:
        """Begin a new stream, from stripe 0; nothing of an earlier one counts."""
        self.state, self.place, self.stream = ColumnState.OPENING, place, stream
        self.credit_bytes = self.next_stripe = self.sent_bytes = 0
        self.waiting_since_us, self.late, self.proof = now_us, False, None
        self.heard_us, self.pace, self.slow_since_us = -1, None, None
        self.answers, self.asked_us, self.sealed_stream = False, None, 0
        self.opened_us = self.sent_us = now_us
        self.open_us = self.seal_us = self.blocked_since_us = None

    @property
    def took_us(self) -> int:
        """How long a sealed column took, from its begin to its proof."""
        return self.progress_us - self.opened_us

    def heard(self, now_us: int, pace: TargetPace | None = None) -> None:
        """Note that its target said something. How fast it is stays true when it has nothing
        to do.
        """
        if pace is not None or self.pace is not None:
            old, new = self.pace or IDLE, pace or IDLE
            write_us, seal_us = new.write_us or old.write_us, new.seal_us or old.seal_us
            alone_us = new.alone_us or old.alone_us
            self.pace = TargetPace(write_us, seal_us, new.waiting_count, new.still_us, alone_us)
        self.heard_us, asked_us, self.asked_us = now_us, self.asked_us, None
        if asked_us is not None:
            self.longest_us = max(self.longest_us, now_us - asked_us)

    def accepted(self, now_us: int) -> None:
        """Note that its target has accepted the stream."""
        self.open_us = now_us - self.opened_us
        self.longest_us = max(self.longest_us, self.open_us)

    def moved(self, now_us: int) -> None:
        """Note that its socket took bytes: somebody reads them."""
        self.moved_us, self.asked_us = now_us, None

    def blocked(self, now_us: int, columns: Sequence[Column]) -> None:
        """Its socket takes no more; `columns`, all of its payload, show whether theirs do."""
        if self.waiting_since_us is None:
            self.waiting_since_us = now_us
        if self.blocked_since_us is None or now_us - self.moved_us > REFILL_US:
            self.blocked_since_us = now_us
            self.had_stripes = tuple([c.next_stripe for c in columns])
        self.moved_us = now_us

    def is_on(self, place: Place) -> bool:
        """Another reservation on the target that it is about to leave is no way out."""
        return self.place is not None and self.place.target == place.target

    def is_at(self, place: Place) -> bool:
        """Whether it has this very reservation."""
        at = self.place
        return at is not None and (at.target, at.reservation) == (place.target, place.reservation)

    def must_move(self, place: Place | None) -> bool:
        """A repeated ColumnsReopened finds it already where it shall be, or on its way."""
        if place is not None and self.is_at(place):
            return False
        return self.state in (ColumnState.SEALED, ColumnState.FAILED, ColumnState.WAITING)


def slowest(columns: Sequence[Column], begun_us: int) -> tuple[TargetId, int]:
    """Whose column was sealed last, and how long that took since `begun_us`."""
    sealed = [c for c in columns if c.proof is not None and c.place is not None]
    if not sealed:
        return TargetId(""), 0
    last = max(sealed, key=lambda c: c.progress_us)
    assert last.place is not None
    return last.place.target, max(0, last.progress_us - begun_us)
