"""What a stager knows of the space that waits for its next save, and to whom it says so."""

from __future__ import annotations

import pytest

from ckpt.base.ids import LaunchNumber, Step
from ckpt.format.messages.launches import JoinLaunch, LaunchJoined
from ckpt.format.messages.saving import AttemptCommitted, ClaimSpace, OpenPayload, SpaceStands
from ckpt.protocol.events import SessionClosed
from ckpt.protocol.stager import events as e
from tests.protocol.test_stager import (
    LAUNCH,
    RUN,
    S1,
    S2,
    WHO,
    Rig,
    info_of,
    joined,
    planned,
    request_in,
    sent,
)
from tests.protocol.writerkit import place

SPACE = SpaceStands(RUN, "2+1", 100, 4096, tuple(place(j) for j in range(20, 23)), (place(23),))
NEW = LaunchJoined(LAUNCH, claims=True)


def told() -> Rig:
    """Save 1 has committed, and space stands for the next one."""
    rig = joined()
    request = request_in(rig.hand_over(1), OpenPayload)
    rig.receive(planned(10), request)
    rig.receive(AttemptCommitted(info_of(10)))
    rig.stopped(10)
    rig.receive(SPACE)
    return rig


def joins_again(rig: Rig, answer: LaunchJoined = NEW) -> list[e.StagerAction]:
    """Another coordinator answers it."""
    rig.do(SessionClosed(rig.now_us, S1))
    request = request_in(rig.open_session(S2), JoinLaunch)
    return rig.receive(answer, request, S2)


def test_it_is_said_to_who_leads_next() -> None:
    rig = told()
    rig.tick(5_000_000)
    assert sent(joins_again(rig)) == [ClaimSpace(LAUNCH, WHO.rank, SPACE, 5_000_000)]


def test_it_is_said_before_a_save_is_opened_there() -> None:
    rig = told()
    rig.ask(2, 20)
    rig.do(SessionClosed(rig.now_us, S1))
    rig.hand_over(2)
    request = request_in(rig.open_session(S2), JoinLaunch)
    said = sent(rig.receive(NEW, request, S2))
    assert [type(message) for message in said] == [ClaimSpace, OpenPayload]


def test_to_a_coordinator_of_an_earlier_version_it_is_not_said() -> None:
    assert sent(joins_again(told(), LaunchJoined(LAUNCH))) == []


def test_it_is_said_under_the_number_that_counts_there() -> None:
    other = LaunchNumber(2 << 32 | 7)
    (said,) = sent(joins_again(told(), LaunchJoined(other, claims=True)))
    assert isinstance(said, ClaimSpace)
    assert said.launch == other


@pytest.mark.parametrize("kept", ["columns", "spares"])
def test_what_a_plan_names_waits_no_more(kept: str) -> None:
    rig = told()
    rig.ask(2, 20)
    request = request_in(rig.hand_over(2), OpenPayload)
    plan = planned(20)
    if kept == "columns":
        plan = type(plan)(plan.payload, plan.code, plan.cell_bytes, SPACE.places, ())
    else:
        plan = type(plan)(plan.payload, plan.code, plan.cell_bytes, plan.places, SPACE.spares)
    rig.receive(plan, request)
    assert not [one for one in sent(joins_again(rig)) if isinstance(one, ClaimSpace)]


def test_a_plan_with_other_places_leaves_it() -> None:
    """It was made before, and came after."""
    rig = told()
    rig.ask(2, 20)
    request = request_in(rig.hand_over(2), OpenPayload)
    rig.receive(planned(20), request)
    said = [one for one in sent(joins_again(rig)) if isinstance(one, ClaimSpace)]
    assert [one.space for one in said] == [SPACE]


def test_the_newest_counts() -> None:
    rig = told()
    newer = SpaceStands(RUN, "2+1", 200, 4096, tuple(place(j) for j in range(30, 33)), ())
    rig.receive(newer)
    said = [one for one in sent(joins_again(rig)) if isinstance(one, ClaimSpace)]
    assert [one.space for one in said] == [newer]


def test_what_stands_for_an_unknown_run_is_nothing() -> None:
    rig = told()
    rig.receive(SpaceStands(type(RUN)("other"), "2+1", 1, 4096, SPACE.places, ()))
    assert set(rig.machine.runs) == {RUN}


def test_another_store_of_the_process_has_it_as_well() -> None:
    rig = told()
    rig.do(e.TrainerDetached(rig.now_us))
    rig.do(e.TrainerAttached(rig.now_us))
    request = request_in(
        rig.do(e.HalfAsked(rig.now_us, 2, RUN, Step(20), e.FullPolicy.WAIT)), JoinLaunch
    )
    (said,) = sent(rig.receive(NEW, request))
    assert isinstance(said, ClaimSpace)
