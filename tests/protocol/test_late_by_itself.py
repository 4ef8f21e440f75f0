"""Tables of when a column is silent, and when it is late to begin, beside its peers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ckpt.base.ids import BootId, ColumnNumber, TargetId
from ckpt.base.limits import HEDGE_US
from ckpt.protocol.writer.column import Column, ColumnState
from ckpt.protocol.writer.lateness import (
    HEDGE_LAST_US,
    OPEN_FACTOR,
    OPEN_US_MIN,
    is_late_to_open,
    is_silent,
)
from tests.protocol.writerkit import place

LONG_US = HEDGE_LAST_US // OPEN_FACTOR // 2
"""So long a begin may take its peers: it is silent before a begin like that is late."""


def owes(state: ColumnState = ColumnState.OPENING) -> Column:
    """A column whose target owes something since the beginning."""
    return Column(ColumnNumber(0), state, place(0), waiting_since_us=0, answers=True)


def peer(
    open_us: int | None = 10_000, *, heard_us: int = -1, answers: bool = True,
    state: ColumnState = ColumnState.STREAMING, has_place: bool = True,
) -> Column:  # fmt: skip
    where = place(1) if has_place else None
    return Column(
        ColumnNumber(1), state, where, heard_us=heard_us, answers=answers, open_us=open_us
    )


HEARD = peer(heard_us=OPEN_US_MIN // 2)
UNHEARD = peer(heard_us=OPEN_US_MIN // 2 - 1)
OLDER = peer(answers=False)
UNANSWERED = peer(None, heard_us=OPEN_US_MIN)
AWAY = peer(None, has_place=False)


@pytest.mark.parametrize(
    ("peers", "late_us"),
    [
        ([HEARD], OPEN_US_MIN),
        ([OLDER], OPEN_US_MIN),
        ([UNHEARD], None),
        ([HEARD, HEARD, UNHEARD, UNHEARD], OPEN_US_MIN),
        ([HEARD, UNHEARD, UNHEARD], None),
        ([HEARD, HEARD, UNANSWERED, UNANSWERED], OPEN_US_MIN),
        ([HEARD, UNANSWERED, UNANSWERED], None),
        ([HEARD, AWAY, AWAY, AWAY], OPEN_US_MIN),
        ([UNANSWERED], None),
        ([], None),
        ([HEARD, peer(50_000, heard_us=200_000)], OPEN_FACTOR * 50_000),
        ([peer(50_000, heard_us=199_999)], None),
    ],
)
def test_a_begin_is_late_beside_those_that_were_answered_and_are_heard_of(
    peers: Sequence[Column], late_us: int | None
) -> None:
    column = owes()
    columns = [column, *peers]
    last_us = late_us if late_us is not None else HEDGE_LAST_US
    assert not is_late_to_open(column, columns, last_us - 1)
    assert is_late_to_open(column, columns, last_us) == (late_us is not None)


def test_a_begin_that_was_moved_or_answered_is_not_late() -> None:
    column = owes()
    assert is_late_to_open(column, [column, HEARD], OPEN_US_MIN)
    column.failed.append((TargetId("t9"), BootId(1)))
    assert not is_late_to_open(column, [column, HEARD], OPEN_US_MIN), "it was moved once"
    column = owes(ColumnState.STREAMING)
    assert not is_late_to_open(column, [column, HEARD], OPEN_US_MIN)
    column = owes()
    column.waiting_since_us = None
    assert not is_late_to_open(column, [column, HEARD], OPEN_US_MIN)


MOVES = peer(heard_us=1)
WORKS = peer()
WORKS.progress_us = 1
STANDS = peer(heard_us=0)
SEALED = peer(state=ColumnState.SEALED)


@pytest.mark.parametrize(
    ("peers", "silent_us"),
    [
        ([MOVES], HEDGE_US),
        ([WORKS], HEDGE_US),
        ([SEALED], HEDGE_US),
        ([STANDS], HEDGE_LAST_US),
        ([MOVES, SEALED, STANDS, STANDS], HEDGE_US),
        ([MOVES, STANDS, STANDS], HEDGE_LAST_US),
        ([MOVES, peer(None, heard_us=1)], HEDGE_US),
        ([MOVES, peer(LONG_US, heard_us=1)], OPEN_FACTOR * LONG_US),
        ([MOVES, peer(HEDGE_LAST_US, heard_us=1)], HEDGE_LAST_US),
        ([], HEDGE_US),
    ],
)
def test_a_target_is_silent_beside_those_that_do_something(
    peers: Sequence[Column], silent_us: int
) -> None:
    column = owes()
    assert not is_silent(column, [column, *peers], silent_us - 1)
    assert is_silent(column, [column, *peers], silent_us)


def test_it_is_silent_since_it_was_heard_last() -> None:
    column = owes(ColumnState.STREAMING)
    column.heard_us = 5
    later = peer(HEDGE_LAST_US, heard_us=6)
    assert not is_silent(column, [column, later], HEDGE_US + 4)
    assert is_silent(column, [column, later], HEDGE_US + 5), "however long a begin takes"
    assert not is_silent(column, [column, peer(heard_us=5)], HEDGE_US + 5)


def test_who_owes_nothing_is_not_silent() -> None:
    column = owes()
    column.waiting_since_us = None
    assert not is_silent(column, [column, MOVES], HEDGE_LAST_US)
    column = owes()
    column.place = None
    assert not is_silent(column, [column, MOVES], HEDGE_LAST_US), "the coordinator may be busy"
