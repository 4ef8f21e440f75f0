"""Histories in which every rank opens its store for each save and closes it behind the commit, as
`with ckpt.open(...)` does: nobody is told that a trainer has ended that only trains, and one that
has ended is not waited for without a bound.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from ckpt.base.ids import Rank
from ckpt.format.messages.launches import Departure
from ckpt.protocol.coordinator.saving import abandoned
from ckpt.protocol.coordinator.saving.abandoned import UNWATCHED_US
from ckpt.protocol.stager import events as se
from ckpt.protocol.stager.events import SaveCommitted, SaveFailed
from ckpt.protocol.stager.machine import SaverIdentity, StagerConfig, StagerMachine
from ckpt.protocol.stager.state import StagerState
from tests.landing import turn_of
from tests.sim import faults
from tests.sim.histories import ends_of, run_each
from tests.sim.last_checks import SETTLE_US
from tests.sim.oracles import Violation
from tests.sim.payloads import Job
from tests.sim.rank_node import RankNode
from tests.sim.world import RANK_COUNT, RUN, World

SEEDS = int(os.environ.get("CKPT_SIM_SEEDS", "400")) // 50
SEEDS_SOAK = 800
FAULTS = (faults.target_killed, faults.connections_cut, faults.half_opened)
STEPS = (10, 20, 30)
TRAINS_US = (10_000, 400_000, 20_000_000, 90_000_000)
"""Between two saves: no time, less than a stager's silence, more, and more than its idle time."""


class _OpenStore(RankNode):
    """One store of a trainer, opened for one step, with the stager that stays behind it."""

    def __init__(self, world: World, trainer: _Trainer, step: int) -> None:
        super().__init__(
            world.clock, world.network, world.oracles, world.coordinator,
            lambda id: world.targets[id], trainer.job, trainer.rank, world.seed,
            starts=trainer.job.steps.index(step),
        )  # fmt: skip
        job = trainer.job
        identity = SaverIdentity(job.key, Rank(trainer.rank), job.world_size, trainer.process)
        self.machine = StagerMachine(identity, StagerConfig())
        self._script = [step]
        self._trainer = trainer

    def _hear(self, number: int) -> None:
        super()._hear(number)
        if self.trainer_alive and self.up:
            self.trainer_alive = False
            self._handle(se.TrainerDetached(self._clock.now_us))
            self._trainer.closed(self)

    def _perform(self, action: se.StagerAction) -> None:
        if isinstance(action, se.Exit):
            self._clock.after(100_000, self.crash)  # What it said last is on its way.
        super()._perform(action)

    def trainer_ended(self) -> None:
        if self.up:
            self._handle(se.TrainerEnded(self._clock.now_us))


class _Trainer:
    """One process: it trains, opens a store, saves, waits, closes it, trains."""

    def __init__(self, world: World, job: Job, rank: int, trains_us: Callable[[], int]) -> None:
        self.job, self.rank, self.process = job, rank, f"{job.launch_name}/{rank}/process"
        self.stores: list[_OpenStore] = []
        self.outcomes: dict[int, se.Outcome] = {}
        self._world, self._trains_us = world, trains_us
        self._alive = True

    def open(self) -> None:
        if self._alive:
            store = _OpenStore(self._world, self, self.job.steps[len(self.outcomes)])
            self.stores.append(store)
            self._world.ranks.append(store)
            store.start()

    def closed(self, store: _OpenStore) -> None:
        self.outcomes.update(store.outcomes)
        if not self.finished:
            self._world.clock.after(self._trains_us(), self.open)

    def end(self, *, with_stagers: bool) -> None:
        """SIGKILL to it alone, or its host dies."""
        self._alive = False
        for store in self.stores:
            if with_stagers:
                store.crash()
            else:
                store.trainer_ended()

    @property
    def finished(self) -> bool:
        return len(self.outcomes) == len(self.job.steps)


def _team(seed: int) -> tuple[World, list[_Trainer]]:
    """All ranks of one start, each as slow as chance has it."""
    world = World.build(seed)
    rng = world.clock.rng
    world.start()
    job = Job(RUN, None if seed % 2 else "key", "L1", RANK_COUNT, STEPS, 0, 4096)
    team = [_Trainer(world, job, rank, lambda: rng.choice(TRAINS_US)) for rank in range(RANK_COUNT)]
    for trainer in team:
        world.clock.after(rng.randint(0, 3000), trainer.open)
    return world, team


def run_seed(seed: int) -> tuple[int, list[str]]:
    """(clock steps, how each save of each rank ended)."""
    world, team = _team(seed)
    for _ in range(2):
        world.clock.pass_time(world.clock.rng.randint(1_000, 2_000_000))
        world.clock.rng.choice(FAULTS)(world)
    world.clock.pass_time(10_000_000)
    world.heal()
    patience_us = len(STEPS) * (max(TRAINS_US) + SETTLE_US)
    if not world.clock.run(lambda: all(one.finished for one in team), patience_us):
        open_now = [(str(a.checkpoint), a.missing_ranks) for a in world.attempts]
        raise Violation(f"P4: no end: {open_now}")
    ends = [outcome for trainer in team for outcome in trainer.outcomes.values()]
    for end in ends:
        if not isinstance(end, SaveCommitted):
            raise Violation(f"every rank saved every step, and one is told: {end}")
    return world.clock.steps, [type(end).__name__ for end in ends]


def run_seed_with_an_end(seed: int) -> tuple[int, list[str]]:
    """The same, and one process ends while its store is closed: what its peers are told."""
    world, team = _team(seed)
    ends = world.clock.rng.choice(team)
    peers = [trainer for trainer in team if trainer is not ends]
    first_heard = world.clock.run(lambda: len(ends.outcomes) == 1, SETTLE_US)
    assert first_heard, "the first step has no obstacle"
    world.clock.pass_time(world.clock.rng.choice([0, 5_000]))
    ends.end(with_stagers=seed % 3 == 0)
    waiting = lambda: all(len(one.outcomes) > 1 for one in peers)  # noqa: E731
    if not world.clock.run(waiting, UNWATCHED_US + 2 * max(TRAINS_US)):
        raise Violation(f"P4: the peers of rank {ends.rank} wait without an end")
    told = [trainer.outcomes[STEPS[1]] for trainer in peers]
    for end in told:
        if not (isinstance(end, SaveFailed) and f"rank {ends.rank}" in end.message):
            raise Violation(f"rank {ends.rank} has ended, and a peer is told: {end}")
    return world.clock.steps, [type(end).__name__ for end in told]


@pytest.mark.timeout(600)
def test_a_store_that_is_opened_for_each_save_ends_nothing() -> None:
    assert set(ends_of(run_seed, SEEDS, turn_of(SEEDS, SEEDS_SOAK))) == {"SaveCommitted"}


@pytest.mark.timeout(600)
def test_a_process_that_ends_behind_its_closed_store_is_named_to_its_peers() -> None:
    begin = turn_of(SEEDS, SEEDS_SOAK)
    assert set(ends_of(run_seed_with_an_end, SEEDS, begin)) == {"SaveFailed"}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_so_it_is_in_many_more_histories() -> None:
    assert set(ends_of(run_seed, SEEDS_SOAK)) == {"SaveCommitted"}
    assert set(ends_of(run_seed_with_an_end, SEEDS_SOAK)) == {"SaveFailed"}


def test_the_history_finds_a_stager_that_takes_a_closed_store_for_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = property(lambda self: None if self.trainer_attached else Departure.ENDED)
    monkeypatch.setattr(StagerState, "departure", ended)
    with pytest.raises(AssertionError, match="every rank saved every step"):
        run_each(run_seed, 10)


def test_the_history_finds_a_coordinator_that_misses_an_idle_stager(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(abandoned, "UNWATCHED_US", 15_000_000)
    with pytest.raises(AssertionError, match="every rank saved every step"):
        run_each(run_seed, 10)
