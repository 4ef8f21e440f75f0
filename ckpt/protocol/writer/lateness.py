"""When is a target late? Silent, or slower than its peers by itself. Never because it is busy.

    waits for credit or a seal     its target says how long the device takes (TargetPace): slow when
                                   that is LATE_FACTOR times what the payload's other targets say,
                                   and more than a good device ever takes; once all others are done,
                                   more than this run's columns can stand
    waits for a full socket        slow when the link lets SLOW_FRACTION times less pass than those
                                   of the others meanwhile, or than they had when they are done
    hears nothing at all           mute: its peers have answered, and it has not (questions.py);
                                   silent: a target beats to whoever waits for it (BEAT_US)

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
from ckpt.protocol.service_time import WRITE_BYTES_MIN
from ckpt.protocol.writer.column import IDLE, Column, ColumnState

HEDGE_LAST_US: Final = 5 * HEDGE_US
"""When the peers are silent as well, the fault is probably not the column's own: it keeps its place
for this long.
"""
OPEN_US_MIN: Final = 100_000
"""A BeginColumn is tried elsewhere after this and OPEN_FACTOR, if a spare is at hand."""
OPEN_FACTOR: Final = 8
"""So many times what all of its peers took: nothing has been sent yet, so moving is cheap."""
SLOW_AFTER_US: Final = 500_000
"""Before this, sent bytes say more about socket buffers and scheduling than about links."""
SLOW_AFTER_US_MIN: Final = 150_000
"""The same where a run's columns take little time."""
SLOW_FRACTION: Final = 4
"""A link is slow when so many times fewer stripes pass than with the others."""
TURNS: Final = 8
"""Stripes that the others must have sent in that time: targets, and hosts, take from one stream
after the other.
"""
LATE_FACTOR: Final = 8
"""Devices of one cluster differ by less; those that fail, by more."""
GOOD_WRITE_US: Final = 40_000
"""A device that writes a MiB within this is not called slow, however fast its peers are."""
GOOD_SEAL_US: Final = 1_000_000
"""A device that takes less for one step of a seal is not called slow: a sync waits for what is
being written.
"""
GOOD_SEAL_US_MIN: Final = 200_000
"""Where a run's columns take less than GOOD_SEAL_US, their time is the limit, since it contains any
queue; but never less than this.
"""
LAST_WRITE_US: Final = 5_000
"""What a good device takes for a MiB, for the last column, which holds up its payload."""
LAST_STILL_US: Final = 100_000
"""How long the device of the last column may end nothing, whatever a step takes its peers."""
LAST_SHARE: Final = 8
"""A column is the last one when all others are done, for one part in so many of the time that the
slowest of them took.
"""


def is_silent(column: Column, columns: Sequence[Column], now_us: int) -> bool:
    """Its target owes something and says nothing: for HEDGE_US while its peers do, or for
    HEDGE_LAST_US. A column without a place waits for the coordinator, which may be busy as well.
    In a crowd it takes long until a target comes to a new stream: as long as with the others.
    """
    if column.waiting_since_us is None or column.place is None:
        return False
    since_us = max(column.waiting_since_us, column.heard_us)
    peers = _peers(column, columns)
    limit_us = HEDGE_US
    if column.state is ColumnState.OPENING:
        limit_us = max(HEDGE_US, OPEN_FACTOR * max((c.open_us or 0 for c in peers), default=0))
    if now_us - since_us < min(limit_us, HEDGE_LAST_US):
        return False
    moving = sum(
        c.state is ColumnState.SEALED or max(c.progress_us, c.heard_us) > since_us for c in peers
    )
    return 2 * moving >= len(peers) or now_us - since_us >= HEDGE_LAST_US


def is_late_to_open(column: Column, columns: Sequence[Column], now_us: int) -> bool:
    """Whether its peers' targets have answered the begin, long ago, and are still heard of."""
    if column.state is not ColumnState.OPENING or column.waiting_since_us is None or column.failed:
        return False
    peers = _peers(column, columns)
    took = [c.open_us for c in peers if c.open_us is not None]
    if 2 * len(took) < len(peers) or not took:
        return False
    limit_us = max(OPEN_US_MIN, OPEN_FACTOR * max(took))
    since_us = column.waiting_since_us + limit_us // 2
    heard = sum(c.heard_us >= since_us or not c.answers for c in peers)
    return now_us - column.waiting_since_us >= limit_us and 2 * heard >= len(peers)


def slow_after_us(usual_us: int | None) -> int:
    """How long a full socket is watched, where a column of this run usually takes `usual_us`; None:
    that is not known.
    """
    if usual_us is None:
        return SLOW_AFTER_US
    return min(SLOW_AFTER_US, max(SLOW_AFTER_US_MIN, usual_us // 2))


def is_slow(
    column: Column, columns: Sequence[Column], now_us: int, usual_us: int | None = None,
    heard_since_us: int = -1,
) -> bool:  # fmt: skip
    """Its link or its target's device is slower by itself than those of its peers. Of devices,
    those peers count that were heard since then, or cannot be asked.
    """
    peers = _peers(column, columns)
    if column.state is ColumnState.STREAMING and column.blocked_since_us is not None:
        span_us = now_us - column.blocked_since_us
        return span_us >= slow_after_us(usual_us) and _link_is_slow(column, now_us, peers)
    if column.pace is None or column.state not in (ColumnState.STREAMING, ColumnState.SEALING):
        return False
    writes_us, seals_us = (
        [of(c) if c.heard_us >= heard_since_us or not c.answers else 0 for c in peers]
        for of in (_write_us, _seal_us)
    )
    pace, last = column.pace, _holds_up(column, peers, now_us)
    # Before a seal begins everything is written, also what came long before it was asked for.
    if _is_far_above(pace.write_us, writes_us, LAST_WRITE_US if last else GOOD_WRITE_US):
        return True
    if column.state is not ColumnState.SEALING:
        return False
    if last and _is_far_above(pace.still_us, seals_us, LAST_STILL_US):
        return True
    return _is_far_above(pace.seal_us, seals_us, _good_seal_us(usual_us, peers))


def _good_seal_us(usual_us: int | None, peers: list[Column]) -> int:
    took = sorted(c.took_us for c in peers if c.state is ColumnState.SEALED)
    if usual_us is None and 2 * len(took) >= len(peers) > 0:
        usual_us = took[len(took) // 2]
    if usual_us is None:
        return GOOD_SEAL_US
    return min(GOOD_SEAL_US, max(GOOD_SEAL_US_MIN, usual_us))


def _holds_up(column: Column, peers: list[Column], now_us: int) -> bool:
    """All others are done, for a part of the time that the slowest of them took."""
    if not peers or any(c.state is not ColumnState.SEALED for c in peers):
        return False
    slowest_us = max(c.took_us for c in peers)
    return LAST_SHARE * (now_us - column.opened_us) >= (LAST_SHARE + 1) * slowest_us


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
    """Of a peer's target for one MiB: as it says, or as its whole column took. Where a device does
    many writes at a time, no less than they would take one by one.
    """
    pace = column.pace or IDLE
    if pace.write_us:
        cell_bytes = max(WRITE_BYTES_MIN, column.sent_bytes // max(1, column.next_stripe))
        return max(pace.write_us, pace.alone_us * MiB // cell_bytes)
    if column.seal_us is None:
        return 0
    return column.took_us * MiB // max(MiB, column.sent_bytes)


def _seal_us(column: Column) -> int:
    """Of a peer's target for one step: as it says, one by one, or, all queues included, what the
    seal took.
    """
    pace = column.pace or IDLE
    return max(pace.seal_us, pace.alone_us) if pace.seal_us else column.seal_us or 0


def _link_is_slow(column: Column, now_us: int, peers: list[Column]) -> bool:
    """While its socket was full, SLOW_FRACTION times fewer stripes passed than with half of its
    peers, of which so many passed that it is no matter of whose turn it was.
    """
    assert column.blocked_since_us is not None
    span_us = now_us - column.blocked_since_us
    last = _holds_up(column, peers, now_us)
    passed, *others = (
        _stripes_passed(c, column.had_stripes[c.number], span_us, last=last and c is not column)
        for c in (column, *peers)
    )
    median = sorted(others)[len(others) // 2] if others else 0.0
    return median >= TURNS and passed * SLOW_FRACTION < median


def _stripes_passed(peer: Column, had_stripes: int, span_us: int, *, last: bool) -> float:
    """Stripes that a peer's column passed in the span.

    For a column that is done or idle, what it would have passed at its own pace: in all, when it is
    compared with the last column; otherwise at most what it had.
    """
    passed = peer.next_stripe - had_stripes
    is_under_way = passed > 0 or peer.waiting_since_us is not None
    if peer.state is ColumnState.OPENING or (peer.state is ColumnState.STREAMING and is_under_way):
        return passed
    at_its_pace = peer.next_stripe * span_us / max(1, peer.sent_us - peer.opened_us)
    return at_its_pace if last else min(at_its_pace, peer.next_stripe)
