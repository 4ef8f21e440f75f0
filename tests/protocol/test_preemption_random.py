"""Ranks at any steps, words in any order, sessions and coordinators that break: never do two ranks
save different steps, and where nothing breaks all save one.
"""

from __future__ import annotations

import random
from collections import deque

import pytest

from ckpt.base.ids import LaunchNumber, Rank, RunName, Step
from ckpt.format.messages import Message
from ckpt.format.messages.preempting import GuardStanding
from ckpt.protocol.coordinator.cluster.guards import LaunchGuards
from ckpt.protocol.events import Session, Ticked
from ckpt.protocol.rank_guard import (
    GuardAnswer,
    GuardHeard,
    GuardJoined,
    ProcessSignalled,
    RankGuard,
    TellStanding,
)

SEEDS = range(80)
RUN = RunName("run")
LAUNCH = LaunchNumber(1)
TURNS = 2_000
HOLD_US = 60


class RandomRank:
    """A training with its guard and its session. It ends when it was told to save."""

    def __init__(self, number: int, world_size: int, hold_us: int) -> None:
        self.rank = Rank(number)
        self.guard = RankGuard(RUN, self.rank, world_size, hold_us)
        self.step = 0
        self.passed: list[int] = []
        self.saved: int | None = None
        self.session: Session | None = None
        self.said: deque[GuardStanding] = deque()
        self.told: deque[Message] = deque()
        """What is on its way in the session."""

    def train(self) -> None:
        """One look at the guard."""
        if self.saved is not None:
            return
        match self.guard.ask(Step(self.step)):
            case GuardAnswer.GO_ON:
                self.passed.append(self.step)
                self.step += 1
            case GuardAnswer.SAVE:
                self.saved = self.step


class RandomLaunch:
    """I draw what happens next."""

    def __init__(self, seed: int, *, breaks: bool) -> None:
        self.draw = random.Random(seed)
        self.breaks = breaks
        count = self.draw.randint(2, 5)
        hold_us = HOLD_US if breaks else TURNS * 9
        self.ranks = [RandomRank(number, count, hold_us) for number in range(count)]
        self.guards = LaunchGuards(count)
        self.now_us = 0
        self.sessions = 0

    def run(self) -> None:
        for _ in range(TURNS):
            self.now_us += 1
            self.turn()
            self.check()

    def turn(self) -> None:
        one = self.draw.choice(self.ranks)
        odds = self.draw.random()
        if self.breaks and odds < 0.004:
            self.lose(one)
        elif self.breaks and odds < 0.006:
            self.guards = LaunchGuards(len(self.ranks))
            for rank in self.ranks:
                self.lose(rank)
        elif odds < 0.01:
            self.handle(one, ProcessSignalled(self.now_us, "SIGTERM"))
        elif odds < 0.3:
            one.train()
        elif odds < 0.4:
            self.handle(one, Ticked(self.now_us))
        elif one.session is None:
            self.sessions += 1
            one.session = Session(self.sessions)
            self.handle(one, GuardJoined(self.now_us, LAUNCH))
        elif odds < 0.7 and one.said:
            self.hear(one.session, one.said.popleft())
        elif one.told:
            self.handle(one, GuardHeard(self.now_us, one.told.popleft()))

    def hear(self, session: Session, standing: GuardStanding) -> None:
        for to, message in self.guards.heard(session, standing):
            for rank in self.ranks:
                if rank.session == to:
                    rank.told.append(message)

    def handle(self, one: RandomRank, event: object) -> None:
        for action in one.guard.handle(event):  # type: ignore[arg-type]
            if isinstance(action, TellStanding) and one.session is not None:
                one.said.append(action.standing)

    def lose(self, one: RandomRank) -> None:
        """What was on its way is gone."""
        if one.session is not None:
            self.guards.gone(one.session, one.rank)
        one.session = None
        one.said.clear()
        one.told.clear()

    def check(self) -> None:
        saved = {rank.saved for rank in self.ranks} - {None}
        assert len(saved) <= 1, saved
        for rank in self.ranks:
            assert not saved & set(rank.passed) or rank.guard.gave_up, "an error that it has said"
            assert rank.saved is None or not rank.guard.gave_up


@pytest.mark.parametrize("seed", SEEDS)
def test_where_nothing_breaks_all_ranks_save_one_step(seed: int) -> None:
    launch = RandomLaunch(seed, breaks=False)
    launch.run()
    steps = {rank.saved for rank in launch.ranks}
    assert len(steps) == 1, f"seed {seed}: {steps}"
    assert steps != {None}, f"seed {seed}: somebody was preempted"
    assert not [rank.guard.gave_up for rank in launch.ranks if rank.guard.gave_up]


def test_whatever_breaks_no_two_ranks_save_different_steps_and_most_launches_save() -> None:
    whole = gave_up = 0
    for seed in SEEDS:
        launch = RandomLaunch(seed, breaks=True)
        try:
            launch.run()
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
        whole += all(rank.saved is not None for rank in launch.ranks)
        gave_up += any(rank.guard.gave_up for rank in launch.ranks)
    assert 2 * whole > len(SEEDS)
    assert gave_up, "a wait that was too long is among them"
