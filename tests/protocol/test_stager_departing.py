"""A trainer that ended, and one that only closed its store: what their stager says of them."""

from __future__ import annotations

from ckpt.base.ids import Rank
from ckpt.format.messages.launches import Departure, JoinLaunch, LaunchJoined, TrainerLeft
from ckpt.format.messages.saving import OpenPayload
from ckpt.protocol.events import Send, Session, SessionClosed
from ckpt.protocol.stager import events as e
from ckpt.protocol.stager.records import RETRY_US
from tests.protocol.test_stager import LAUNCH, RUN, S1, S2, joined, planned, request_in


def left(how: Departure, session: Session = S1) -> Send:
    return Send(session, 0, TrainerLeft(RUN, LAUNCH, Rank(2), "host/1/x", how))


def test_a_trainer_that_ended_is_reported_behind_what_it_handed_over() -> None:
    rig = joined()
    open_request = request_in(rig.hand_over(1), OpenPayload)
    rig.ask(2, 20)
    assert rig.do(e.TrainerDetached(0)) == [e.ReleaseHalf(1)], "what was not handed over is gone"
    assert rig.do(e.TrainerEnded(0)) == []
    actions = rig.receive(planned(10), open_request)
    assert actions[-1] == left(Departure.ENDED)
    assert rig.tick(RETRY_US) == [], "said once on a session"


def test_a_store_that_was_closed_is_told_apart_from_the_end_of_its_process() -> None:
    rig = joined()
    rig.do(e.StagingDropped(0, 1))
    assert rig.do(e.TrainerDetached(0)) == [left(Departure.CLOSED)]
    assert rig.tick(RETRY_US) == []
    assert rig.do(e.TrainerEnded(0)) == [left(Departure.ENDED)]
    assert rig.tick(RETRY_US) == []


def test_a_stager_of_a_closed_store_joins_a_new_session_to_tell_of_its_process_there() -> None:
    rig = joined()
    rig.do(e.StagingDropped(0, 1))
    rig.do(e.TrainerDetached(0))
    rig.do(SessionClosed(0, S1))
    request = request_in(rig.open_session(S2), JoinLaunch)
    assert rig.receive(LaunchJoined(LAUNCH), request, S2) == [left(Departure.CLOSED, S2)]
    rig.do(e.TrainerEnded(0))
    rig.do(SessionClosed(0, S2))
    assert rig.open_session(Session(3)) == [], "it was told, and nothing is under way"


def test_a_stager_that_is_asked_to_end_stays_for_its_trainer_and_no_longer() -> None:
    rig = joined()
    rig.do(e.StagingDropped(0, 1))
    assert rig.do(e.EndAsked(0)) == []
    assert rig.tick(rig.machine.config.idle_us) == [], "the last save is still to come"
    assert e.Exit("idle, and the trainer is gone") in rig.do(e.TrainerDetached(0))


def test_an_idle_stager_says_that_it_goes_while_its_trainer_lives() -> None:
    rig = joined()
    rig.do(e.StagingDropped(0, 1))
    rig.do(e.TrainerDetached(0))
    idle_us = rig.machine.config.idle_us
    goes = e.Exit("idle, and the trainer is gone")
    assert rig.tick(idle_us) == [left(Departure.UNWATCHED), goes]
    rig = joined()
    rig.do(e.StagingDropped(0, 1))
    rig.do(e.TrainerDetached(0))
    rig.do(e.TrainerEnded(0))
    assert rig.tick(idle_us) == [goes], "that it ended says more"
