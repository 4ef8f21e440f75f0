"""The simulator's campaign, with more seeds than each change has time for."""

from __future__ import annotations

import os
import sys

import pytest

from tests.sim.campaign import run_campaign, table

SEEDS = int(os.environ.get("CKPT_SOAK_SEEDS", "20000"))
FIRST = 10_000
"""Those before it belong to the core's tests."""


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_no_seed_of_a_long_campaign_breaks_a_promise() -> None:
    outcome = run_campaign(FIRST, SEEDS, os.cpu_count() or 1)
    sys.stdout.write("\n" + "\n".join(table(outcome)) + "\n")
    assert not outcome.failures, f"failing seeds: {outcome.failures[:10]}"
