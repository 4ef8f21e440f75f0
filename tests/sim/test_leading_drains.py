"""F12, F26 of several coordinators beside drains and evictions: whichever of them dies, whatever is
under way, each checkpoint comes to its stores once and whole, and none goes before (P9).
"""

from __future__ import annotations

import os

import pytest

from ckpt.protocol.coordinator import catalog
from ckpt.protocol.coordinator.catalog import RowState
from ckpt.protocol.coordinator.desk import Then, nothing
from ckpt.protocol.coordinator.keeping.checkpoints import KeptCheckpoint
from ckpt.protocol.coordinator.keeping.deletion import Deleter
from tests.landing import in_turn
from tests.sim.leading.drains import NAMES, DrainHistory, run_seed
from tests.sim.oracles import Violation
from tests.sim.planted import Plant

SEEDS = len(NAMES)
"""Of each part: one of each phase."""
PARTS = in_turn(range(max(1, int(os.environ.get("CKPT_SIM_SEEDS", "100")) // 40)), every=4)
MANY_SEEDS = 1_000


def _check(found: list[DrainHistory]) -> None:
    struck = {history.phase for history in found if history.struck}
    assert len(struck) >= len(NAMES) - 2, struck
    assert sum(history.terms for history in found) > len(found), "leaders are followed"
    assert sum(history.drained for history in found) > 3 * len(found)
    assert any(history.evicted for history in found)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", PARTS)
def test_whoever_leads_what_is_drained_is_there_once_and_nothing_goes_before(part: int) -> None:
    _check([run_seed(seed) for seed in range(part * SEEDS, (part + 1) * SEEDS)])


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_so_it_is_in_many_histories() -> None:
    _check([run_seed(seed) for seed in range(1_000_000, 1_000_000 + MANY_SEEDS)])


# ----------------------------------------------------------------------- bugs that must be found


def _columns_go_at_once(
    self: Deleter, doomed: list[KeptCheckpoint], reason: str, *waiting: Then
) -> None:
    """The catalog is about to have the tombstone, so targets may have it."""
    for checkpoint in doomed:
        checkpoint.state, checkpoint.reason = RowState.TOMBSTONED, reason
        self._unspread[checkpoint.id] = list(waiting)
    entries = tuple(catalog.CheckpointTombstoned(one.id, reason) for one in doomed)
    self._desk.persist(entries, nothing)
    for checkpoint in doomed:
        self._spread_tombstone(checkpoint)


PLANTS = (Plant("columns-go-at-once", "P1", ((Deleter, "_tombstone", _columns_go_at_once),)),)
FOUND = {"columns-go-at-once": (33, "P1: sim run@10#1.1 should be readable after healing")}
"""By which seed, the first of all, and what its history says."""


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: str(plant.name))
def test_a_planted_bug_is_found_by_its_seed(plant: Plant) -> None:
    seed, text = FOUND[plant.name]
    run_seed(seed)
    with plant.planted(), pytest.raises(Violation, match=text):
        run_seed(seed)
