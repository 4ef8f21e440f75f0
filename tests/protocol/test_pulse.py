"""When is one who was asked and says nothing pinged, and when is it given up?"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ckpt.protocol.pulse import GIVE_UP_US, PING_AFTER_US, Beat, Pulse

NOW_US = 1_000_000


def test_who_was_not_asked_may_be_silent() -> None:
    pulse = Pulse()
    assert pulse.due_us is None
    assert pulse.beat(NOW_US) is Beat.NOTHING


def test_who_was_asked_is_pinged_once_and_then_given_up() -> None:
    pulse = Pulse()
    pulse.asked(NOW_US)
    assert pulse.beat(NOW_US + PING_AFTER_US - 1) is Beat.NOTHING
    assert pulse.due_us == NOW_US + PING_AFTER_US
    pinged_us = NOW_US + PING_AFTER_US
    assert pulse.beat(pinged_us) is Beat.PING
    # The ping was sent as well.
    pulse.asked(pinged_us)
    assert pulse.beat(pinged_us + GIVE_UP_US - 1) is Beat.NOTHING
    assert pulse.beat(pinged_us + GIVE_UP_US) is Beat.GIVE_UP


def test_any_word_of_it_ends_the_waiting() -> None:
    pulse = Pulse()
    pulse.asked(NOW_US)
    pulse.beat(NOW_US + PING_AFTER_US)
    pulse.heard(NOW_US + PING_AFTER_US + 1)
    assert pulse.due_us is None


def test_who_expects_an_answer_asks_again_after_each_word() -> None:
    pulse = Pulse()
    pulse.expect(NOW_US, True)
    pulse.heard(NOW_US + 10)
    assert pulse.due_us == NOW_US + 10 + PING_AFTER_US
    pulse.expect(NOW_US + 20, False)
    pulse.heard(NOW_US + 30)
    assert pulse.due_us is None


@given(st.lists(st.tuples(st.sampled_from(["asked", "heard", "beat"]), st.integers(1, 900_000))))
def test_nobody_is_given_up_who_was_heard_within_the_time(steps: list[tuple[str, int]]) -> None:
    pulse, now_us, heard_us = Pulse(), NOW_US, NOW_US
    for step, passes_us in steps:
        now_us += passes_us
        match step:
            case "asked":
                pulse.asked(now_us)
            case "heard":
                pulse.heard(now_us)
                heard_us = now_us
            case _:
                if pulse.beat(now_us) is Beat.GIVE_UP:
                    assert now_us - heard_us >= PING_AFTER_US + GIVE_UP_US
