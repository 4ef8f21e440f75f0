"""A trainer that ended, and one that only closed its store: what their stager says of them."""

from __future__ import annotations

from ckpt.base.ids import Rank, Step
from ckpt.format.messages.launches import Departure, JoinLaunch, LaunchJoined, TrainerLeft
from ckpt.format.messages.saving import AttemptCommitted, OpenPayload
from ckpt.protocol.events import Send, Session, SessionClosed
from ckpt.protocol.stager import events as e
from ckpt.protocol.stager.records import RETRY_US
from tests.protocol.test_stager import (
    LAUNCH,
    RUN,
    S1,
    S2,
    Rig,
    certified,
    info_of,
    joined,
    planned,
    request_in,
)


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


def asked_to_end_with_a_save() -> Rig:
    """Its trainer is gone, what it handed over is on its way."""
    rig = certified()
    rig.do(e.EndAsked(0))
    rig.do(e.TrainerDetached(0))
    rig.do(e.TrainerEnded(0))
    return rig


def ends(actions: list[e.StagerAction]) -> list[e.Exit]:
    return [action for action in actions if isinstance(action, e.Exit)]


def test_a_stager_that_is_asked_to_end_gives_up_soon_where_no_coordinator_is() -> None:
    rig = asked_to_end_with_a_save()
    rig.do(SessionClosed(0, S1))
    rig.do(e.DialFailed(0))
    limit_us = rig.machine.config.asked_alone_us
    assert ends(rig.tick(limit_us - 1)) == []
    lost = ((RUN, Step(10)),)
    assert ends(rig.tick(1)) == [e.Exit("asked to end, and no coordinator is there", lost)]


def test_a_coordinator_that_comes_back_in_time_commits_what_was_asked_to_end() -> None:
    rig = asked_to_end_with_a_save()
    limit_us = rig.machine.config.asked_alone_us
    for session in (S1, S2):
        rig.do(SessionClosed(rig.now_us, session))
        rig.do(e.DialFailed(rig.now_us))
        assert ends(rig.tick(limit_us - 1)) == []
        rig.open_session(Session(session + 1))
    assert ends(rig.tick(limit_us)) == []
    info = AttemptCommitted(info_of(10))
    rig.receive(info, session=Session(3))
    assert ends(rig.stopped(10)) == [e.Exit("idle, and the trainer is gone")]


def test_a_save_that_does_not_commit_keeps_a_stager_that_is_asked_to_end_no_longer() -> None:
    rig = asked_to_end_with_a_save()
    limit_us = rig.machine.config.asked_us
    assert ends(rig.tick(limit_us - 1)) == []
    lost = ((RUN, Step(10)),)
    assert ends(rig.tick(1)) == [e.Exit("asked to end, and its saves take too long", lost)]


def test_a_trainer_that_stays_keeps_its_stager_whoever_asks_it_to_end() -> None:
    rig = certified()
    rig.do(e.EndAsked(0))
    rig.do(SessionClosed(0, S1))
    rig.do(e.DialFailed(0))
    assert ends(rig.tick(2 * rig.machine.config.asked_us)) == []


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
