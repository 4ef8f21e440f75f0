"""Histories in which the catalog is lost while columns are made again, and is made again itself
from what the targets hold (F12 beside a rebuild): where columns have moved it does not know. All
that is kept is whole again in the end, once, nothing that was deleted comes back, and no loss is
proved falsely (P1, P3, P7, P10).
"""

from __future__ import annotations

import os

import pytest

from ckpt.protocol.coordinator.catalog import RowState
from ckpt.protocol.coordinator.image import CatalogImage
from ckpt.protocol.coordinator.keeping.adopting import Adopter
from ckpt.protocol.coordinator.keeping.checkpoints import KeptCheckpoint
from ckpt.testing.disk import Keep
from ckptd.catalog.rebuild import rebuild
from tests.landing import PLANTED, at_turn, turn_of
from tests.sim.catalog_sources import AwaySource, DiskSource
from tests.sim.coordinator_node import CLUSTER
from tests.sim.histories import ends_of, run_each
from tests.sim.oracles import Oracles, Violation
from tests.sim.rebuilds import Rebuilds
from tests.sim.repair_world import read_all, saved
from tests.sim.restarts import check_restart
from tests.sim.target_node import TargetNode
from tests.sim.whole_again import Disks
from tests.sim.world import World

SEEDS = int(os.environ.get("CKPT_SIM_SEEDS", "200")) // 16
SEEDS_SOAK = 1_500
PLANTED_SEEDS = 60
HARMS = ("F7 rot", "F8 misplaced", "F21 lost", "F21 wiped")
"""What takes a column away from whoever has one left to lose."""


class _Oracles(Oracles):
    """A catalog that was made from the targets knows all that is kept, and no more."""

    def coordinator_started(self, image: CatalogImage) -> None:
        for id in sorted(self.announced):
            row = image.rows.get(id)
            state = RowState.DELETED if row is None else row.state
            gone = state in (RowState.TOMBSTONED, RowState.DELETED)
            if gone != (id in self.deleted) or state in (RowState.OPEN, RowState.ABORTED):
                raise Violation(f"P1: {id} was announced, a start finds it {state.value}")


class _World(World):
    oracles_type = _Oracles


class CatalogLosses(Rebuilds):
    """In each round the catalog goes as well."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.ends: list[str] = []
        """What was known when it went."""

    def _round(self) -> None:
        self._aimed.append(self._lose_catalog)
        super()._round()

    def _strike(self, name: str) -> None:
        """As all is read at the end, no more is lost than may be: one harm may be unknown yet."""
        if name not in HARMS or self._disks().survivable() > 0:
            super()._strike(name)

    def _lose_for_good(self, victim: TargetNode) -> None:
        if self._disks().survivable() > 0:
            super()._lose_for_good(victim)

    def _lose_catalog(self) -> None:
        """Everything is stopped, and read; one target may not be there to be read."""
        world, rng = self._world, self._rng
        moved = world.oracles.placements != world.oracles.index_places
        making = self.is_making
        world.coordinator.crash()
        for target in world.targets.values():
            target.crash(rng.choice(list(Keep)))
        here = [target for target in world.targets.values() if not target.lost]
        away = rng.choice(here).id if self._may_miss_one() and rng.random() < 0.5 else None
        sources = [AwaySource(t.name) if t.id == away else DiskSource(t) for t in here]
        world.coordinator.begin_from(rebuild(CLUSTER, sources).image)
        world.oracles.moves_are_forgotten()
        world.heal()
        self.ends += ["rebuilt"] + ["moved"] * moved + ["amid"] * making
        self.ends += ["without one"] * (away is not None)

    def _may_miss_one(self) -> bool:
        """Columns and documents are enough without it."""
        world = self._world
        harmed = sum(target.lost or target.wiped for target in world.targets.values())
        allowed = min(Disks(world).survivable(), world.coordinator.machine_policy.code.m - harmed)
        return allowed >= 1 and not world.rotted


def run_seed(seed: int) -> tuple[int, list[str]]:
    """(clock steps, what was so when the catalog was lost); raises Violation when a promise
    breaks.
    """
    world = saved(seed, _World)
    losses = CatalogLosses(world)
    losses.begin()
    losses.amid_faults()
    losses.end()
    read_all(world)
    check_restart(world)
    return world.clock.steps, losses.ends


@at_turn(3, every=4)
def test_what_is_lost_is_made_again_though_the_catalog_was_lost_as_well() -> None:
    ends = ends_of(run_seed, SEEDS, turn_of(SEEDS, SEEDS_SOAK, every=4))
    assert {"rebuilt", "moved", "amid", "without one"} <= set(ends)


def test_a_target_is_not_lost_for_good_beside_damage_that_nobody_has_found() -> None:
    """Of 2 + 1 columns a page of one was misplaced, and who had another was lost: that is more than
    any answer has promised to survive.
    """
    run_seed(415)


def dropped_at_once(self: Adopter, checkpoint: KeptCheckpoint) -> None:
    """What the new catalog does not name goes, whoever lacks it."""
    for column, holders in sorted(checkpoint.surplus.items()):
        for id in sorted(holders):
            self._deleter.drop_column(self._members.targets[id], column)
    checkpoint.surplus.clear()


@at_turn(1, every=PLANTED)
def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Adopter, "_settle", dropped_at_once)
    with pytest.raises(Violation, match=r"P\d"):
        run_each(run_seed, PLANTED_SEEDS)


@pytest.mark.slow
def test_many_more_histories() -> None:
    ends_of(run_seed, SEEDS_SOAK)
