"""The coordinator's part: whom it tells to hold, and where all stop."""

from __future__ import annotations

import tracemalloc

import pytest

from ckpt.base.ids import LaunchNumber, Rank, Step
from ckpt.base.limits import WORLD_SIZE_MAX
from ckpt.base.units import MiB
from ckpt.format.messages.launches import JoinLaunch, LaunchJoined
from ckpt.format.messages.preempting import (
    GuardsAwaited,
    GuardStanding,
    HoldSteps,
    NoCommonStep,
    StopAt,
)
from ckpt.protocol.coordinator.cluster.guards import LaunchGuards
from ckpt.protocol.events import Send, Session, SessionClosed
from tests.protocol.coordinating import RUN, Bench

PUSHED = (HoldSteps, StopAt, NoCommonStep, GuardsAwaited)
RANKS = 3


class Guards:
    """All ranks of a launch; each has joined over a session of its own, as its trainer does."""

    def __init__(self, bench: Bench, key: str | None = "job", ranks: int = RANKS) -> None:
        self.bench = bench
        self.key = key
        self.world_size = ranks
        self.launch: LaunchNumber
        self.sessions = [self.join(rank) for rank in range(ranks)]
        self.told()

    def join(self, rank: int, launch: LaunchNumber | None = None) -> Session:
        session = self.bench.session()
        message = JoinLaunch(RUN, self.key, Rank(rank), self.world_size, f"host/{rank}/x", launch)
        self.bench.tell(session, message)
        joined = self.bench.log[-1]
        assert isinstance(joined, Send)
        assert isinstance(joined.message, LaunchJoined)
        assert joined.message.guards
        self.launch = joined.message.launch
        return session

    def say(self, rank: int, **fields: object) -> list[tuple[int, object]]:
        """What follows: (rank, message)."""
        standing = GuardStanding(RUN, self.launch, Rank(rank), **fields)  # type: ignore[arg-type]
        self.told()
        self.bench.tell(self.sessions[rank], standing)
        return self.told()

    def told(self) -> list[tuple[int, object]]:
        """Since the last call."""
        found = [
            (self.sessions.index(one.session), one.message)
            for one in self.bench.log
            if isinstance(one, Send) and isinstance(one.message, PUSHED)
        ]
        self.bench.log.clear()
        return found


def hold(by: int, signal: str = "SIGTERM") -> HoldSteps:
    return HoldSteps(RUN, Rank(by), signal)


def all_hold(guards: Guards, *reached: int | None) -> list[tuple[int, object]]:
    """Every rank has let that step pass, rank 0 is preempted; what the last one's word brings."""
    for rank in range(len(reached)):
        assert guards.say(rank) == []
    everybody = [(rank, hold(0)) for rank in range(len(reached))]
    assert guards.say(0, signal="SIGTERM") == everybody
    told: list[tuple[int, object]] = []
    for rank, step in enumerate(reached):
        assert told == [], "nobody is told where to stop before all hold"
        told = guards.say(rank, signal="SIGTERM" * (rank == 0), reached=step, holds=True)
    return told


@pytest.mark.parametrize(
    ("reached", "stop"), [((4, 9, 7), 10), ((4, 4, 4), 5), ((None, 3, None), 4), ((None,) * 3, 0)]
)
def test_all_stop_one_above_the_highest_step_that_passed(
    reached: tuple[int | None, ...], stop: int
) -> None:
    guards = Guards(Bench())
    told = all_hold(guards, *reached)
    assert told == [(rank, StopAt(RUN, Step(stop))) for rank in range(RANKS)]


def test_a_rank_that_has_no_guard_yet_is_awaited_and_nobody_holds() -> None:
    guards = Guards(Bench())
    guards.say(0)
    assert guards.say(0, signal="SIGTERM") == [(0, GuardsAwaited(RUN, (Rank(1), Rank(2)), 2))]
    assert guards.say(2) == []
    assert guards.say(1) == [(rank, hold(0)) for rank in range(RANKS)]


def test_two_ranks_that_are_preempted_are_one_preemption() -> None:
    guards = Guards(Bench())
    assert all_hold(guards, 1, 1, 1)
    assert guards.say(1, signal="SIGUSR1", reached=1, stop=2) == []


def test_a_rank_that_comes_back_is_told_again_where_to_stop() -> None:
    bench = Bench()
    guards = Guards(bench)
    all_hold(guards, 4, 5, 4)
    bench.feed(SessionClosed(bench.now_us, guards.sessions[1]))
    guards.sessions[1] = guards.join(1)
    assert guards.say(1, reached=5, holds=True) == [(1, StopAt(RUN, Step(6)))]


def test_a_rank_that_went_before_it_held_is_waited_for() -> None:
    bench = Bench()
    guards = Guards(bench)
    for rank in range(RANKS):
        guards.say(rank)
    guards.say(0, signal="SIGTERM")
    guards.say(0, signal="SIGTERM", reached=3, holds=True)
    guards.say(2, reached=3, holds=True)
    bench.feed(SessionClosed(bench.now_us, guards.sessions[2]))
    assert guards.say(1, reached=3, holds=True) == []
    guards.sessions[2] = guards.join(2)
    assert guards.say(2, reached=3, holds=True) == [
        (rank, StopAt(RUN, Step(4))) for rank in range(RANKS)
    ]


def test_a_rank_that_gave_up_is_named_to_all_others() -> None:
    guards = Guards(Bench())
    all_hold(guards, 4, 5, 4)
    why = "rank 1 has passed step 6, where the others stop"
    assert guards.say(1, reached=6, gave_up=why) == [
        (rank, NoCommonStep(RUN, why)) for rank in (0, 2)
    ]


def test_ranks_that_save_different_steps_are_named_to_all() -> None:
    guards = Guards(Bench())
    all_hold(guards, 4, 5, 4)
    assert guards.say(0, reached=4, stop=6, saves=6) == []
    told = guards.say(1, reached=5, stop=6, saves=8)
    (why,) = {message.why for _, message in told if isinstance(message, NoCommonStep)}
    assert why.startswith("rank 0 saves step 6 and rank 1 step 8")
    assert [rank for rank, _ in told] == [0, 1, 2]


@pytest.mark.parametrize("told", [True, False])
def test_a_restarted_coordinator_goes_on_from_what_the_guards_say(told: bool) -> None:
    """One of them was told where to stop, or none was."""
    bench = Bench()
    guards = Guards(bench)
    all_hold(guards, 4, 5, 4)
    bench.restart("t0", "t1", "t2", "t3")
    launch = guards.launch
    guards.sessions = [guards.join(rank, launch) for rank in range(RANKS)]
    assert guards.say(1, reached=5, holds=True) == []
    assert guards.say(2, reached=4, holds=True) == []
    stops = [(rank, StopAt(RUN, Step(6))) for rank in range(RANKS)]
    if told:
        first = guards.say(0, signal="SIGTERM", reached=4, stop=6)
        assert first == stops[1:]
    else:
        assert guards.say(0, signal="SIGTERM", reached=4, holds=True) == stops


def test_a_guard_that_is_closed_is_told_nothing() -> None:
    guards = Guards(Bench())
    for rank in range(RANKS):
        guards.say(rank)
    assert guards.say(2, closed=True) == []
    assert guards.say(0, signal="SIGTERM") == [(0, GuardsAwaited(RUN, (Rank(2),), 1))]


def test_who_does_not_hold_the_rank_is_not_heard() -> None:
    bench = Bench()
    guards = Guards(bench)
    for rank in range(RANKS):
        guards.say(rank)
    stranger = bench.session()
    standing = GuardStanding(RUN, guards.launch, Rank(0), "SIGTERM")
    bench.tell(stranger, standing)
    assert guards.told() == []
    bench.tell(guards.sessions[1], standing)
    assert guards.told() == []


def test_another_launch_of_the_run_is_not_concerned() -> None:
    bench = Bench()
    guards, others = Guards(bench), Guards(bench, "other")
    for rank in range(RANKS):
        guards.say(rank)
        others.say(rank)
    assert len(guards.say(0, signal="SIGTERM")) == RANKS
    assert others.told() == []


def test_ranks_that_never_come_take_no_memory() -> None:
    """A launch says itself how many it has: of a million each guard's first word took 70 MiB."""
    guards = LaunchGuards(WORLD_SIZE_MAX)
    tracemalloc.start()
    try:
        for rank in (0, 1, 70):
            standing = GuardStanding(RUN, LaunchNumber(1), Rank(rank), "SIGTERM")
            ((_, told),) = guards.heard(Session(rank), standing)
        taken_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken_bytes < MiB
    assert told == GuardsAwaited(RUN, tuple(map(Rank, range(2, 10))), WORLD_SIZE_MAX - 3)


def test_who_has_gone_is_named_after_who_never_came() -> None:
    guards = LaunchGuards(4)
    for rank in (0, 1, 3):
        guards.heard(Session(rank), GuardStanding(RUN, LaunchNumber(1), Rank(rank)))
    guards.gone(Session(1), Rank(1))
    asked = GuardStanding(RUN, LaunchNumber(1), Rank(0), "SIGTERM")
    assert guards.heard(Session(0), asked) == [
        (0, GuardsAwaited(RUN, (Rank(2), Rank(1)), 2)),
    ]
    guards.heard(Session(2), GuardStanding(RUN, LaunchNumber(1), Rank(2)))
    assert guards.heard(Session(0), asked) == [(0, GuardsAwaited(RUN, (Rank(1),), 1))]
