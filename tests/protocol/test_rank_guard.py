"""One rank's guard: what it answers its training, and what it says to the coordinator."""

from __future__ import annotations

from ckpt.base.ids import LaunchNumber, Rank, RunName, Step
from ckpt.format.messages.preempting import (
    GuardsAwaited,
    GuardStanding,
    HoldSteps,
    NoCommonStep,
    StopAt,
)
from ckpt.protocol.events import Report, Ticked
from ckpt.protocol.rank_guard import (
    WORD_US,
    GuardAnswer,
    GuardHeard,
    GuardJoined,
    ProcessSignalled,
    RankGuard,
    TellStanding,
)

RUN = RunName("run")
LAUNCH = LaunchNumber(7)
HOLD_US = 10_000_000
SIGNALLED = ProcessSignalled(0, "SIGTERM")
HOLD = GuardHeard(1, HoldSteps(RUN, Rank(1), "SIGUSR1"))
GO_ON, SAVE, WAIT = GuardAnswer.GO_ON, GuardAnswer.SAVE, GuardAnswer.WAIT


def guard(world_size: int = 2, *, passed: int | None = None) -> RankGuard:
    """It has joined, and let that step pass."""
    made = RankGuard(RUN, Rank(0), world_size, HOLD_US)
    assert made.handle(GuardJoined(0, LAUNCH)) == [TellStanding(standing())]
    if passed is not None:
        assert made.ask(Step(passed)) is GO_ON
    return made


def standing(**fields: object) -> GuardStanding:
    return GuardStanding(RUN, LAUNCH, Rank(0), **fields)  # type: ignore[arg-type]


def stop_at(step: int) -> GuardHeard:
    return GuardHeard(2, StopAt(RUN, Step(step)))


def reports(actions: list[object]) -> list[tuple[str, str]]:
    return [(one.level, one.text) for one in actions if isinstance(one, Report)]


def test_while_nobody_is_preempted_every_step_passes_and_nothing_is_said() -> None:
    one = guard()
    assert [one.ask(Step(step)) for step in (3, 4, 4, 9)] == [GO_ON] * 4
    assert one.handle(Ticked(HOLD_US * 9)) == []
    assert one.reached == 9


def test_a_signal_is_said_and_steps_still_pass() -> None:
    one = guard(passed=4)
    assert one.handle(SIGNALLED) == [TellStanding(standing(signal="SIGTERM", reached=4))]
    assert one.ask(Step(5)) is GO_ON


def test_one_that_holds_says_how_far_it_is_and_lets_nothing_further_pass() -> None:
    one = guard(passed=4)
    assert one.handle(HOLD) == [TellStanding(standing(reached=4, holds=True))]
    assert [one.ask(Step(4)), one.ask(Step(5))] == [GO_ON, WAIT]
    assert one.reached == 4
    assert one.handle(stop_at(6)) == [TellStanding(standing(reached=4, stop=6))]
    assert [one.ask(Step(step)) for step in (5, 6, 6, 7)] == [GO_ON, SAVE, SAVE, SAVE]
    assert one.saves == 6
    assert one.handle(Ticked(3)) == [TellStanding(standing(reached=4, stop=6, saves=6))]
    assert one.handle(Ticked(4)) == []


def test_one_that_was_asked_about_no_step_yet_holds_the_first() -> None:
    one = guard()
    assert one.handle(HOLD) == [TellStanding(standing(holds=True))]
    assert one.ask(Step(0)) is WAIT
    one.handle(stop_at(0))
    assert one.ask(Step(0)) is SAVE


def test_a_rank_alone_asks_nobody() -> None:
    one = RankGuard(RUN, Rank(0), 1, HOLD_US)
    assert one.ask(Step(4)) is GO_ON
    assert one.handle(SIGNALLED) == []
    assert [one.ask(Step(4)), one.ask(Step(5))] == [GO_ON, SAVE]


def test_a_second_signal_changes_nothing() -> None:
    one = guard(passed=4)
    one.handle(SIGNALLED)
    assert one.handle(ProcessSignalled(5, "SIGUSR1")) == []
    one.handle(HOLD)
    one.handle(stop_at(5))
    assert one.handle(ProcessSignalled(6, "SIGTERM")) == []
    assert one.ask(Step(5)) is SAVE


def test_one_that_has_passed_the_step_says_so_and_never_saves() -> None:
    one = guard(passed=6)
    told, (level, why) = one.handle(stop_at(6)), ("error", "rank 0 has passed step 6")
    (found,) = reports(told)
    assert (found[0], why in found[1]) == (level, True)
    assert isinstance(told[-1], TellStanding)
    assert why in told[-1].standing.gave_up
    assert [one.ask(Step(step)) for step in (6, 7)] == [GO_ON, GO_ON]


def test_a_training_that_waits_too_long_goes_on_and_never_saves() -> None:
    one = guard(passed=4)
    one.handle(HOLD)
    assert one.handle(Ticked(HOLD_US * 9)) == [], "it may hold for ever while nobody waits"
    assert one.ask(Step(5)) is WAIT
    assert one.handle(Ticked(100)) == []
    assert one.handle(Ticked(100 + HOLD_US - 1)) == []
    told = one.handle(Ticked(100 + HOLD_US))
    assert "rank 0 has waited 10 s" in reports(told)[0][1]
    assert one.ask(Step(5)) is GO_ON
    assert one.handle(stop_at(6)) == [], "its word holds no more, so that of the others counts not"
    assert one.ask(Step(6)) is GO_ON


def test_one_that_hears_of_no_common_step_goes_on() -> None:
    one = guard(passed=4)
    one.handle(HOLD)
    told = one.handle(GuardHeard(3, NoCommonStep(RUN, "rank 1 has gone")))
    assert "rank 1 has gone" in reports(told)[0][1]
    assert one.ask(Step(5)) is GO_ON


def test_one_that_stops_already_hears_that_others_do_not() -> None:
    one = guard(passed=4)
    one.handle(HOLD)
    one.handle(stop_at(5))
    assert one.ask(Step(5)) is SAVE
    told = one.handle(GuardHeard(3, NoCommonStep(RUN, "rank 1 saves step 6")))
    assert reports(told) == [("error", "not all ranks end with step 5: rank 1 saves step 6")]
    assert one.ask(Step(5)) is SAVE


def test_a_word_that_does_not_travel_is_spoken_of_once() -> None:
    one = guard(passed=4)
    one.handle(SIGNALLED)
    assert one.handle(Ticked(WORD_US - 1)) == []
    ((level, text),) = reports(one.handle(Ticked(WORD_US)))
    assert (level, "the coordinator is out of reach" in text) == ("warning", True)
    assert one.handle(Ticked(WORD_US * 2)) == []


def test_ranks_without_a_guard_are_named() -> None:
    one = guard(world_size=16)
    one.handle(SIGNALLED)
    one.handle(GuardHeard(1, GuardsAwaited(RUN, (Rank(1), Rank(3)), 9)))
    ((_, text),) = reports(one.handle(Ticked(WORD_US)))
    assert "9 of them have no guard (rank 1, 3, ...)" in text


def test_all_is_said_again_in_a_new_session() -> None:
    one = guard(passed=4)
    one.handle(SIGNALLED)
    one.handle(HOLD)
    again = one.handle(GuardJoined(9, LAUNCH))
    assert again == [TellStanding(standing(signal="SIGTERM", reached=4, holds=True))]
