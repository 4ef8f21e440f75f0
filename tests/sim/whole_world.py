"""A world in which more lives than ranks that save and load: each seed draws what else."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from tests.sim.last_checks import check_nothing_is_left, read_everything
from tests.sim.world import World


@dataclass(frozen=True, slots=True)
class Lives:
    """What there is beside ranks and readers."""

    deletion: bool = False
    """Steps are deleted and expire."""

    @classmethod
    def drawn(cls, seed: int) -> Lives:
        rng = Random(f"lives of {seed}")
        return cls(deletion=rng.random() < 0.4)


@dataclass(slots=True)
class WholeWorld(World):
    """I begin, end and check what lives beside the ranks."""

    lives: Lives = Lives()

    def start(self) -> None:
        if self.lives.deletion:
            policy, keep = self.coordinator.machine_policy, self.clock.rng.choice([None, 1, 2])
            self.coordinator.machine_policy = replace(policy, keep=keep)
        World.start(self)

    def live_beside(self) -> None:
        if self.lives.deletion:
            self._delete_later(self.clock.rng.choice([1, 2, 3]), 1_000_000)

    def end_beside(self) -> None:
        if self.lives.deletion:
            self._delete_later(1, 300_000)

    def _delete_later(self, count: int, within_us: int) -> None:
        for _ in range(count):
            self.clock.after(self.clock.rng.randint(0, within_us), self.delete_one)

    def check_beside(self) -> None:
        if self.lives.deletion:
            read_everything(self)
            check_nothing_is_left(self)


def whole(seed: int) -> WholeWorld:
    """As the campaign has it."""
    world = WholeWorld.build(seed, shared_hosts=seed % 3 == 0)
    assert isinstance(world, WholeWorld)
    world.lives = Lives.drawn(seed)
    return world
