"""Files through the stager's machine: no launch, a number that comes with the plan, and a
certificate that waits for somebody else's commit.
"""

from __future__ import annotations

from msgspec.structs import replace

from ckpt.base.ids import PayloadId, Rank, Step
from ckpt.format.members import NO_LAUNCH
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.saving import (
    AttemptCommitted,
    Certified,
    Certify,
    OpenPayload,
    PayloadGivenUp,
    ReplicaPolicy,
)
from ckpt.protocol.events import Send, SessionClosed
from ckpt.protocol.stager import events as e
from ckpt.protocol.stager.records import RETRY_US
from tests.protocol.test_stager import (
    DIGEST,
    LAUNCH,
    RUN,
    S1,
    S2,
    Rig,
    info_of,
    joined,
    payload_of,
    planned,
    proofs,
    request_in,
    sent,
)

NUMBER = Rank(7)
NAME = "10/__0_0.distcp"
PAYLOAD = PayloadId(payload_of(10).checkpoint, NUMBER)
PLAN = replace(planned(10), payload=PAYLOAD)
OPEN = OpenPayload(
    RUN, Step(10), NO_LAUNCH, Rank(0), 0, "host/1/x", 100, ReplicaPolicy.ABORT, None, 1, NAME
)


def ask(rig: Rig, save: int = 1, name: str = NAME) -> list[e.StagerAction]:
    policy = e.FullPolicy.ERROR
    return rig.do(e.HalfAsked(rig.now_us, save, RUN, Step(10), policy, name))


def opened() -> tuple[Rig, int]:
    """A session, a file that is handed over, and the number of its question."""
    rig = Rig()
    rig.do(e.TrainerAttached(0))
    rig.open_session()
    assert ask(rig) == [e.GrantHalf(1, 0)], "nobody joins a launch"
    actions = rig.hand_over(1)
    assert sent(actions) == [OPEN]
    return rig, request_in(actions, OpenPayload)


def sending() -> Rig:
    rig, request = opened()
    assert rig.receive(PLAN, request) == [e.StartPayload(1, 0, 100, NO_LAUNCH, PLAN)]
    return rig


def certifying() -> tuple[Rig, int]:
    """Sealed, with its table; the number of the certificate."""
    rig = sending()
    rig.do(e.TableReady(0, 1, b"table"))
    actions = rig.do(e.PayloadSealed(0, PAYLOAD, proofs(10), DIGEST))
    (message,) = sent(actions)
    assert isinstance(message, Certify)
    assert (message.payload, message.launch) == (PAYLOAD, NO_LAUNCH)
    return rig, request_in(actions, Certify)


def test_a_file_opens_without_a_launch_and_takes_the_number_of_its_plan() -> None:
    sending()


def test_a_certified_file_is_told_and_waits_for_the_commit() -> None:
    rig, request = certifying()
    assert rig.receive(Certified(PAYLOAD), request) == [e.TellCertified(1)]
    assert rig.do(e.PayloadStopped(0, PAYLOAD)) == [], "its bytes are free, the save goes on"
    assert rig.tick(10 * RETRY_US) == []
    info = info_of(10)
    assert rig.receive(AttemptCommitted(info)) == [
        e.TellTrainer(1, e.SaveCommitted(info)),
        e.StopPayload(PAYLOAD),
    ]
    assert rig.do(e.PayloadStopped(0, PAYLOAD)) == [e.ReleaseHalf(0)]


def test_on_a_new_session_it_is_resumed_under_its_number_and_certified_again() -> None:
    rig, request = certifying()
    rig.receive(Certified(PAYLOAD), request)
    rig.do(SessionClosed(rig.now_us, S1))
    actions = rig.open_session(S2)
    resumed = replace(OPEN, rank=NUMBER, resume=PAYLOAD.checkpoint)
    assert sent(actions) == [resumed]
    again = replace(PLAN, places=(), spares=())
    actions = rig.receive(again, request_in(actions, OpenPayload), S2)
    assert [type(message) for message in sent(actions)] == [Certify]
    certified = rig.receive(Certified(PAYLOAD), request_in(actions, Certify), S2)
    assert certified == [e.TellCertified(1)]


def test_a_refused_file_ends_alone() -> None:
    rig, request = opened()
    ask(rig, 2, "10/other")
    rig.hand_over(2)
    failed = e.SaveFailed("no_space", "full", "")
    assert rig.receive(Failed("no_space", "full"), request) == [
        e.TellTrainer(1, failed),
        e.ReleaseHalf(0),
    ]
    assert rig.machine.saves[2].pending


def test_a_discarded_file_hears_it_as_the_answer_to_its_certificate() -> None:
    rig, request = certifying()
    failed = e.SaveFailed("aborted", "was discarded", "")
    assert rig.receive(Failed("aborted", "was discarded"), request) == [
        e.TellTrainer(1, failed),
        e.StopPayload(PAYLOAD),
    ]


def test_a_file_that_is_given_up_asks_to_be_dropped_until_it_is() -> None:
    rig, request = certifying()
    rig.receive(Certified(PAYLOAD), request)
    actions = rig.do(e.PayloadFailed(0, PAYLOAD, "aborted", "removed"))
    given = PayloadGivenUp(PAYLOAD, "aborted", "removed")
    assert sent(actions) == [given]
    assert sent(rig.tick(2 * RETRY_US)) == [given]
    gone = rig.receive(Failed("aborted", "removed"), request_in(actions, PayloadGivenUp))
    assert e.StopPayload(PAYLOAD) in gone


def test_a_fenced_launch_does_not_end_the_files_of_its_run() -> None:
    rig = joined()
    ask(rig, 2)
    (opening,) = [a for a in rig.hand_over(2) if isinstance(a, Send)]
    assert opening.message == replace(OPEN, save=2)
    rig.hand_over(1)
    (question,) = [a.open.request for a in rig.machine.saves.values() if not a.member]
    rig.receive(Failed("fenced", f"launch {LAUNCH} is over"), question)
    assert rig.machine.saves[2].pending
    assert ask(rig, 3, "10/later") == [e.GrantHalf(3, 0)]
