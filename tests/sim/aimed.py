"""Strikes that are aimed: who falls when a window is passed, and the list of windows in which a
campaign must have struck (`tests/sim/windows.py` says what a window is).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

from ckpt.testing.disk import Keep
from tests.sim.network import Node
from tests.sim.target_node import TargetNode
from tests.sim.windows import ASKED, COLUMN, DROP, LATER, NOTE, TERM, TOLD, Aim, Window
from tests.sim.world import World

LONG_US = 12_000_000
RANKS_TOO = 0.3
"""How often, when all daemons fall at once, the job falls with them."""


def down_for(world: World) -> int:
    """Hardly noticed, short, about a hedge, about a lease, long."""
    return world.clock.rng.choice([2_000, 50_000, 2_500_000, 4_000_000, LONG_US])


# --------------------------------------------------------------------------- who falls


def kill_target(world: World, node: Node, keep: Keep = Keep.ALL) -> bool:
    if not (isinstance(node, TargetNode) and node.up):
        return False
    node.crash(keep)
    world.clock.after(down_for(world), node.start)
    return True


def cut_power(world: World, node: Node) -> bool:
    return kill_target(world, node, Keep.NOTHING)


def kill_coordinator(world: World, node: Node) -> bool:
    """At a window of its own, what it was about to make durable is not."""
    coordinator = world.coordinator
    if not coordinator.up:
        return False
    coordinator.crash(0 if node is coordinator else None)
    pause_us = world.clock.rng.choice([20_000, 1_000_000, 5_000_000])
    world.clock.after(pause_us, world.restart_coordinator)
    return True


def kill_all(world: World, node: Node) -> bool:
    """All daemons, and sometimes the job that they serve: a room without power, or a scheduler."""
    rng, keep = world.clock.rng, world.clock.rng.choice(list(Keep))
    kill_coordinator(world, node)
    down_us = rng.choice([2_000, 50_000, 2_500_000])
    for target in world.targets.values():
        if target.up:
            target.crash(keep)
            world.clock.after(down_us + rng.randint(0, 50_000), target.start)
    if rng.random() < RANKS_TOO:
        for rank in world.ranks:
            if rank.launch_number is not None:  # The launch has begun, so that it counts as one.
                rank.crash()
    return True


STRIKES: dict[str, Callable[[World, Node], bool]] = {
    "killed": kill_target,
    "power": cut_power,
    "coordinator": kill_coordinator,
    "all": kill_all,
}

# --------------------------------------------------------------------------- the list


def _chain(of: str, *steps: str) -> list[Window]:
    return [Window(of, before, after) for before, after in pairwise(steps)]


def catalog_windows(*kinds: str) -> list[Window]:
    """Around the transactions of these."""
    return [each for kind in kinds for each in _chain(kind, ASKED, "durable", TOLD, LATER)]


STORE = ("sync", "rename", "directory")
OF_TARGETS = (
    Window(COLUMN, ASKED, "fragment"),
    # The manifest comes before the last fragment is written, or behind it.
    Window(COLUMN, ASKED, "trailer"),
    *_chain(COLUMN, "fragment", "trailer", "header", *STORE, TOLD, LATER),
    *_chain("index", ASKED, "write", "last page", "first page", *STORE, TOLD, LATER),
    *_chain("record", ASKED, "write", "last page", "first page", *STORE, TOLD, LATER),
    *_chain("tombstone", ASKED, "write", "last page", "first page", *STORE, TOLD, LATER),
    *_chain(DROP, ASKED, "removed", "columns", TOLD, LATER),
    Window(DROP, "removed", "removed"),
    *_chain(TERM, ASKED, "write", *STORE, LATER),
    *_chain(NOTE, ASKED, "write", *STORE, LATER),
)
ENTRIES = (
    "LaunchNumbered", "LaunchEntered", "AttemptOpened", "AttemptDecided", "RowCommitted",
    "RowAborted", "CheckpointTombstoned", "CheckpointDeleted", "TargetSeen", "CatalogReached",
)  # fmt: skip
OF_COORDINATOR = tuple(catalog_windows(*ENTRIES))
KNOWN = (*OF_TARGETS, *OF_COORDINATOR)
MOVES = "ColumnsMoved"
OF_REPAIRS = (
    *(window for window in OF_TARGETS if window.of in (COLUMN, DROP)),
    *catalog_windows(MOVES),
)
"""Where somebody is struck while lost columns are made again."""
ALL = tuple(dict.fromkeys((*KNOWN, *OF_REPAIRS)))
PASSES_MAX = {
    COLUMN: 12,
    DROP: 2,
    "index": 3,
    "record": 3,
    "tombstone": 2,
    TERM: 5,
    NOTE: 2,
    "TargetSeen": 4,
}
"""About as often as a window is passed before a history heals; others once, or seldom twice."""
BESIDE_ANOTHER_LAUNCH = frozenset({DROP, "RowAborted"})
"""What an earlier launch leaves behind ends when another begins."""


def strikes_at(window: Window) -> Iterable[str]:
    """Who can be struck there."""
    return STRIKES if window in OF_TARGETS else ("coordinator", "all")


def aim_anywhere(world: World) -> tuple[str, Aim]:
    """Who is struck, in which window, and when it is passed for which time, drawn by the seed."""
    rng = world.clock.rng
    window = rng.choice(KNOWN)
    who = rng.choice(list(strikes_at(window)))
    passes = rng.randint(1, PASSES_MAX.get(window.of, 1))
    aim = Aim(window, passes, lambda node: STRIKES[who](world, node))
    world.windows.aim(aim)
    return who, aim


def table(counts: dict[tuple[Window, str], int]) -> Iterator[str]:
    """How often who was struck in each window."""
    width = max(len(str(window)) for window in ALL) + 2
    yield f"{'window':<{width}}" + "".join(f"{who:>12}" for who in STRIKES)
    for window in ALL:
        possible = set(strikes_at(window))
        found = (counts.get((window, who), 0) if who in possible else "-" for who in STRIKES)
        yield f"{window!s:<{width}}" + "".join(f"{each:>12}" for each in found)
