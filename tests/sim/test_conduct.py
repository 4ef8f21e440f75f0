"""What a process may not say, and that the histories notice when it does."""

from __future__ import annotations

import pytest

from ckpt.format.messages import Message
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.reading import RangesDone
from ckpt.format.messages.writing import CreditGranted
from ckpt.protocol.coordinator.desk import Desk
from ckpt.protocol.events import CloseSession, Received, Send, Session, SessionClosed, Ticked
from tests.sim.conduct import FORGOTTEN_US, Conduct
from tests.sim.oracles import Violation
from tests.sim.scenario import run_seed

ONE, OTHER = Session(1), Session(2)
REFUSED = Failed("refused", "no")


def say(message: Message, session: Session = ONE, request: int = 7) -> Send:
    return Send(session, request, message, b"")


def test_who_was_told_of_a_failure_hears_no_more_until_it_asks_again() -> None:
    conduct = Conduct("t0")
    conduct.step(Ticked(1), [say(REFUSED), say(RangesDone(), OTHER), say(RangesDone(), ONE, 8)])
    conduct.step(Received(2, ONE, 7, RangesDone(), b""), [say(RangesDone())])
    conduct.step(Ticked(3), [say(REFUSED)])
    with pytest.raises(Violation, match="RangesDone to a request that it has failed"):
        conduct.step(Ticked(4), [say(RangesDone())])


@pytest.mark.parametrize("by_itself", [True, False])
def test_nothing_goes_to_a_session_that_ended_long_ago(by_itself: bool) -> None:
    conduct = Conduct("t0")
    if by_itself:
        conduct.step(Ticked(1), [CloseSession(ONE, "it lies")])
    else:
        conduct.step(SessionClosed(1, ONE), [])
    conduct.step(Ticked(1 + FORGOTTEN_US), [say(RangesDone()), say(RangesDone(), OTHER)])
    with pytest.raises(Violation, match="ended long ago"):
        conduct.step(Ticked(2 + FORGOTTEN_US), [say(RangesDone())])


def test_nothing_is_said_twice_in_one_go() -> None:
    conduct = Conduct("t0")
    conduct.step(Ticked(1), [say(CreditGranted(1)), say(CreditGranted(2))])
    for _ in range(2):
        conduct.step(Received(2, ONE, 8, RangesDone(), b""), [])
    conduct.step(Ticked(2), [say(CreditGranted(3), request=8)] * 2)
    with pytest.raises(Violation, match="twice"):
        conduct.step(Ticked(2), [say(CreditGranted(3)), say(CreditGranted(3))])


def test_the_history_finds_a_coordinator_that_says_everything_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    once = Desk.send

    def twice(
        desk: Desk, session: Session, request: int, message: Message, bulk: bytes = b""
    ) -> None:
        for _ in range(2):
            once(desk, session, request, message, bulk)

    monkeypatch.setattr(Desk, "send", twice)
    with pytest.raises(Violation, match="twice"):
        run_seed(0)
