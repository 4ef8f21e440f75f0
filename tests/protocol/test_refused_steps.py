"""A rank that refuses a step ends its peers' saves of it; the step's next save meets again."""

from __future__ import annotations

from msgspec.structs import replace

from ckpt.base.ids import RunName, Step
from ckpt.format.messages import Message
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.launches import JoinLaunch, LaunchJoined, TrainerLeft
from ckpt.format.messages.saving import AttemptAborted, OpenPayload, PayloadGivenUp
from ckpt.protocol.events import Received, Send
from ckpt.protocol.stager import events as e
from ckpt.protocol.stager.records import RETRY_US
from tests.protocol.coordinating import Bench, RankFake, every, team
from tests.protocol.test_stager import (
    LAUNCH,
    RUN,
    S2,
    WHO,
    joined,
    payload_of,
    planned,
    request_in,
    sent,
)


def refuse(rank: RankFake, step: int, why: str = "w: element [0] is nan") -> list[Message]:
    rank.saves += 1
    return rank.ask(replace(rank.question(step), payload_bytes=0, refused=why))


def commit(ranks: list[RankFake], step: int) -> list[str]:
    """All save the step; the generations that they were told."""
    every(ranks, lambda rank: rank.open(step))
    every(ranks, lambda rank: rank.seal_all())
    every(ranks, lambda rank: rank.certify())
    return [str(rank.commits()[-1].info.checkpoint.generation) for rank in ranks]


def test_peers_that_staged_before_hear_who_refused_which_step_and_why() -> None:
    bench = Bench()
    ranks = team(bench, 3)
    ranks[0].open(1)
    ranks[2].open(1)
    (told,) = refuse(ranks[1], 1)
    assert isinstance(told, AttemptAborted)
    assert "rank 1 refused step 1: w: element [0] is nan" in told.message
    for peer in (ranks[0], ranks[2]):
        assert [abort.message for abort in peer.aborts()] == [told.message]
    assert commit(ranks, 1) == ["1.2"] * 3


def test_peers_that_come_behind_the_refusal_hear_it_too() -> None:
    bench = Bench()
    ranks = team(bench, 3)
    refuse(ranks[1], 1)
    for peer in (ranks[0], ranks[2]):
        (told,) = peer.open(1)
        assert isinstance(told, AttemptAborted)
        assert "rank 1 refused step 1" in told.message
    assert commit(ranks, 1) == ["1.2"] * 3


def test_peers_whose_stagers_start_behind_the_refusal_hear_it_too() -> None:
    """A first save: what is refused at once is refused before others have joined the launch."""
    bench = Bench()
    fast = RankFake(bench, 0, 2)
    refuse(fast, 1)
    bench.tick(1)
    slow = RankFake(bench, 1, 2)
    assert isinstance(slow.open(1)[0], AttemptAborted)
    assert commit([fast, slow], 1) == ["1.2"] * 2


def test_a_rank_that_was_started_again_does_not_meet_an_old_refusal() -> None:
    bench = Bench()
    stays, dies = team(bench, 2)
    refuse(stays, 1)
    bench.close(dies.session)
    bench.tick(1)
    again = RankFake(bench, 1, 2, process=f"{dies.process}+")
    assert commit([stays, again], 1) == ["1.2"] * 2


def test_a_refusal_takes_no_space_and_is_asked_again_without_harm() -> None:
    bench = Bench()
    ranks = team(bench, 2)
    refuse(ranks[0], 1)
    assert not any(target.reservations for target in bench.targets.values())
    question = replace(ranks[0].question(1), payload_bytes=0, refused="w")
    ranks[0].reconnect()
    assert isinstance(ranks[0].ask(question)[-1], AttemptAborted)
    assert bench.states() == {"run@1#1.1": "aborted"}


def test_a_refusal_that_a_restarted_coordinator_hears_again_leaves_nobody_waiting() -> None:
    bench = Bench()
    ranks = team(bench, 2)
    ranks[1].open(1)
    refuse(ranks[0], 1)
    bench.restart(*bench.targets)
    every(ranks, lambda rank: rank.reconnect())
    ranks[0].ask(replace(ranks[0].question(1), payload_bytes=0, refused="w"))
    (told,) = ranks[1].open(1)
    assert isinstance(told, AttemptAborted)
    assert set(bench.states().values()) == {"aborted"}


# --------------------------------------------------------------------------- the stager

REFUSAL = OpenPayload(
    RUN, Step(10), LAUNCH, WHO.rank, 4, WHO.process, 0, save=1, refused="w is nan"
)
ABORTED = AttemptAborted(payload_of(10).checkpoint, "aborted", "rank 2 refused step 10")


def refused(save: int = 1, step: int = 10) -> e.StepRefused:
    return e.StepRefused(0, save, RUN, Step(step), "w is nan")


def test_a_staging_save_that_is_refused_frees_its_half_and_tells_the_coordinator() -> None:
    rig = joined()
    actions = rig.do(refused())
    assert actions[0] == e.ReleaseHalf(0)
    assert sent(actions) == [REFUSAL]
    assert rig.receive(ABORTED, request_in(actions, OpenPayload)) == []
    assert rig.machine.saves == {}, "the trainer raised it: nothing is left to tell"


def test_a_refusal_is_told_until_it_was_heard_and_before_the_trainers_end() -> None:
    rig = joined()
    rig.do(refused())
    rig.do(e.TrainerEnded(0))
    assert sent(rig.tick(RETRY_US)) == [REFUSAL]
    request = request_in(rig.open_session(S2), JoinLaunch)
    actions = rig.receive(LaunchJoined(LAUNCH), request, S2)
    assert sent(actions) == [REFUSAL]
    answer = Received(0, S2, request_in(actions, OpenPayload), ABORTED)
    (left,) = sent(rig.do(answer))
    assert isinstance(left, TrainerLeft)


def test_a_step_may_be_refused_before_any_half_was_asked_for() -> None:
    rig = joined()
    rig.do(e.StagingDropped(0, 1))
    assert sent(rig.do(refused(save=2))) == [replace(REFUSAL, save=2)]
    rig.ask(3, 10)
    assert rig.machine.saves[3].half == 0


def test_what_was_handed_over_cannot_be_refused() -> None:
    rig = joined()
    rig.hand_over(1)
    assert rig.do(refused()) == []
    assert rig.machine.saves[1].refused == ""


def test_a_refusal_that_an_older_coordinator_has_planned_is_given_up() -> None:
    rig = joined()
    request = request_in(rig.do(refused()), OpenPayload)
    (send,) = rig.receive(planned(10), request)
    assert isinstance(send, Send)
    assert isinstance(send.message, PayloadGivenUp)
    assert "refused step 10: w is nan" in send.message.message
    assert rig.receive(ABORTED) == []
    assert rig.machine.saves == {}


def test_nothing_is_refused_on_behalf_of_a_launch_that_can_save_no_more() -> None:
    rig = joined()
    request = request_in(rig.hand_over(1), OpenPayload)
    rig.receive(Failed("fenced", "a newer launch has begun"), request)
    assert rig.do(refused(save=2)) == []


def test_another_store_of_the_process_joins_the_launch_anew_with_its_first_save() -> None:
    rig = joined()
    rig.do(e.StagingDropped(0, 1))
    rig.do(e.TrainerDetached(0))
    rig.do(e.TrainerAttached(0))
    assert sent(rig.tick()) == [], "reading begins nothing"
    actions = rig.ask(2, 20)
    rejoin = JoinLaunch(RunName("run"), WHO.key, WHO.rank, 4, WHO.process, None)
    assert sent(actions) == [rejoin]
    assert rig.receive(LaunchJoined(LAUNCH), request_in(actions, JoinLaunch)) == []
    (opened,) = sent(rig.hand_over(2))
    assert isinstance(opened, OpenPayload)
