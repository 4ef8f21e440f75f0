"""A strike that is aimed between two durable steps finds the first done and the second not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ckpt.protocol.coordinator.catalog import AttemptDecided
from tests.sim.aimed import KNOWN
from tests.sim.last_checks import SETTLE_US
from tests.sim.network import Node
from tests.sim.scenario import world_of
from tests.sim.target_node import TargetNode
from tests.sim.windows import Aim, Window
from tests.sim.world import World

Look = Callable[[World, Node], object]


def at(window: Window, look: Look, passes: int = 1) -> object:
    """What is seen when it is passed, in a history without faults."""
    assert window in KNOWN
    world, seen = world_of(7), []
    world.start()
    world.windows.aim(Aim(window, passes, lambda node: seen.append(look(world, node)) is None))
    world.launch((10,), 2_000, 20_000)
    world.clock.run(lambda: bool(seen), SETTLE_US)
    (found,) = seen
    return found


def columns(_world: World, node: Node) -> tuple[int, int, int]:
    """Of the target: names in its folder, those that no crash takes away, those it tells of."""
    assert isinstance(node, TargetNode)
    names = node.disk.list_directory("columns")
    durable = [name for name in names if node.disk.durable(f"columns/{name}") is not None]
    return len(names), len(durable), node.machine.counters["columns_sealed"]


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ("header", "sync", (0, 0, 0)),
        ("sync", "rename", (0, 0, 0)),
        ("rename", "directory", (1, 0, 0)),
        ("directory", "told", (1, 1, 1)),
        ("told", "later", (1, 1, 1)),
    ],
)
def test_a_column_is_on_the_disk_as_far_as_its_steps_have_come(
    before: str, after: str, found: tuple[int, int, int]
) -> None:
    assert at(Window("column", before, after), columns) == found


@pytest.mark.parametrize(
    ("before", "after", "decided"), [("asked", "durable", 0), ("durable", "told", 1)]
)
def test_a_transaction_is_in_the_catalog_from_its_own_step_on(
    before: str, after: str, decided: int
) -> None:
    def entries(world: World, _node: Node) -> int:
        return sum(type(entry) is AttemptDecided for entry in world.coordinator.durable)

    assert at(Window("AttemptDecided", before, after), entries) == decided


def test_the_word_has_arrived_when_its_window_is_passed() -> None:
    def told(world: World, _node: Node) -> int:
        return sum(10 in rank.outcomes for rank in world.ranks)

    assert at(Window("RowCommitted", "durable", "told"), told) == 0
    assert at(Window("RowCommitted", "told", "later"), told) == 4


def test_an_occurrence_is_counted_over_all_nodes() -> None:
    def node(_world: World, node: Node) -> str:
        return node.name

    window = Window("record", "rename", "directory")
    assert len({at(window, node, passes) for passes in (1, 2)}) == 2
