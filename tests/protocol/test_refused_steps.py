"""A rank that refuses a step ends its peers' saves of it; the step's next save meets again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from ckpt.base.ids import Generation, RunName, Step
from ckpt.format.messages import Message
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.launches import JoinLaunch, LaunchJoined, TrainerLeft
from ckpt.format.messages.saving import AttemptAborted, OpenPayload, PayloadGivenUp
from ckpt.protocol.coordinator.saving.abandoned import RETURN_US
from ckpt.protocol.events import Received, Send
from ckpt.protocol.stager import events as e
from ckpt.protocol.stager.records import RETRY_US, STEPS_COUNTED, Tries
from tests.protocol.coordinating import SECOND_US, Bench, RankFake, every, team
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


class Counting(RankFake):
    """Its stager counts what it saves, where it may."""

    def __init__(self, bench: Bench, rank: int, world_size: int = 3) -> None:
        self.counts = False
        self.tries = Counter[int]()
        super().__init__(bench, rank, world_size)

    def join(self) -> list[Message]:
        is_first, answer = not self.launch, super().join()
        if is_first and isinstance(answer[-1], LaunchJoined):
            self.counts = answer[-1].counts
        return answer

    def question(self, step: int) -> OpenPayload:
        return replace(super().question(step), nth=self.tries[step] if self.counts else 0)

    def open(self, step: int) -> list[Message]:
        self.tries[step] += 1
        return super().open(step)

    def refusal(self, step: int) -> OpenPayload:
        """Of its next save."""
        self.tries[step] += 1
        self.saves += 1
        return replace(self.question(step), payload_bytes=0, refused="w")


def counting(bench: Bench) -> list[Counting]:
    """A launch of three."""
    return [Counting(bench, rank) for rank in range(3)]


def refuse(rank: RankFake, step: int, why: str = "w: element [0] is nan") -> list[Message]:
    rank.saves += 1
    return rank.ask(replace(rank.question(step), payload_bytes=0, refused=why))


def commit(ranks: Sequence[RankFake], step: int) -> list[str]:
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


def refused_ahead_of_a_restart(*, counts: bool = True) -> tuple[Bench, list[Counting], OpenPayload]:
    """Two of three peers had staged. That the attempt is aborted was durable, and nobody heard it;
    what the first rank says once more.
    """
    bench = Bench()
    ranks = counting(bench)
    for rank in ranks:
        assert rank.counts
        rank.counts = counts
    every(ranks[1:], lambda rank: rank.open(1))
    question = ranks[0].refusal(1)
    ranks[0].ask(question)
    assert bench.states() == {"run@1#1.1": "aborted"}
    bench.restart(*bench.targets)
    every(ranks, lambda rank: rank.reconnect())
    return bench, ranks, question


def test_a_refusal_that_a_restarted_coordinator_hears_again_ends_no_later_save() -> None:
    _, ranks, question = refused_ahead_of_a_restart()
    assert isinstance(ranks[0].ask(question)[-1], AttemptAborted)
    assert commit(ranks, 1) == ["2.2"] * 3


def test_a_refusal_that_is_heard_when_the_peers_save_again_already_ends_no_later_save() -> None:
    _, ranks, question = refused_ahead_of_a_restart()
    every(ranks[1:], lambda rank: rank.open(1))
    (told,) = ranks[0].ask(question)
    assert isinstance(told, AttemptAborted)
    ranks[0].open(1)
    assert [rank.payload.checkpoint.generation for rank in ranks] == [Generation(2, 1)] * 3


def test_a_refusal_of_ranks_that_cannot_count_ends_the_step_as_before() -> None:
    """Of a rank that was started again, or by stagers of before: nobody waits for it."""
    _, ranks, question = refused_ahead_of_a_restart(counts=False)
    ranks[0].ask(question)
    for peer in ranks[1:]:
        assert isinstance(peer.open(1)[-1], AttemptAborted)
    assert commit(ranks, 1) == ["2.2"] * 3


def test_a_new_refusal_ends_what_its_peers_have_saved_as_often() -> None:
    bench, ranks, question = refused_ahead_of_a_restart()
    ranks[0].ask(question)
    every(ranks[1:], lambda rank: rank.open(1))
    ranks[0].ask(ranks[0].refusal(1))
    assert all("rank 0 refused step 1" in peer.aborts()[-1].message for peer in ranks[1:])
    assert set(bench.states().values()) == {"aborted"}
    assert commit(ranks, 1) == ["2.3"] * 3


@pytest.mark.parametrize("again", [1, 2], ids=["that save", "a later one"])
def test_a_refusal_waits_until_a_peer_of_a_recovered_attempt_says_which_save_it_is(
    again: int,
) -> None:
    """Its connection was cut when the peers heard of the abort and saved again."""
    bench = Bench()
    ranks = counting(bench)
    question = ranks[0].refusal(1)
    if again == 2:
        every(ranks[1:], lambda rank: rank.open(1))
        ranks[0].ask(question)
    every(ranks[1:], lambda rank: rank.open(1))
    opened = ranks[1].payload.checkpoint
    bench.restart(*bench.targets)
    ranks[0].reconnect()
    assert ranks[0].ask(question) == []
    assert ranks[0].ask(question) == [], "asked again"
    assert bench.states()[str(opened)] == "open"
    ranks[1].reconnect()
    ranks[1].resume(1, opened)
    assert isinstance(ranks[0].heard[-1], AttemptAborted)
    assert bench.states()[str(opened)] == ("aborted" if again == 1 else "open")
    assert isinstance(ranks[1].heard[-1], AttemptAborted) == (again == 1)


def test_a_refusal_whose_peers_never_come_back_ends_its_attempt_in_time() -> None:
    bench = Bench()
    ranks = counting(bench)
    bench.persist_at_once = False
    question = ranks[0].refusal(1)
    ranks[0].ask(question)
    bench.sync(1)  # Opened, and not aborted yet.
    bench.persist_at_once = True
    bench.restart(*bench.targets)
    ranks[0].reconnect()
    assert ranks[0].ask(question) == []
    bench.tick(RETURN_US / SECOND_US + 1)
    (told,) = ranks[0].aborts()
    assert "rank 0 refused step 1" in told.message
    ranks[1].reconnect()
    assert "rank 0 refused step 1" in ranks[1].open(1)[-1].message  # type: ignore[union-attr]


def test_who_counts_has_missed_no_attempt_of_the_launch() -> None:
    bench = Bench()
    first, leaves = Counting(bench, 0, 4), Counting(bench, 1, 4)
    assert (first.counts, leaves.counts) == (True, True)
    leaves.counts = False
    again = Counting(bench, 1, 4)
    assert not again.counts, "another stager of the process"
    first.ask(first.refusal(1))
    assert Counting(bench, 2, 4).counts, "it meets that refusal with its first save"
    first.open(2)
    leaves.leave()
    assert isinstance(first.heard[-1], AttemptAborted)
    assert not Counting(bench, 3, 4).counts
    bench.restart(*bench.targets)
    assert not Counting(bench, 2, 4).counts, "who knows what was before"


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


def nths(actions: list[e.StagerAction]) -> list[int]:
    return [said.nth for said in sent(actions) if isinstance(said, OpenPayload)]


def test_a_stager_that_counts_says_which_save_of_the_step_each_is() -> None:
    rig = joined(LaunchJoined(LAUNCH, counts=True))
    assert nths(rig.do(refused())) == [1]
    rig.ask(2, 10)
    assert nths(rig.hand_over(2)) == [2]
    rig.ask(3, 20)
    assert nths(rig.hand_over(3)) == [1]
    request = request_in(rig.open_session(S2), JoinLaunch)
    rejoined = rig.receive(LaunchJoined(LAUNCH), request, S2)
    assert nths(rejoined) == [1, 2, 1], "as before, whoever leads now"


def test_a_stager_does_not_count_where_it_may_be_wrong() -> None:
    assert nths(joined(LaunchJoined(LAUNCH)).do(refused())) == [0]
    rig = joined(LaunchJoined(LAUNCH, counts=True))
    request = request_in(rig.do(refused()), OpenPayload)
    rig.receive(Failed("no_space", "the catalog has no room"), request)
    assert nths(rig.do(refused(2))) == [0], "in which attempt the first one was nobody knows"


def test_a_stager_counts_the_newest_steps_alone() -> None:
    tries = Tries()
    for step in range(STEPS_COUNTED + 1):
        assert tries.count(Step(step)) == 1
    assert [tries.count(Step(step)) for step in (0, 1, STEPS_COUNTED)] == [0, 2, 2]


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
