"""The simulator proves itself: each planted bug is found, and without it the same seed is clean."""

from __future__ import annotations

import pytest

from tests.sim.planted import PLANTS, Plant
from tests.sim.scenario import run_seed

SEEDS_MAX = 1000


@pytest.mark.timeout(600)
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)
def test_a_planted_bug_is_found_within_a_thousand_seeds(plant: Plant) -> None:
    for seed in range(plant.begin, plant.begin + SEEDS_MAX):
        try:
            with plant.planted():
                run_seed(seed)
        except Exception:
            run_seed(seed)
            return
    pytest.fail(f"{plant.name} was not found in {SEEDS_MAX} seeds from {plant.begin} on")
