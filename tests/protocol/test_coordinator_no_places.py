"""What cannot be made again because targets or domains are too few says how many there are."""

from __future__ import annotations

from typing import Any

from tests.protocol.coordinating import Bench
from tests.protocol.test_coordinator_repairing import AFTER_S, LOOK_S, NOTHING, Worker, holders


def why_it_waits(bench: Bench, lost: str) -> str:
    """As status says it, when that target stays away."""
    bench.stop(lost)
    bench.tick(AFTER_S + LOOK_S)
    assert Worker(bench).lease() == NOTHING
    ((_, why),) = bench.machine.repairs.counts.problems.items()
    status: Any = bench.ask("status")
    (low,) = [one["message"] for one in status["checks"] if one["name"] == "REDUNDANCY_LOW"]
    assert why in low
    return why


def test_too_few_targets_are_counted() -> None:
    bench = Bench(3)
    bench.save(1)
    assert why_it_waits(bench, "t1").endswith(": 2 targets are live, 2+1 needs 3")


def test_too_few_domains_are_counted() -> None:
    bench = Bench(5, hosts=3)
    id = bench.save(1)
    (alone,) = [each.id for each in holders(bench, id) if "/h2/" in each.domain]
    assert why_it_waits(bench, alone).endswith(": targets are live in 2 hosts, 2+1 needs more")
