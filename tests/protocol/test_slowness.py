"""How long a target that saves found slow is a last choice."""

from __future__ import annotations

from ckpt.protocol.coordinator.cluster.slowness import (
    SLOW_FACTOR,
    SLOW_LAST_US,
    SLOW_US,
    Slowness,
)


def test_nobody_is_slow_before_a_save_says_so() -> None:
    assert not Slowness().holds(0)


def test_once_noted_it_is_a_last_choice_for_a_while() -> None:
    slowness = Slowness()
    slowness.noted(7)
    assert slowness.holds(7 + SLOW_US - 1)
    assert not slowness.holds(7 + SLOW_US)


def test_it_is_doubted_for_as_long_as_it_would_be_a_last_choice_for_longer() -> None:
    slowness = Slowness()
    assert not slowness.is_doubted(0)
    slowness.noted(7)
    until_us = 7 + SLOW_US + SLOW_LAST_US
    assert slowness.is_doubted(until_us - 1)
    assert not slowness.is_doubted(until_us)


def test_all_ranks_of_a_burst_note_it_once() -> None:
    slowness = Slowness()
    for now_us in (0, 5, 9):
        slowness.noted(now_us)
    assert slowness.until_us == 9 + SLOW_US


def test_one_that_is_slow_whenever_it_is_tried_is_tried_ever_more_rarely() -> None:
    slowness, now_us, pauses = Slowness(), 0, []
    for _ in range(6):
        slowness.noted(now_us)
        pauses.append(slowness.until_us - now_us)
        now_us = slowness.until_us + SLOW_LAST_US // 2
    grown = [SLOW_US * SLOW_FACTOR**n for n in range(6)]
    assert pauses == [min(pause, SLOW_LAST_US) for pause in grown]


def test_one_that_was_well_for_long_begins_with_the_first_pause_again() -> None:
    slowness = Slowness()
    slowness.noted(0)
    slowness.noted(SLOW_US)
    assert slowness.until_us == SLOW_US + SLOW_FACTOR * SLOW_US
    now_us = slowness.until_us + SLOW_LAST_US
    slowness.noted(now_us)
    assert slowness.until_us == now_us + SLOW_US
