"""P1, P4: load alone costs no redundancy, and a bad target is found in a crowd as well.

A column waits for seconds at a healthy target, since many others do: it stays where it is.
"""

from __future__ import annotations

import faulthandler
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from random import Random

import pytest

from ckpt.erasure.code import Code
from ckpt.protocol.writer.column import ColumnState
from tests.landing import in_turn
from tests.sim.crowd import Crowd, Outcome
from tests.sim.harms import kill, slow_down, stop
from tests.sim.rank_node import TICK_US
from tests.sim.repair_node import RepairNode
from tests.sim.target_node import TargetNode

GAP_US = 4_000_000
SMALL = Code(4, 2)
CELLS = {10: 4, 6: 4, 3: 8}
"""Of a column, where thousands of ranks save: as many as a target is busy with for seconds."""
SLOW = 40
"""A device of the crowd takes 1 to 16 ms for an operation, so that queues last for seconds."""


def equal(targets: int) -> list[int]:
    return [SLOW] * targets


def unequal(targets: int, seed: int = 3) -> list[int]:
    """Devices of which some are three times slower than others."""
    rng = Random(seed)
    return [SLOW * rng.choice((1, 1, 2, 3)) for _ in range(targets)]


def check_whole(outcome: Outcome, code: Code) -> None:
    assert outcome.seconds > 4, "a crowd in which nobody waited shows nothing"
    assert outcome.columns_missing == 0
    assert outcome.targets_survivable == code.m
    assert outcome.spares_asked == 0
    assert outcome.fragment_bytes <= 1.005 * outcome.planned_bytes


LOADS = [(64, 12, Code(8, 2)), (128, 16, Code(4, 2)), (128, 12, Code(2, 1)), (32, 7, Code(4, 2))]
LOADED = [(*load, devices) for load in LOADS for devices in (equal, unequal)]


@pytest.mark.parametrize(("ranks", "targets", "code", "devices"), in_turn(LOADED, every=4))
def test_load_alone_moves_no_column_and_loses_none(
    ranks: int, targets: int, code: Code, devices: Callable[[int], list[int]]
) -> None:
    """A landing has every other of the loads, on devices of one kind."""
    check_whole(Crowd(1, ranks, devices(targets), code, cells_per_column=10).burst(), code)


def starve(crowd: Crowd) -> None:
    """Each rank in turn stands still, for longer than any deadline."""
    rng = Random(5)
    for node in crowd.ranks:
        begin_us = rng.randrange(6_000_000)
        crowd.clock.after(begin_us, setattr, node, "stopped", True)
        crowd.clock.after(begin_us + 3_000_000, setattr, node, "stopped", False)


@pytest.mark.parametrize("targets", [6, 7])
def test_writers_that_are_starved_themselves_blame_nobody(targets: int) -> None:
    crowd = Crowd(2, 48, equal(targets), Code(4, 2), cells_per_column=8)
    check_whole(crowd.burst(lambda: starve(crowd)), Code(4, 2))


def test_credit_of_writers_that_stand_still_is_lent_to_the_others() -> None:
    """Two dozen cells are a target's whole pool: as many stopped ranks hold all of it."""
    crowd = Crowd(3, 40, equal(6), Code(4, 2), cells_per_column=12)
    asleep, awake = crowd.ranks[:32], crowd.ranks[32:]

    def are_sealed() -> bool:
        sealed = (c.state is ColumnState.SEALED for node in awake for c in node.columns)
        return all(node.writers for node in awake) and all(sealed)

    def have_begun() -> bool:
        begun = (c.state is ColumnState.STREAMING for node in crowd.ranks for c in node.columns)
        return all(node.writers for node in crowd.ranks) and all(begun)

    crowd.start()
    assert crowd.clock.run(have_begun, 120_000_000)
    for node in asleep:
        node.stopped = True
    assert crowd.clock.run(are_sealed, 120_000_000)
    for node in asleep:
        node.stopped = False
    check_whole(crowd.finish(), Code(4, 2))


@cache
def burst_on(targets: int, harm: Callable[[TargetNode], None] | None = None) -> Outcome:
    """Of 32 ranks. Equal bursts go equally: that without harm is simulated once."""
    crowd = Crowd(4, 32, equal(targets), SMALL, cells_per_column=8)
    victim = list(crowd.targets.values())[3]
    return crowd.burst(lambda: harm(victim) if harm is not None else None)


@pytest.mark.parametrize(
    ("harm", "targets", "missing"),
    # Each landing has all harms, and all numbers of targets.
    in_turn(
        [
            (slow_down, 12, 0), (slow_down, 7, 0), (slow_down, 6, 1),
            (stop, 7, 0), (stop, 6, 1), (stop, 12, 0),
            (kill, 6, 1), (kill, 12, 0), (kill, 7, 0),
        ],
        every=3,
    ),
)  # fmt: skip
def test_a_bad_target_is_left_in_a_crowd_too(
    harm: Callable[[TargetNode], None], targets: int, missing: int
) -> None:
    """To spares while there are any; without one the payload goes on without that column."""
    healthy, harmed = burst_on(targets), burst_on(targets, harm)
    assert (harmed.columns_missing > 0) == bool(missing)
    assert harmed.targets_survivable == SMALL.m - missing
    # What the others do for it, and the time in which it was found: silence, or a lease.
    spread = targets / (targets - 1)
    assert harmed.seconds <= 1.2 * healthy.seconds * spread + 3 + 2 * TICK_US / 1e6


def test_a_crowd_that_saves_while_columns_are_made_again_loses_none_and_these_are_made() -> None:
    """A target has gone for good between two bursts, and there is no spare but one."""
    code = Code(4, 2)
    crowd = Crowd(5, 32, equal(8), code, cells_per_column=8, steps=(10, 20), gap_us=2 * GAP_US)
    policy = crowd.coordinator.machine_policy
    crowd.coordinator.machine_policy = replace(policy, rebuild_after_us=GAP_US // 2)
    crowd.start()
    assert crowd.clock.run(lambda: all(node.outcomes for node in crowd.ranks), 600_000_000)
    kill(list(crowd.targets.values())[3])
    still_saving: list[int] = []

    def begun() -> None:
        still_saving.append(sum(len(node.outcomes) < 2 for node in crowd.ranks))

    worker = RepairNode(
        crowd.clock, crowd.network, crowd.oracles, crowd.coordinator,
        crowd.targets.__getitem__, 0,
    )  # fmt: skip
    worker.on_work = begun
    worker.start()
    outcome = crowd.finish()
    assert (outcome.columns_missing, outcome.targets_survivable) == (0, code.m)
    assert any(still_saving), "no column was made again beside the burst"
    kept = crowd.coordinator.machine.checkpoints

    def missing() -> int:
        return sum(kept.redundancy(one).columns_missing for one in kept.all())

    crowd.clock.run(lambda: not missing(), 600_000_000)
    assert missing() == 0


def test_a_scrub_beside_a_crowd_that_saves_costs_no_column_and_alarms_nobody() -> None:
    crowd = Crowd(6, 32, equal(7), Code(4, 2), cells_per_column=8, steps=(10, 20), gap_us=GAP_US)
    for target in crowd.targets.values():
        target.scrub_each(GAP_US)
    outcome = crowd.burst()
    assert (outcome.columns_missing, outcome.targets_survivable) == (0, 2)
    crowd.clock.pass_time(4 * GAP_US)
    targets = crowd.targets.values()
    assert all(target.machine.counters["files_scrubbed"] for target in targets)
    assert not any(target.alarms for target in targets)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("devices", [equal, unequal])
@pytest.mark.parametrize(
    ("ranks", "targets", "code"),
    [(4096, 256, Code(8, 2)), (4096, 256, Code(4, 2)), (4096, 256, Code(2, 1))],
)
def test_load_alone_moves_no_column_of_thousands_of_ranks(
    ranks: int, targets: int, code: Code, devices: Callable[[int], list[int]]
) -> None:
    """Each takes half a minute to five minutes of CPU and 0.9 to 2.9 GiB."""
    faulthandler.cancel_dump_traceback_later()
    check_whole(Crowd(1, ranks, devices(targets), code, CELLS[code.n]).burst(), code)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_thousands_of_writers_that_are_starved_themselves_blame_nobody() -> None:
    faulthandler.cancel_dump_traceback_later()
    crowd = Crowd(2, 4096, equal(256), Code(4, 2), cells_per_column=4)
    check_whole(crowd.burst(lambda: starve(crowd)), Code(4, 2))
