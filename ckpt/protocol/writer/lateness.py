"""When is a target late? Silent, or slower than its peers by itself. Never because it is busy.

    waits for credit or a seal     its target says how long the device takes (TargetPace): slow when
                                   that is LATE_FACTOR times what the payload's other targets say
    waits for a full socket        slow when the link lets SLOW_FRACTION times less pass than the
                                   others had in all, queues included
    hears nothing at all           silent: a target beats to whoever waits for it (BEAT_US)

In a crowd a column waits for seconds at a healthy target, as its peers do at theirs: they say so,
and nothing moves. A device or a link that is slow is slow beside its peers whether many wait or
few. Everything is judged against this payload's other columns, so that what slows all alike, this
host too, is nobody's fault.

The functions change nothing; PayloadWriter asks them on every tick.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final

from ckpt.base.limits import HEDGE_US
from ckpt.base.units import MiB
from ckpt.protocol.writer.column import Column, ColumnState

HEDGE_LAST_US: Final = 5 * HEDGE_US
"""When the peers are silent too, the fault is likely not the column's own:
it keeps its place so long.
"""
OPEN_US_MIN: Final = 100_000
"""A begin that is not answered by then, and"""
OPEN_FACTOR: Final = 8
"""so many times later than its peers' were, is tried elsewhere where a spare is at hand: nothing
has been sent yet.
"""
SLOW_AFTER_US: Final = 500_000
"""Before this, sent bytes say more about socket buffers and scheduling than about links."""
SLOW_AFTER_US_MIN: Final = 150_000
"""And where a run's columns are there in no time."""
SLOW_FRACTION: Final = 4
LATE_FACTOR: Final = 8
"""Devices of one cluster differ by less, those that fail by more."""
GOOD_WRITE_US: Final = 40_000
"""A device that writes a MiB within this is never called slow, however fast its peers are."""
GOOD_SEAL_US: Final = 1_000_000
"""Nor one that takes less for one step of a seal: a sync waits for what is being written."""


def is_silent(column: Column, columns: Sequence[Column], now_us: int) -> bool:
    """Its target owes something and says nothing: for HEDGE_US while its peers do, or for
    HEDGE_LAST_US. A column without a place waits for the coordinator, which may be busy as well.
    """
    if column.waiting_since_us is None or column.place is None:
        return False
    since_us = max(column.waiting_since_us, column.heard_us)
    if now_us - since_us < HEDGE_US:
        return False
    peers = _peers(column, columns)
    moving = sum(
        c.state is ColumnState.SEALED or max(c.progress_us, c.heard_us) > since_us for c in peers
    )
    return 2 * moving >= len(peers) or now_us - since_us >= HEDGE_LAST_US


def is_late_to_open(column: Column, columns: Sequence[Column], now_us: int) -> bool:
    """Its peers' targets have answered the begin, long ago."""
    if column.state is not ColumnState.OPENING or column.waiting_since_us is None or column.failed:
        return False
    peers = _peers(column, columns)
    took = sorted(c.open_us for c in peers if c.open_us is not None)
    if 2 * len(took) < len(peers) or not took:
        return False
    limit_us = max(OPEN_US_MIN, OPEN_FACTOR * took[len(took) // 2])
    return now_us - column.waiting_since_us >= limit_us


def slow_after_us(usual_us: int | None) -> int:
    """How long a full socket is watched, where a column of this run usually takes `usual_us`; None:
    nobody knows.
    """
    if usual_us is None:
        return SLOW_AFTER_US
    return min(SLOW_AFTER_US, max(SLOW_AFTER_US_MIN, usual_us // 2))


def is_slow(
    column: Column, columns: Sequence[Column], now_us: int, after_us: int = SLOW_AFTER_US
) -> bool:
    """Its link or its target's device is slower by itself than those of its peers."""
    peers = _peers(column, columns)
    if column.state is ColumnState.STREAMING and column.blocked_since_us is not None:
        span_us = now_us - column.blocked_since_us
        return span_us >= after_us and _link_is_slow(column, span_us, peers)
    if column.pace is None:
        return False
    if column.state is ColumnState.STREAMING:
        return _is_far_above(column.pace.write_us, map(_write_us, peers), GOOD_WRITE_US)
    if column.state is ColumnState.SEALING:
        return _is_far_above(column.pace.seal_us, map(_seal_us, peers), GOOD_SEAL_US)
    return False


def _peers(column: Column, columns: Sequence[Column]) -> list[Column]:
    return [c for c in columns if c is not column and c.place is not None]


def _is_far_above(own_us: int, peers_us: Iterable[int], good_us: int) -> bool:
    """Of peers of whom nothing is known (0) there are fewer than of the others."""
    everyone = sorted(peers_us)
    known = everyone[bisect_right(everyone, 0) :]
    if not known or 2 * len(known) < len(everyone):
        return False
    return own_us > max(good_us, LATE_FACTOR * known[len(known) // 2])


def _write_us(column: Column) -> int:
    """Of a peer's target for one MiB: as it says, or as its whole column took."""
    told = column.pace.write_us if column.pace is not None else 0
    if told or column.seal_us is None:
        return told
    return (column.progress_us - column.opened_us) * MiB // max(MiB, column.sent_bytes)


def _seal_us(column: Column) -> int:
    """What a peer's seal took, or, where it is not done, what its target says."""
    if column.seal_us is not None:
        return column.seal_us
    return column.pace.seal_us if column.pace is not None else 0


def _link_is_slow(column: Column, span_us: int, peers: list[Column]) -> bool:
    rates = sorted(c.sent_bytes / max(1, c.sent_us - c.opened_us) for c in peers)
    passed = (column.sent_bytes - column.blocked_at_bytes) / span_us
    return bool(rates) and passed * SLOW_FRACTION < rates[len(rates) // 2]
