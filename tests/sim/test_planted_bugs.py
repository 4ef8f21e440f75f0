"""The simulator proves itself: each planted bug is found, and without it the same seed is clean."""

from __future__ import annotations

from functools import cache

import pytest

from tests.landing import PLANTED, in_turn
from tests.sim import planted_moves, planted_repairs
from tests.sim.planted import PLANTS, Plant
from tests.sim.scenario import run_seed

SEEDS_MAX = 1000
ALL = (*PLANTS, *planted_repairs.PLANTS, *planted_moves.PLANTS)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("plant", in_turn(ALL, every=PLANTED), ids=lambda plant: plant.name)
def test_a_planted_bug_is_found_within_a_thousand_seeds(plant: Plant) -> None:
    # Outside of the search: a patch of what is not there any more is no bug that was found.
    with plant.planted():
        found = next(filter(_is_broken, range(plant.begin, plant.begin + SEEDS_MAX)), None)
    assert found is not None, (
        f"{plant.name} is not found in {SEEDS_MAX} seeds from {plant.begin} on"
    )
    _run_clean(found)


@cache
def _run_clean(seed: int) -> None:
    """Several bugs are found by one seed: its history without any is run once."""
    run_seed(seed)


def _is_broken(seed: int) -> bool:
    """A promise, or what a machine asserts of itself; any other error is the plant's own."""
    try:
        run_seed(seed)
    except AssertionError:
        return True
    return False
