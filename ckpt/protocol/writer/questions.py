"""Is somebody there? Finding a target that stands still, in a fraction of the burst it holds up.

    a column waits and hears nothing for a while     all targets of its payload are asked
    half of its peers have answered that, and it
    has not in ANSWER_FACTOR times the longest that
    any target of the payload ever took              its target is mute: its column moves

A process that lives answers at once, however long its queues are: an answer waits for no device and
no memory. How long that takes on this host, on this network, under this load, the payload's own
columns show, when they begin and whenever they are asked: all at the same moment, also those that
are sealed. The longest, not the usual: where processes wait for a processor most answers come in a
millisecond and one in a few takes a hundred. With 12 ranks and 7 targets on two cores none took
more than 6 times the longest before it. So a host or a network that stands still makes nobody mute,
and a crowd only makes everybody slower to be called so. Of our own time only what we looked at
counts: who is starved itself finds answers late.

Who seems to be slow by what it said is asked again together with its peers: after a standstill
all say so, and who speaks first is not worse than those who come next. Until they answer it is in
doubt: a target that speaks again between their answers is not well by that.

Questions are few. The longer a payload has run, and the more streams wait at its targets, the
longer the silence must be; beyond BEAT_US a target speaks unasked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ckpt.protocol.writer.column import Column, ColumnState
from ckpt.protocol.writer.lateness import is_slow

LOOK_US_MAX: Final = 50_000
"""Shells tick more often; of a longer gap, no more than this is charged to anybody."""
ASK_US_MIN: Final = 50_000
"""A silence is worth a question only after the longest of this and the next two."""
ASK_SHARE: Final = 8
"""One part in so many of the time that the payload has taken so far."""
ASK_US_PER_WAITING: Final = 2_000
"""For each stream that waits there: targets are asked 500 times a second at most."""
ANSWER_US: Final = 100_000
"""How long an answer may take, whatever others took."""
ANSWER_US_MIN: Final = 50_000
"""The same where a column of this run takes little time."""
ANSWER_FACTOR: Final = 8
"""A target is mute after so many times the longest answer of the payload."""
FRESH_US: Final = 50_000
"""What two targets said is compared if it was said within this."""


def answer_us(usual_us: int | None) -> int:
    """How long an answer may take where a column of this run usually takes `usual_us`; None: that
    is not known.
    """
    if usual_us is None:
        return ANSWER_US
    return min(ANSWER_US, max(ANSWER_US_MIN, usual_us // ASK_SHARE))


class Questions:
    """I say when targets of one payload are asked, and who is late by what they say. Of columns I
    change `asked_us` and `unheard_us` alone."""

    def __init__(self, columns: Sequence[Column], now_us: int, usual_us: int | None) -> None:
        self._columns = columns
        self._usual_us = usual_us
        self._answer_us = answer_us(usual_us)
        #: Somebody seems slow, beside what its peers said long ago.
        self._doubted = False
        self._begun_us = self._asked_us = self._looked_us = now_us

    def ticked(self, now_us: int) -> list[Column]:
        """Whom to ask now: nobody, or all who can be asked and do not owe an answer already."""
        looked_us, self._looked_us = min(LOOK_US_MAX, now_us - self._looked_us), now_us
        for column in self._columns:
            if column.asked_us is not None:
                column.unheard_us += looked_us
        since_us = now_us - self._ask_after_us(now_us)
        doubted = self._doubted and now_us - self._asked_us >= ASK_US_MIN
        quiet = any(_is_quiet(column, since_us) for column in self._columns)
        if not doubted and not (quiet and self._asked_us <= since_us):
            return []
        self._asked_us, self._doubted = now_us, False
        asked = [c for c in self._columns if c.answers and c.asked_us is None and _is_there(c)]
        for column in asked:
            column.asked_us, column.unheard_us = now_us, 0
        return asked

    def is_slow(self, column: Column, now_us: int) -> bool:
        """It is mute, or slow by itself beside what its peers say now."""
        if self.is_mute(column):
            return True
        if self.is_well(column, now_us):
            return False
        fresh_us = column.heard_us - FRESH_US
        slow = is_slow(column, self._columns, now_us, self._usual_us, fresh_us)
        self._doubted = self._doubted or not slow
        return slow

    def is_well(self, column: Column, now_us: int) -> bool:
        """Beside what its peers said last, whenever that was. One that is not is in doubt until
        they answer: neither slow nor well again.
        """
        return not is_slow(column, self._columns, now_us, self._usual_us)

    def is_mute(self, column: Column) -> bool:
        """Whether it owes an answer that its peers gave long ago."""
        since_us = column.asked_us
        if since_us is None or column.waiting_since_us is None:
            return False
        peers = [c for c in self._columns if c is not column and c.place is not None]
        heard = sum(c.heard_us > since_us for c in peers)
        if 2 * heard < len(peers) or not heard:
            return False
        longest_us = max(c.longest_us for c in self._columns)
        return column.unheard_us >= max(self._answer_us, ANSWER_FACTOR * longest_us)

    def _ask_after_us(self, now_us: int) -> int:
        waiting = max(c.pace.waiting_count if c.pace is not None else 0 for c in self._columns)
        shares_us = (now_us - self._begun_us) // ASK_SHARE, waiting * ASK_US_PER_WAITING
        return max(ASK_US_MIN, *shares_us)


def _is_quiet(column: Column, since_us: int) -> bool:
    """It waits, and nothing has come of its target since."""
    waits_us = column.waiting_since_us
    may_be_asked = column.answers or column.state is ColumnState.OPENING  # Its peers, then.
    if waits_us is None or not may_be_asked:
        return False
    return max(waits_us, column.heard_us, column.moved_us) <= since_us


def _is_there(column: Column) -> bool:
    """It has a stream that its target has accepted, or had one."""
    return column.place is not None and column.state is not ColumnState.OPENING
