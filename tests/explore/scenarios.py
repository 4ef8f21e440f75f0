"""The small worlds that are explored: what is done in each, and what may disturb it."""

from __future__ import annotations

from dataclasses import replace

from tests.explore.beginnings import committed
from tests.explore.history import Scenario, back, change, delete, end, wait, wipe

ALL = {
    "slow": 1, "stuck": 1, "kill": 1, "power": 1, "coordinator": 1, "rebuild": 1, "wipe": 1,
    "tick": 1, "early": 1,
}  # fmt: skip
KNOWN_PLACES = {kind: count for kind, count in ALL.items() if kind != "rebuild"}
"""Where a column has moved and its new holder may be away, a catalog that is made again can prove a
loss that is none: that is known, and looked for elsewhere."""

_MOVED = (end("t0"), wait(4))
"""Column 1 was made again on t2 while t0 was away, which still has its own."""

SCENARIOS = (
    Scenario("nothing is done", committed, faults=ALL),
    Scenario("a step is deleted", committed, (delete(),), faults=ALL),
    Scenario("deleted while a holder is away", committed, (delete(),), (end("t0"),), ALL),
    Scenario("a disk is emptied", committed, (wipe("t0"),), faults=ALL),
    Scenario("a holder returns after its column has moved", committed, (back("t0"),), _MOVED, ALL),
    Scenario("a target is drained", committed, (change("t0", "draining"),), faults=ALL),
    Scenario("drained, and deleted", committed, (change("t0", "draining"), delete()), faults=ALL),
    Scenario("a target is removed", committed, (change("t0", "removed"),), (end("t0"),), ALL),
    Scenario("a disk is emptied, a step deleted", committed, (wipe("t0"), delete()), faults=ALL),
    Scenario("deleted after a move", committed, (delete(), back("t0")), _MOVED, ALL),
)
"""Each with one disturbance."""

DEEP = tuple(replace(one, most=2) for one in SCENARIOS)
"""And with two."""
