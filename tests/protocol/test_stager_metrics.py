"""What a trainer says of a step goes out with its payload, and again to another coordinator."""

from __future__ import annotations

from ckpt.format.messages.launches import JoinLaunch, LaunchJoined
from ckpt.format.messages.saving import OpenPayload, ReplicaPolicy
from ckpt.protocol.events import SessionClosed
from ckpt.protocol.stager import events as e
from tests.protocol.test_stager import LAUNCH, S1, S2, joined, planned, request_in, sent

METRICS = {"loss": 0.5}


def said(actions: list[e.StagerAction]) -> list[tuple[bool, dict[str, float]]]:
    """Of each question for a place: whether it resumes, and its metrics."""
    asked = [message for message in sent(actions) if isinstance(message, OpenPayload)]
    return [(message.resume is not None, message.metrics) for message in asked]


def test_what_is_said_of_a_step_is_said_again_to_a_coordinator_that_comes_later() -> None:
    rig = joined()
    actions = rig.do(
        e.PayloadHandedOver(0, 1, 100, 90, 10, ReplicaPolicy.ABORT, 5, metrics=METRICS)
    )
    assert said(actions) == [(False, METRICS)]
    rig.receive(planned(10), request_in(actions, OpenPayload))
    rig.do(SessionClosed(0, S1))
    actions = rig.open_session(S2)
    again = rig.receive(LaunchJoined(LAUNCH), request_in(actions, JoinLaunch), S2)
    assert said(again) == [(True, METRICS)]
