"""A lost target of a large cluster is made again by all of its placement group at once, and by
nobody else: how long that takes beside what the group's caps allow.
"""

from __future__ import annotations

import pytest

from tests.sim.wide_rebuild import rebuilt

RATIO_MAX = 1.7
"""Times the ideal, with as many hands as a large cluster has."""
EVEN_MAX = 2.0


def check(targets: int, columns: int, hands: int) -> None:
    found = rebuilt(targets, columns, hands)
    assert found.strangers == 0, "few sets of targets may lose data together"
    assert found.ratio <= RATIO_MAX, found
    assert found.evenness <= EVEN_MAX, found


def test_its_group_makes_it_again_about_as_fast_as_its_caps_allow() -> None:
    check(96, 120, 64)


@pytest.mark.slow
def test_so_it_does_among_a_thousand() -> None:
    check(1024, 400, 256)
