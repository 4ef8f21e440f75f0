"""StagerMachine by table: whole action lists."""

from __future__ import annotations

import pytest

from ckpt.base.ids import (
    BootId,
    CheckpointId,
    ColumnId,
    ColumnNumber,
    Generation,
    LaunchNumber,
    PayloadId,
    Rank,
    RunName,
    Step,
    TargetId,
)
from ckpt.format.messages import Message
from ckpt.format.messages.hello import Failed, Role
from ckpt.format.messages.launches import JoinLaunch, LaunchJoined
from ckpt.format.messages.saving import (
    AttemptAborted,
    AttemptCommitted,
    BoxesCompared,
    BoxQuery,
    Certified,
    Certify,
    ColumnsLost,
    CommitInfo,
    CompareBoxes,
    OpenPayload,
    PayloadGivenUp,
    PayloadPlanned,
    ReplicaPolicy,
    RequestSpares,
    SparesNamed,
)
from ckpt.format.messages.writing import ColumnProof
from ckpt.protocol.events import Received, Send, Session, SessionClosed, SessionOpened, Ticked
from ckpt.protocol.stager import events as e
from ckpt.protocol.stager.machine import SaverIdentity, StagerConfig, StagerMachine
from ckpt.protocol.stager.records import RETRY_US
from tests.protocol.writerkit import DIGEST, place

RUN = RunName("run")
LAUNCH = LaunchNumber(1 << 32 | 1)
WHO = SaverIdentity("key", Rank(2), 4, "host/1/x")
JOIN = JoinLaunch(RUN, "key", Rank(2), 4, "host/1/x", None)
S1, S2 = Session(1), Session(2)


def payload_of(step: int, generation: int = 1) -> PayloadId:
    return PayloadId(CheckpointId(RUN, Step(step), Generation(1, generation)), Rank(2))


def planned(step: int, generation: int = 1) -> PayloadPlanned:
    return PayloadPlanned(
        payload_of(step, generation), "2+1", 4096, tuple(place(j) for j in range(3)), (place(10),)
    )


def proofs(step: int, columns: int = 3) -> tuple[ColumnProof, ...]:
    return tuple(
        ColumnProof(
            ColumnId(payload_of(step), ColumnNumber(j)), TargetId(f"t{j}"), BootId(1), "2+1", 100, j, DIGEST, b""
        )
        for j in range(columns)
    )  # fmt: skip


def info_of(step: int) -> CommitInfo:
    return CommitInfo(
        payload_of(step).checkpoint, LAUNCH, 4, "2+1", 400, 1, 1, "host", 0.0, 1, 1, Rank(0), TargetId("t0")
    )  # fmt: skip


class Rig:
    """A machine, the clock and shorthands. Every step is checked."""

    def __init__(self, config: StagerConfig | None = None) -> None:
        self.machine = StagerMachine(WHO, config)
        self.now_us = 0

    def do(self, event: e.StagerEvent) -> list[e.StagerAction]:
        actions = self.machine.handle(event)
        self.machine.check()
        return actions

    def receive(
        self, message: Message, request: int = 0, session: Session = S1
    ) -> list[e.StagerAction]:
        return self.do(Received(self.now_us, session, request, message))

    def open_session(self, session: Session = S1) -> list[e.StagerAction]:
        return self.do(SessionOpened(self.now_us, session, Role.COORDINATOR, ""))

    def tick(self, passed_us: int = 0) -> list[e.StagerAction]:
        self.now_us += passed_us
        return self.do(Ticked(self.now_us))

    def ask(
        self, save: int, step: int, full: e.FullPolicy = e.FullPolicy.WAIT
    ) -> list[e.StagerAction]:
        return self.do(e.HalfAsked(self.now_us, save, RUN, Step(step), full))

    def hand_over(self, save: int, comparing: bool = False) -> list[e.StagerAction]:
        abort = ReplicaPolicy.ABORT
        return self.do(e.PayloadHandedOver(self.now_us, save, 100, 90, 10, abort, 5, 6, comparing))

    def sealed(self, step: int, columns: int = 3) -> list[e.StagerAction]:
        return self.do(
            e.PayloadSealed(self.now_us, payload_of(step), proofs(step, columns), DIGEST)
        )

    def stopped(self, step: int) -> list[e.StagerAction]:
        return self.do(e.PayloadStopped(self.now_us, payload_of(step)))


def request_in(actions: list[e.StagerAction], kind: type) -> int:
    """The request number of the one message of a type."""
    (found,) = [a.request for a in actions if isinstance(a, Send) and isinstance(a.message, kind)]
    return found


def sent(actions: list[e.StagerAction]) -> list[Message]:
    return [action.message for action in actions if isinstance(action, Send)]


def joined(answer: LaunchJoined = LaunchJoined(LAUNCH)) -> Rig:  # noqa: B008, frozen
    """Trainer attached, session up, launch joined, save 1 (step 10) staging in half 0."""
    rig = Rig()
    assert rig.do(e.TrainerAttached(0)) == [e.DialCoordinator()]
    assert rig.open_session() == []
    actions = rig.ask(1, 10)
    request = request_in(actions, JoinLaunch)
    assert actions == [e.GrantHalf(1, 0), Send(S1, request, JOIN)]
    assert rig.receive(answer, request) == []
    return rig


def opened(step: int, save: int, resume: CheckpointId | None = None) -> OpenPayload:
    return OpenPayload(
        RUN, Step(step), LAUNCH, Rank(2), 4, "host/1/x", 100, ReplicaPolicy.ABORT, resume, save
    )


def sending() -> Rig:
    """`joined`, and save 1 is planned and under way."""
    rig = joined()
    actions = rig.hand_over(1)
    assert sent(actions) == [opened(10, 1)]
    request = request_in(actions, OpenPayload)
    assert rig.receive(planned(10), request) == [e.StartPayload(1, 0, 100, LAUNCH, planned(10))]
    return rig


def certify(columns: int = 3, offset: int = 0, table_bytes: int = 5) -> Certify:
    return Certify(
        payload_of(10), LAUNCH, 4, proofs(10, columns), "2+1", 100, 4096, DIGEST, 90, 10, 5, 6, table_bytes, offset
    )  # fmt: skip


def certified() -> Rig:
    """`sending`, and the coordinator has noted the certificate."""
    rig = sending()
    assert rig.do(e.TableReady(0, 1, b"table")) == []
    actions = rig.sealed(10)
    request = request_in(actions, Certify)
    assert actions == [Send(S1, request, certify(), b"table")]
    assert rig.receive(Certified(payload_of(10)), request) == []
    return rig


def test_a_payload_is_opened_only_when_it_is_handed_over() -> None:
    rig = joined()
    assert rig.tick(10 * RETRY_US) == []
    assert sent(rig.hand_over(1)) == [opened(10, 1)]


def test_a_committed_save_gives_its_half_back_after_the_sender_stopped() -> None:
    rig = certified()
    assert rig.receive(AttemptCommitted(info_of(10))) == [
        e.TellTrainer(1, e.SaveCommitted(info_of(10))),
        e.StopPayload(payload_of(10)),
    ]
    assert rig.machine.halves == [1, None], "somebody may still read it"
    assert rig.stopped(10) == [e.ReleaseHalf(0)]
    assert rig.machine.halves == [None, None]
    assert rig.machine.saves[1].outcome == e.SaveCommitted(info_of(10))
    assert rig.do(e.OutcomeHeard(0, 1)) == []
    assert rig.machine.idle


def test_an_aborted_save_tells_why_and_gives_its_half_back() -> None:
    rig = certified()
    message = AttemptAborted(payload_of(10).checkpoint, "aborted", "rank 3 left", "save again")
    assert rig.receive(message) == [
        e.TellTrainer(1, e.SaveFailed("aborted", "rank 3 left", "save again")),
        e.StopPayload(payload_of(10)),
    ]
    assert rig.receive(message) == [], "a repeated announcement changes nothing"
    assert rig.stopped(10) == [e.ReleaseHalf(0)]


def test_a_third_save_waits_for_a_half() -> None:
    rig = certified()
    assert rig.ask(2, 20) == [e.GrantHalf(2, 1)]
    assert rig.ask(3, 30) == []
    rig.receive(AttemptCommitted(info_of(10)))
    assert rig.stopped(10) == [e.ReleaseHalf(0), e.GrantHalf(3, 0)]


def test_a_save_gets_the_half_that_its_trainer_writes_into_unless_it_is_held() -> None:
    rig = Rig()
    first = e.HalfAsked(0, 1, RUN, Step(10), taken=1)
    second = e.HalfAsked(0, 2, RUN, Step(20), taken=1)
    assert [a for a in rig.do(first) if isinstance(a, e.GrantHalf)] == [e.GrantHalf(1, 1)]
    assert rig.do(second) == [e.GrantHalf(2, 0)]


@pytest.mark.parametrize(
    ("policy", "code"), [(e.FullPolicy.ERROR, "busy"), (e.FullPolicy.SKIP, "skipped")]
)
def test_a_full_arena_refuses_by_policy(policy: e.FullPolicy, code: str) -> None:
    rig = certified()
    rig.ask(2, 20)
    (refused,) = rig.ask(3, 30, policy)
    assert isinstance(refused, e.RefuseSave)
    assert (refused.save, refused.code) == (3, code)


def test_staging_that_is_dropped_frees_its_half() -> None:
    rig = joined()
    assert rig.do(e.StagingDropped(0, 1)) == [e.ReleaseHalf(0)]


def test_a_repeated_wish_gets_the_same_half() -> None:
    rig = joined()
    assert rig.ask(1, 10) == [e.GrantHalf(1, 0)]


def test_a_request_without_an_answer_is_repeated_with_its_number() -> None:
    rig = joined()
    request = request_in(rig.hand_over(1), OpenPayload)
    assert rig.tick(RETRY_US - 1) == []
    assert rig.tick(1) == [Send(S1, request, opened(10, 1))]


def test_a_retry_after_is_kept() -> None:
    rig = joined()
    request = request_in(rig.hand_over(1), OpenPayload)
    assert rig.receive(Failed("no_space", "full", "", 3 * RETRY_US), request) == []
    assert rig.tick(3 * RETRY_US - 1) == []
    assert rig.tick(1) == [Send(S1, request, opened(10, 1))]


def test_a_launch_that_cannot_be_joined_now_is_asked_for_again_when_it_is_told_to() -> None:
    rig = Rig()
    rig.do(e.TrainerAttached(0))
    rig.open_session()
    request = request_in(rig.ask(1, 10), JoinLaunch)
    assert rig.receive(Failed("unavailable", "not yet", "", 3 * RETRY_US), request) == []
    assert rig.tick(3 * RETRY_US - 1) == []
    assert request_in(rig.tick(1), JoinLaunch) == request
    assert rig.receive(Failed("unavailable", "not yet"), request) == []
    assert request_in(rig.tick(RETRY_US), JoinLaunch) == request


def test_a_refusal_without_retry_after_ends_the_save() -> None:
    rig = joined()
    request = request_in(rig.hand_over(1), OpenPayload)
    assert rig.receive(Failed("unavailable", "2 live, 3 needed"), request) == [
        e.TellTrainer(1, e.SaveFailed("unavailable", "2 live, 3 needed")),
        e.ReleaseHalf(0),
    ]


def test_a_refused_join_ends_what_is_staged_later() -> None:
    rig = Rig()
    rig.do(e.TrainerAttached(0))
    rig.open_session()
    request = request_in(rig.ask(1, 10), JoinLaunch)
    rig.receive(Failed("busy", "rank 2 is held by another process"), request)
    failed = e.SaveFailed("busy", "rank 2 is held by another process")
    assert rig.hand_over(1) == [e.TellTrainer(1, failed), e.ReleaseHalf(0)]


def test_a_plan_for_another_payload_starts_nothing() -> None:
    rig = joined()
    request = request_in(rig.hand_over(1), OpenPayload)
    (report,) = rig.receive(planned(99), request)
    assert not isinstance(report, e.StartPayload)
    assert rig.machine.saves[1].plan is None


def test_a_new_generation_never_takes_over_a_payload_under_way() -> None:
    rig = certified()
    rig.do(SessionClosed(0, S1))
    rig.now_us = RETRY_US
    actions = rig.open_session(S2)
    actions = rig.receive(LaunchJoined(LAUNCH), request_in(actions, JoinLaunch), S2)
    request = request_in(actions, OpenPayload)
    rig.receive(planned(10, generation=9), request, S2)
    assert rig.machine.saves[1].payload == payload_of(10)
    assert rig.machine.saves[1].planned_on == S1


def test_nothing_is_certified_without_the_table() -> None:
    rig = sending()
    assert rig.sealed(10) == []
    assert sent(rig.do(e.TableReady(0, 1, b"table"))) == [certify()]


def test_a_large_table_travels_in_ascending_parts() -> None:
    rig = sending()
    rig.machine.config = StagerConfig(table_part_bytes=2)
    rig.do(e.TableReady(0, 1, b"table"))
    actions = rig.sealed(10)
    parts = [(a.message, bytes(a.bulk)) for a in actions if isinstance(a, Send)]
    assert parts == [
        (certify(offset=0), b"ta"), (certify(offset=2), b"bl"), (certify(offset=4), b"e")
    ]  # fmt: skip


def test_an_answer_to_an_older_certificate_does_not_end_the_newer_one() -> None:
    rig = sending()
    rig.do(e.TableReady(0, 1, b"table"))
    old = request_in(rig.sealed(10, columns=2), Certify)
    new = request_in(rig.sealed(10), Certify)
    rig.receive(Certified(payload_of(10)), old)
    assert rig.tick(RETRY_US) == [Send(S1, new, certify(), b"table")]


def test_a_new_session_joins_resumes_and_certifies_again() -> None:
    rig = certified()
    assert rig.do(SessionClosed(0, S1)) == []
    assert rig.tick(RETRY_US) == [e.DialCoordinator()]
    actions = rig.open_session(S2)
    again = JoinLaunch(RUN, "key", Rank(2), 4, "host/1/x", LAUNCH, RETRY_US, Step(10), RETRY_US)
    assert sent(actions) == [again], "with what a restarted coordinator does not know"
    actions = rig.receive(LaunchJoined(LAUNCH), request_in(actions, JoinLaunch), S2)
    assert sent(actions) == [opened(10, 1, payload_of(10).checkpoint)]
    actions = rig.receive(planned(10), request_in(actions, OpenPayload), S2)
    assert actions[0] == e.AddSpares(payload_of(10), None, (place(10),))
    assert sent(actions) == [certify()]


def test_messages_of_a_closed_session_change_nothing() -> None:
    rig = certified()
    rig.do(SessionClosed(0, S1))
    assert rig.receive(AttemptCommitted(info_of(10)), 0, S1) == []


def test_columns_lost_go_to_the_sender_and_wait_for_new_proofs() -> None:
    rig = certified()
    lost = (ColumnNumber(1),)
    actions = rig.receive(ColumnsLost(payload_of(10), lost, (place(20),)))
    assert actions == [e.ReopenColumns(payload_of(10), lost, (place(20),))]
    assert rig.tick(10 * RETRY_US) == []
    assert sent(rig.sealed(10)) == [certify()]


def test_spares_are_asked_one_column_after_the_other() -> None:
    rig = sending()
    wanted = [
        e.SparesWanted(0, payload_of(10), ColumnNumber(j), (TargetId(f"t{j}"),)) for j in (0, 2)
    ]
    first = rig.do(wanted[0])
    assert rig.do(wanted[1]) == []
    actions = rig.receive(
        SparesNamed(payload_of(10), (place(20),)), request_in(first, RequestSpares)
    )
    assert actions[0] == e.AddSpares(payload_of(10), ColumnNumber(0), (place(20),))
    assert sent(actions) == [RequestSpares(payload_of(10), ColumnNumber(2), (TargetId("t2"),))]


def test_boxes_are_compared_for_the_session_that_asked() -> None:
    rig = certified()
    boxes = (BoxQuery("w", (0,), (4,)),)
    assert rig.receive(CompareBoxes(payload_of(10), boxes), 77) == [
        e.ComputeBoxes(payload_of(10), 0, boxes)
    ]
    answer = e.BoxesFingerprinted(0, payload_of(10), (DIGEST,))
    assert rig.do(answer) == [Send(S1, 77, BoxesCompared(payload_of(10), (DIGEST,)))]
    assert rig.do(answer) == []


def test_a_payload_that_cannot_be_sealed_is_told_at_once_and_its_half_waits_for_the_abort() -> None:
    rig = sending()
    actions = rig.do(e.PayloadFailed(0, payload_of(10), "unavailable", "2 live, 3 needed"))
    assert actions[0] == e.TellTrainer(1, e.SaveFailed("unavailable", "2 live, 3 needed"))
    assert sent(actions) == [PayloadGivenUp(payload_of(10), "unavailable", "2 live, 3 needed")]
    assert rig.machine.halves[0] == 1
    aborted = AttemptAborted(payload_of(10).checkpoint, "aborted", "rank 2")
    assert rig.receive(aborted) == [e.StopPayload(payload_of(10))]
    assert rig.stopped(10) == [e.ReleaseHalf(0)]


def test_a_payload_that_was_certified_before_it_failed_waits_for_the_coordinators_word() -> None:
    rig = certified()
    actions = rig.do(e.PayloadFailed(0, payload_of(10), "unavailable", "2 live"))
    assert sent(actions) == [PayloadGivenUp(payload_of(10), "unavailable", "2 live")]
    assert rig.machine.saves[1].outcome is None


def test_a_save_finishes_without_its_trainer_and_then_the_stager_goes_when_idle() -> None:
    rig = certified()
    rig.do(e.TrainerDetached(0))
    assert rig.receive(AttemptCommitted(info_of(10))) == [e.StopPayload(payload_of(10))]
    rig.stopped(10)
    assert rig.machine.committed_half(payload_of(10).checkpoint) == 0
    idle_us = rig.machine.config.idle_us
    assert rig.tick(idle_us - 1) == []
    assert rig.tick(1)[-1] == e.Exit("idle, and the trainer is gone")


def test_a_stager_with_a_pending_save_stays_while_the_coordinator_is_away() -> None:
    rig = certified()
    rig.do(e.TrainerDetached(0))
    rig.do(SessionClosed(0, S1))
    rig.do(e.DialFailed(0))
    actions = rig.tick(2 * rig.machine.config.idle_us)
    assert actions == [e.DialCoordinator()]


def test_a_stager_whose_cluster_is_gone_goes_with_what_it_holds() -> None:
    rig = certified()
    rig.do(e.TrainerDetached(0))
    rig.do(SessionClosed(0, S1))
    rig.do(e.DialFailed(0, gone=True))
    idle_us = rig.machine.config.idle_us
    assert rig.tick(idle_us - 1) == [e.DialCoordinator()]
    rig.do(e.DialFailed(rig.now_us, gone=True))
    assert e.Exit("idle, and the trainer is gone", ((RUN, Step(10)),)) in rig.tick(1)


def test_a_stager_that_holds_nothing_that_could_commit_goes_without_its_coordinator() -> None:
    rig = sending()
    rig.do(e.PayloadFailed(0, payload_of(10), "unavailable", "2 live, 3 needed"))
    rig.do(e.TrainerDetached(0))
    rig.do(SessionClosed(0, S1))
    rig.do(e.DialFailed(0))
    assert rig.machine.hopeless
    assert not rig.machine.idle
    idle_us = rig.machine.config.idle_us
    rig.tick(0)
    assert e.Exit("idle, and the trainer is gone") in rig.tick(idle_us)


def test_outcomes_that_were_not_heard_are_told_again() -> None:
    rig = certified()
    rig.receive(AttemptCommitted(info_of(10)))
    rig.stopped(10)
    assert rig.do(e.TrainerAttached(0)) == [e.TellTrainer(1, e.SaveCommitted(info_of(10)))]
    rig.do(e.OutcomeHeard(0, 1))
    assert rig.do(e.TrainerAttached(0)) == []


def test_a_half_that_a_trainer_may_overwrite_is_not_read() -> None:
    rig = certified()
    rig.receive(AttemptCommitted(info_of(10)))
    rig.stopped(10)
    assert rig.machine.committed_half(payload_of(10).checkpoint) is None


def certifying() -> tuple[Rig, int]:
    """`sending`, and a certificate on its way; with its request number."""
    rig = sending()
    rig.do(e.TableReady(0, 1, b"table"))
    return rig, request_in(rig.sealed(10), Certify)


def test_a_certificate_refused_for_good_gives_the_payload_up_for_all_ranks() -> None:
    rig, request = certifying()
    actions = rig.receive(Failed("refused", "the proof is not its target's"), request)
    given_up = PayloadGivenUp(payload_of(10), "refused", "the proof is not its target's")
    assert sent(actions) == [given_up]
    aborted = AttemptAborted(payload_of(10).checkpoint, "aborted", "rank 2: refused")
    assert rig.receive(aborted) == [
        e.TellTrainer(1, e.SaveFailed("aborted", "rank 2: refused")),
        e.StopPayload(payload_of(10)),
    ]


def test_a_coordinator_that_lost_the_payload_from_sight_hears_of_it_again() -> None:
    rig, request = certifying()
    assert rig.receive(Failed("not_found", "no such attempt"), request) == []
    actions = rig.tick(rig.machine.config.dial_us)
    assert sent(actions) == [opened(10, 1, payload_of(10).checkpoint)]


def test_a_join_that_is_unavailable_is_asked_again() -> None:
    rig = Rig()
    rig.do(e.TrainerAttached(0))
    rig.open_session()
    request = request_in(rig.ask(1, 10), JoinLaunch)
    assert rig.receive(Failed("unavailable", "starting"), request) == []
    assert rig.tick(RETRY_US) == [Send(S1, request, JOIN)]
