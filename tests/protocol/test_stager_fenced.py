"""A newer launch has begun: a stager saves no more; what it handed over before has its own end.
Another number for its own launch fences nobody.
"""

from __future__ import annotations

from msgspec.structs import replace

from ckpt.base.ids import ColumnNumber, LaunchNumber, Step
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.launches import JoinLaunch, LaunchJoined
from ckpt.format.messages.saving import AttemptCommitted, ColumnsLost, OpenPayload
from ckpt.protocol.events import Session, SessionClosed
from ckpt.protocol.stager import events as e
from ckpt.protocol.stager.records import RETRY_US
from tests.protocol.test_stager import (
    LAUNCH,
    S1,
    S2,
    certified,
    info_of,
    joined,
    opened,
    payload_of,
    request_in,
    sent,
)
from tests.protocol.writerkit import place


def test_a_fenced_launch_refuses_every_later_save() -> None:
    rig = joined()
    request = request_in(rig.hand_over(1), OpenPayload)
    rig.receive(Failed("fenced", "launch 5 has begun"), request)
    assert rig.ask(2, 20) == [e.RefuseSave(2, "fenced", "launch 5 has begun")]


def test_a_fence_leaves_earlier_saves_to_their_own_end() -> None:
    """What all ranks had handed over may still commit, or need its columns again: the simulator's
    seed 7945, whose attempt stayed open for ever.
    """
    rig = certified()
    rig.ask(2, 20)
    request = request_in(rig.hand_over(2), OpenPayload)
    rig.receive(Failed("fenced", "launch 5 has begun"), request)
    lost = ColumnsLost(payload_of(10), (ColumnNumber(2),), (place(11),))
    assert rig.receive(lost) == [e.ReopenColumns(payload_of(10), (ColumnNumber(2),), (place(11),))]
    assert rig.machine.halves == [1, None]
    rig.do(SessionClosed(rig.now_us, S1))
    rig.tick(1_000_000)
    join = request_in(rig.open_session(S2), JoinLaunch)
    resumed = rig.receive(LaunchJoined(LAUNCH), join, S2)
    assert [type(message) for message in sent(resumed)] == [OpenPayload]
    committed = rig.receive(AttemptCommitted(info_of(10)), 0, S2)
    assert e.TellTrainer(1, e.SaveCommitted(info_of(10))) in committed


def test_a_launch_that_comes_back_under_another_number_goes_on() -> None:
    """A catalog was made from the targets, and a new peer came first: what this stager saves is
    resumed, as under its old number, and what it says of itself stays true.
    """
    rig = certified()
    rig.do(SessionClosed(0, S1))
    rig.now_us = RETRY_US
    actions = rig.open_session(S2)
    number = LaunchNumber(LAUNCH + 1)
    actions = rig.receive(LaunchJoined(number), request_in(actions, JoinLaunch), S2)
    resumed = opened(10, 1, payload_of(10).checkpoint)
    assert sent(actions) == [replace(resumed, launch=number)]
    rig.do(SessionClosed(0, S2))
    rig.now_us = 2 * RETRY_US
    (again,) = sent(rig.open_session(Session(3)))
    assert isinstance(again, JoinLaunch)
    assert (again.launch, again.came_ago_us) == (number, 2 * RETRY_US)
    assert (again.saved_step, again.saved_ago_us) == (Step(10), 2 * RETRY_US)


def test_a_catalog_that_is_at_fault_ends_what_waits_and_fences_nobody() -> None:
    """It is mended by hand, in seconds, and the training goes on. Its trainers would all have had
    to be started again (a machines campaign, in which the catalog was struck as ranks joined).
    """
    rig = certified()
    rig.do(SessionClosed(0, S1))
    rig.now_us = RETRY_US
    join = request_in(rig.open_session(S2), JoinLaunch)
    failed = e.SaveFailed("corrupt", "the catalog is older than its targets", "run: it")
    told = rig.receive(Failed(failed.code, failed.message, failed.hint), join, S2)
    assert e.TellTrainer(1, failed) in told
    again = request_in(rig.tick(RETRY_US), JoinLaunch)
    rig.receive(LaunchJoined(LAUNCH), again, S2)
    rig.ask(2, 20)
    assert request_in(rig.hand_over(2), OpenPayload)
