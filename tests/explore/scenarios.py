"""The small worlds that are explored: what is done in each, and what may disturb it."""

from __future__ import annotations

from dataclasses import replace

from tests.explore.beginnings import committed
from tests.explore.history import Scenario, back, change, delete, end, moment, wait, wipe

ALL = {
    "slow": 1,
    "stuck": 1,
    "kill": 1,
    "power": 1,
    "coordinator": 1,
    "rebuild": 1,
    "wipe": 1,
    "tick": 1,
    "early": 1,
}
QUICK = ("stuck", "power", "coordinator", "rebuild", "early")
"""Those that find most."""
_MOVED = (end("t0"), wait(4))
"""Column 1 was made again on t2 while t0 was away, which still has its own."""

SCENARIOS = (
    Scenario("nothing is done", committed, faults=ALL),
    Scenario("a step is deleted", committed, (delete(),), faults=ALL),
    Scenario("deleted while a holder is away", committed, (delete(),), (end("t0"),), ALL),
    Scenario("a disk is emptied", committed, (wipe("t0"),), faults=ALL),
    Scenario("a holder returns after its column has moved", committed, (back("t0"),), _MOVED, ALL),
    Scenario("a target is drained", committed, (change("t0", "draining"),), faults=ALL),
    Scenario(
        "drained, and deleted", committed, (change("t0", "draining"), moment(), delete()),
        faults=ALL,
    ),
    Scenario("a target is removed", committed, (change("t0", "removed"),), (end("t0"),), ALL),
    Scenario(
        "a disk is emptied, a step deleted", committed, (wipe("t0"), moment(), delete()), faults=ALL
    ),
    Scenario("deleted after a move", committed, (delete(), back("t0")), _MOVED, ALL),
)  # fmt: skip
"""Each with one disturbance of any kind."""


def quick(scenario: Scenario) -> Scenario:
    """With one of those kinds alone."""
    faults = {kind: count for kind, count in scenario.faults.items() if kind in QUICK}
    return replace(scenario, faults=faults)


def deep(scenario: Scenario) -> Scenario:
    """With two."""
    return replace(scenario, most=2)
