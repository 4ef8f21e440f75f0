"""A payload that refers to homes is opened with what is left of it, or whole."""

from __future__ import annotations

from msgspec.structs import replace

from ckpt.base.ids import Generation, Home, RunName, Step
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.launches import JoinLaunch, LaunchJoined
from ckpt.format.messages.saving import (
    AttemptCommitted,
    Certified,
    Certify,
    HomesRefused,
    OpenPayload,
)
from ckpt.protocol.events import Report, Send, SessionClosed
from ckpt.protocol.stager import events as e
from tests.protocol.test_stager import (
    LAUNCH,
    RUN,
    S1,
    S2,
    Rig,
    certify,
    info_of,
    opened,
    payload_of,
    planned,
    request_in,
    sent,
)

HOMES = (Home(Step(1), Generation(1, 5)),)
FOUND = e.ReferencesFound(0, 1, HOMES, 40, b"small")
OPENED = replace(opened(10, 1), payload_bytes=40, homes=HOMES)
STARTED = e.StartPayload(1, 0, 40, LAUNCH, planned(10), refers=True)
WHOLE = e.StartPayload(1, 0, 100, LAUNCH, planned(10))


def comparing(references: bool = True) -> Rig:
    """Save 1 of step 10 is handed over and compared."""
    rig = Rig()
    rig.do(e.TrainerAttached(0))
    rig.open_session()
    request = request_in(rig.ask(1, 10), JoinLaunch)
    rig.receive(LaunchJoined(LAUNCH, references=references), request)
    assert rig.hand_over(1, comparing=True) == []
    return rig


def referring() -> Rig:
    """`comparing`, found to refer, planned and under way."""
    rig = comparing()
    request = request_in(rig.do(FOUND), OpenPayload)
    assert rig.receive(planned(10), request) == [STARTED]
    return rig


def test_it_is_opened_when_it_is_known_what_it_refers_to() -> None:
    rig = comparing()
    assert rig.tick(1000) == []
    assert sent(rig.do(FOUND)) == [OPENED]


def test_it_is_opened_whole_when_nothing_was_found() -> None:
    rig = comparing()
    actions = rig.do(e.ReferencesFound(0, 1))
    assert sent(actions) == [opened(10, 1)]
    assert rig.receive(planned(10), request_in(actions, OpenPayload)) == [WHOLE]
    assert rig.do(FOUND) == [], "said once"


def test_it_is_certified_with_the_table_that_refers() -> None:
    rig = referring()
    assert rig.do(e.TableReady(0, 1, b"whole table")) == []
    actions = rig.sealed(10)
    request = request_in(actions, Certify)
    message = replace(certify(), payload_bytes=40)
    assert actions == [Send(S1, request, message, b"small")]
    rig.receive(Certified(payload_of(10)), request)
    assert rig.receive(AttemptCommitted(info_of(10))) == [
        e.TellTrainer(1, e.SaveCommitted(info_of(10))),
        e.StopPayload(payload_of(10)),
    ]


def test_homes_that_are_refused_are_not_referred_to() -> None:
    rig = comparing()
    first = request_in(rig.do(FOUND), OpenPayload)
    actions = rig.receive(HomesRefused(HOMES, "it was deleted"), first)
    assert actions[0] == Report("info", "stored whole", (("what", "it was deleted"),))
    assert sent(actions) == [opened(10, 1)]
    assert rig.receive(planned(10), first) == [], "a late answer to what was asked before"
    assert rig.receive(planned(10), request_in(actions, OpenPayload)) == [WHOLE]
    rig.do(e.TableReady(0, 1, b"table"))
    assert sent(rig.sealed(10)) == [certify()]


def test_to_a_coordinator_that_knows_no_homes_it_is_opened_whole() -> None:
    rig = comparing(references=False)
    assert sent(rig.do(FOUND)) == [opened(10, 1)]


def test_a_new_session_hears_of_the_same_homes_again() -> None:
    rig = referring()
    rig.do(SessionClosed(0, S1))
    rig.tick(10_000_000)
    request = request_in(rig.open_session(S2), JoinLaunch)
    actions = rig.receive(LaunchJoined(LAUNCH), request, S2)
    assert sent(actions) == [replace(OPENED, resume=payload_of(10).checkpoint)]
    refused = HomesRefused(HOMES, "too late")
    assert rig.receive(refused, request_in(actions, OpenPayload), S2) == [], "bytes were moved"


def test_a_session_that_ends_before_the_comparison_keeps_the_save() -> None:
    rig = comparing()
    rig.do(SessionClosed(0, S1))
    rig.do(e.TrainerDetached(0))
    rig.do(e.TrainerEnded(0))
    rig.tick(10_000_000)
    request = request_in(rig.open_session(S2), JoinLaunch)
    assert rig.receive(LaunchJoined(LAUNCH, references=True), request, S2) == [], (
        "that the trainer left is not told either"
    )
    assert sent(rig.do(FOUND)) == [OPENED]


def test_what_a_save_refers_to_comes_too_late_when_its_launch_was_refused() -> None:
    rig = comparing()
    rig.do(SessionClosed(0, S1))
    rig.tick(10_000_000)
    request = request_in(rig.open_session(S2), JoinLaunch)
    actions = rig.receive(Failed("fenced", "a newer launch is here"), request, S2)
    assert e.ReleaseHalf(0) in actions
    assert rig.do(FOUND) == []


def test_a_save_that_is_compared_sooner_overtakes_none() -> None:
    """Who opens a later step has gone on without the earlier one: that one would be aborted."""
    rig = comparing()
    rig.ask(2, 20)
    assert rig.hand_over(2, comparing=True) == []
    assert rig.do(e.ReferencesFound(0, 2)) == []
    assert rig.tick(1000) == []
    assert sent(rig.do(e.ReferencesFound(0, 1))) == [opened(10, 1), opened(20, 2)]


def test_a_save_without_a_base_overtakes_none_that_has_one() -> None:
    rig = comparing()
    rig.ask(2, 20)
    assert rig.hand_over(2) == []
    assert sent(rig.do(e.ReferencesFound(0, 1))) == [opened(10, 1), opened(20, 2)]


def test_a_step_that_is_refused_overtakes_none() -> None:
    rig = comparing()
    assert rig.do(e.StepRefused(0, 2, RUN, Step(20), "a set cannot be stored")) == []
    opening = rig.do(e.ReferencesFound(0, 1))
    assert [message.step for message in sent(opening) if isinstance(message, OpenPayload)] == [
        10,
        20,
    ]


def test_a_save_waits_until_homes_of_an_earlier_one_are_taken_or_refused() -> None:
    """Refused, that one is opened once more, and is not there for the coordinator meanwhile."""
    rig = comparing()
    rig.ask(2, 20)
    first = request_in(rig.do(FOUND), OpenPayload)
    assert rig.hand_over(2) == []
    actions = rig.receive(HomesRefused(HOMES, "it was deleted"), first)
    assert sent(actions) == [opened(10, 1), opened(20, 2)]


def test_a_save_of_another_run_waits_for_none() -> None:
    rig, other = comparing(), RunName("other")
    request = request_in(rig.do(e.HalfAsked(0, 2, other, Step(20), e.FullPolicy.WAIT)), JoinLaunch)
    rig.receive(LaunchJoined(LAUNCH), request)
    assert sent(rig.hand_over(2)) == [replace(opened(20, 2), run=other)]
