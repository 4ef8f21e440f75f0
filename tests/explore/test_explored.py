"""The small world explored: nothing deleted comes back, no last copy is dropped, no loss is proved
falsely, and what is left at the end is as it should be.
"""

from __future__ import annotations

import pytest

from tests.explore.history import Scenario
from tests.explore.scenarios import SCENARIOS, deep, quick
from tests.explore.search import Search
from tests.landing import in_turn

HISTORIES_DEEP = 40_000
"""Of one scenario with two disturbances; there are more."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "scenario", in_turn(SCENARIOS, every=5), ids=lambda scenario: scenario.name
)
def test_no_history_with_one_disturbance_breaks_a_rule(scenario: Scenario) -> None:
    found = Search(quick(scenario)).run()
    assert found.wrong is None, found.text
    assert found.left == 0
    assert found.ends > 1


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_nor_does_one_of_any_kind(scenario: Scenario) -> None:
    found = Search(scenario).run()
    assert found.wrong is None, found.text
    assert found.left == 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_nor_do_those_with_two(scenario: Scenario) -> None:
    """As far as they come."""
    found = Search(deep(scenario)).run(HISTORIES_DEEP)
    assert found.wrong is None, found.text
