"""What columns and stripes of a read say together: a place that is proved lost, figures, and the
invariants."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ckpt.protocol.reader.columns import SourceColumn
from ckpt.protocol.reader.events import ReadStatistics, ReadWish, Standing
from ckpt.protocol.reader.stripes import Stripe
from ckpt.protocol.runs.run_sets import covers, meets, minus, total


def lost_place(columns: Sequence[SourceColumn], stripe: Stripe, k: int) -> str:
    """Why the stripe's stuck place can never be read, though all who are away came back; empty if
    it can."""
    assert stripe.stuck is not None
    gone = [column for column in columns if _proved_bad(column, stripe)]
    if len(columns) - len(gone) >= k:
        return ""
    named = "; ".join(f"column {c.number}: {c.reason or 'damaged'}" for c in gone)
    place = f"stripe {stripe.number}, bytes {stripe.stuck[0]} to {stripe.stuck[1]}"
    return f"{place}: {k} good columns are needed; {named}"


def _proved_bad(column: SourceColumn, stripe: Stripe) -> bool:
    assert stripe.stuck is not None
    absent = column.standing is Standing.ABSENT
    if absent and not covers(stripe.have[column.number], *stripe.stuck):
        return True
    return meets(stripe.bad[column.number], *stripe.stuck)


def check_read(
    columns: Sequence[SourceColumn], stripes: Iterable[Stripe], window_bytes: int
) -> None:
    """Assert the invariants that ckpt.protocol.reader.payload_reader states."""
    for column in columns:
        owed = [total(ask.owed.runs) for ask in column.asks.values() if ask.owed is not None]
        assert column.outstanding_bytes == sum(owed)
        assert column.usable or not (column.asks or column.queue)
        assert column.outstanding_bytes <= window_bytes
    for stripe in stripes:
        for j, asked in enumerate(stripe.asked):
            assert not asked or columns[j].usable
            assert minus(asked, stripe.have[j]) == asked
            assert minus(asked, stripe.bad[j]) == asked
        assert not stripe.finishing or stripe.complete
        assert not stripe.finishing or not any(stripe.asked)


def statistics_of(
    wish: ReadWish, columns: Sequence[SourceColumn], done_bytes: int, rebuilt_bytes: int
) -> ReadStatistics:
    """What the read moved so far."""
    wanted = int((wish.spans[:, 1] - wish.spans[:, 0]).sum())
    received = tuple(column.received_bytes for column in columns)
    return ReadStatistics(
        wanted_bytes=wanted,
        done_bytes=done_bytes,
        received_bytes=received,
        rebuilt_bytes=rebuilt_bytes,
        damaged_bytes=sum(column.damaged_bytes for column in columns),
        extra_bytes=max(0, sum(received) - wanted),
        columns_out=tuple(int(column.number) for column in columns if not column.usable),
    )
