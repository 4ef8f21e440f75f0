"""A reader judges targets by how long they let it wait, not by how long it was away itself, nor by
what their answers say."""

from __future__ import annotations

from itertools import count

import numpy as np

from ckpt.base.units import MiB
from ckpt.erasure.code import Code
from ckpt.format.layout import Layout
from ckpt.protocol.events import Ticked
from ckpt.protocol.reader.events import (
    AskAnswered,
    AskRanges,
    CutColumn,
    RangeErased,
    RangesStored,
    ReadLimits,
    ReadWish,
    Standing,
)
from ckpt.protocol.reader.payload_reader import PayloadReader
from tests.protocol.writerkit import PAYLOAD

SLOW = 3
"""This column brings a sixteenth of what the others bring."""
TICK_US = 100_000


def given_up(own_us: int) -> list[int]:
    """Columns that a read of 3 s gives up, where so much of each tick is the reader's own."""
    layout = Layout(Code(4, 2), 4 * 64 * MiB, 2 * MiB)
    wish = ReadWish(
        PAYLOAD, layout, np.array([[0, layout.payload_bytes]]), (Standing.REACHABLE,) * 6
    )
    machine = PayloadReader(wish, count(1), 0)
    actions = machine.begin()
    asked: dict[int, list[AskRanges]] = {j: [] for j in range(6)}
    dropped: list[int] = []
    for step in range(30):
        for action in actions:
            if isinstance(action, AskRanges):
                asked[action.column].append(action)
            elif isinstance(action, CutColumn):
                dropped.append(int(action.column))
        now_us, actions = TICK_US * (step + 1), []
        for column, asks in asked.items():
            if asks and (column != SLOW or step % 16 == 15):
                ask = asks.pop(0)
                actions += machine.handle(RangesStored(now_us, ask.request, ask.runs))
                actions += machine.handle(AskAnswered(now_us, ask.request))
        machine.note_own_time(own_us)
        actions += machine.handle(Ticked(now_us))
        machine.check()
    return dropped


def test_a_reader_that_was_starved_itself_gives_up_no_healthy_column() -> None:
    assert given_up(own_us=TICK_US * 9 // 10) == []


def test_a_reader_that_waited_gives_up_the_column_that_let_it_wait() -> None:
    assert given_up(own_us=0) == [SLOW]


def test_a_column_that_brings_nothing_but_marks_of_damage_is_not_silent() -> None:
    layout, page = Layout(Code(2, 1), 2 * 16 * 4096, 16 * 4096), 4096
    spans, limits = np.array([[0, layout.payload_bytes]]), ReadLimits(hedge_us=10 * TICK_US)
    wish = ReadWish(PAYLOAD, layout, spans, (Standing.REACHABLE,) * 3, limits)
    machine = PayloadReader(wish, count(1), 0)
    damaged, healthy = (each for each in machine.begin() if isinstance(each, AskRanges))
    cut: list[CutColumn] = []
    for turn in range(12 * 8):
        now_us, actions = turn * TICK_US, machine.handle(Ticked(turn * TICK_US))
        if turn % 8 == 7:
            at = turn // 8 * page
            actions += machine.handle(RangeErased(now_us, damaged.request, at, at + page, "rot"))
            stored = RangesStored(now_us, healthy.request, ((at, at + page),))
            actions += machine.handle(stored)
        for ask in actions:
            if isinstance(ask, AskRanges):
                actions += machine.handle(RangesStored(now_us, ask.request, ask.runs))
                actions += machine.handle(AskAnswered(now_us, ask.request))
        machine.check()
        cut += [each for each in actions if isinstance(each, CutColumn)]
    assert cut == []
    assert machine.statistics().damaged_bytes == 12 * page
