"""A catalog that lacks what its coordinator knows is found at the end of a history."""

from __future__ import annotations

import pytest

from ckpt.protocol.coordinator import catalog
from tests.sim.oracles import Violation
from tests.sim.restarts import check_restart
from tests.sim.world import World


def saved_once() -> World:
    """A launch has saved a step, and nothing is under way any more."""
    world = World.build(1)
    world.start()
    nodes = world.launch((10,), 2_000, 4096)
    assert world.clock.run(lambda: all(node.outcomes for node in nodes), 5_000_000)
    world.clock.pass_time(1_000_000)
    assert not world.coordinator.is_writing
    return world


@pytest.mark.parametrize(
    "entry",
    [catalog.RowCommitted, catalog.LaunchNumbered, catalog.TargetSeen],
    ids=lambda entry: entry.__name__,
)
def test_an_entry_that_was_never_written_is_missed(entry: type[catalog.CatalogEntry]) -> None:
    world = saved_once()
    check_restart(world)
    durable = world.coordinator.durable
    durable.remove(next(each for each in durable if isinstance(each, entry)))
    with pytest.raises(Violation, match="knows otherwise"):
        check_restart(world)
