"""How often a stager asks the same question."""

from __future__ import annotations

from ckpt.protocol.events import Session
from ckpt.protocol.stager.records import RETRY_US, RETRY_US_MAX, Errand


def test_a_question_rests_longer_each_time_on_one_session_and_not_on_the_next() -> None:
    errand = Errand(1)
    rests = []
    for _ in range(5):
        errand.asked(Session(1), 0)
        rests.append(errand.due_us)
    assert rests == [RETRY_US, 2 * RETRY_US, 4 * RETRY_US, RETRY_US_MAX, RETRY_US_MAX]
    assert errand.is_due(Session(2), 0)
    errand.asked(Session(2), 0)
    assert errand.due_us == RETRY_US
