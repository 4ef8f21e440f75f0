"""P4 in virtual time: one dead, hung or 100 times slower target costs a burst its
hedge deadline at most.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ckpt.base.limits import HEDGE_US, LEASE_US
from ckpt.protocol.stager.events import SaveCommitted
from ckpt.protocol.writer.column import ColumnState
from tests.sim.harms import kill, slow_down, stop
from tests.sim.rank_node import TICK_US as STAGER_TICK_US
from tests.sim.rank_node import RankNode
from tests.sim.target_node import TargetNode
from tests.sim.world import World

PAYLOAD_BYTES = 60_000


def commit_us(world: World, nodes: list[RankNode]) -> int:
    """Run until every rank heard of its only save; its time from the first open to
    the durable record.
    """
    assert world.clock.run(lambda: all(node.outcomes for node in nodes), 60_000_000)
    outcome = next(iter(nodes[0].outcomes.values()))
    assert isinstance(outcome, SaveCommitted)
    return outcome.info.commit_us


def burst(harm: Callable[[TargetNode], None] | None, seed: int) -> int:
    """One save of four ranks; the harm strikes one target when the first column streams."""
    world = World.build(seed)
    world.start()
    nodes = world.launch((10,), 0, PAYLOAD_BYTES)
    streaming = (ColumnState.OPENING, ColumnState.STREAMING)
    world.clock.run(lambda: any(c.state in streaming for n in nodes for c in n.columns), 1_000_000)
    if harm is not None:
        harm(world.targets[next(iter(world.targets))])
    return commit_us(world, nodes)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("harm", [kill, stop, slow_down])
def test_one_bad_target_costs_at_most_its_hedge_deadline(
    harm: Callable[[TargetNode], None], seed: int
) -> None:
    healthy = burst(None, seed)
    harmed = burst(harm, seed)
    assert harmed <= 1.2 * healthy + HEDGE_US + 2 * STAGER_TICK_US


def test_a_healthy_burst_waits_for_no_deadline() -> None:
    assert burst(None, 1) < min(HEDGE_US, LEASE_US)
