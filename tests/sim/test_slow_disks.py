"""P1, P4: slow is not dead. Where every disk is slow nobody is late, and no column is missing.

Disks of which each operation takes a fifth of a second or half a second, one after another as with
heads that move, or many at a time as with a network; and disks that are quick until they sync.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import pytest

from ckpt.base.ids import TargetId
from ckpt.base.units import US_PER_S
from ckpt.erasure.code import Code
from ckpt.format.messages.reading import ReadRanges
from tests.landing import in_turn
from tests.sim.crowd import RUN, Crowd, Ticks
from tests.sim.harms import kill
from tests.sim.load_nodes import LoadingRank, LoadJob
from tests.sim.short_bursts import OPERATION_US

SMALL, WIDE = Code(4, 2), Code(8, 2)
TICKS = Ticks(rank_us=100_000, target_us=100_000, coordinator_us=50_000)
CROWD_TICKS = Ticks(rank_us=250_000, target_us=100_000, coordinator_us=50_000)
GAP_US = 20 * US_PER_S
STEPS = (10, 20)
VICTIM = TargetId("t3")


@dataclass(frozen=True, slots=True)
class Disks:
    """Of all targets; seconds are means."""

    operation_s: float
    one_at_a_time: bool = True
    sync_slow: int = 1

    @property
    def slow(self) -> int:
        return round(self.operation_s * US_PER_S / OPERATION_US)


HEADS = Disks(0.2)
SLOW_HEADS = Disks(0.5)
NETWORK = Disks(0.2, one_at_a_time=False)
SLOW_NETWORK = Disks(0.5, one_at_a_time=False)
HALTING_HEADS = Disks(1.5)
HALTING_NETWORK = Disks(1.5, one_at_a_time=False)
SYNCS = Disks(OPERATION_US / US_PER_S, sync_slow=14_000)
"""Each sync takes 0.4 to 5.6 s, and what is given to the disk meanwhile waits for it."""


def made(
    ranks: int, targets: int, code: Code, cells: int, disks: Disks,
    steps: tuple[int, ...] = STEPS, *, seed: int = 1, ticks: Ticks = TICKS,
) -> Crowd:  # fmt: skip
    slow = [disks.slow] * targets
    crowd = Crowd(seed, ranks, slow, code, cells, steps, ticks=ticks, gap_us=GAP_US)
    for target in crowd.targets.values():
        target.one_at_a_time = disks.one_at_a_time
        target.sync_slow = disks.sync_slow
    return crowd


def let_plan(crowd: Crowd) -> None:
    """Up to the first rank that has its places."""
    assert crowd.clock.run(lambda: any(node.writers for node in crowd.ranks), 60_000_000)


def check_all_there(crowd: Crowd, *, sessions_cut: int = 0) -> None:
    outcome = crowd.finish()
    assert outcome.columns_missing == 0
    assert outcome.targets_survivable == crowd.code.m
    assert outcome.spares_asked == 0
    assert outcome.fragment_bytes <= 1.005 * outcome.planned_bytes
    assert crowd.network.cut_sessions == sessions_cut
    now_us = crowd.clock.now_us
    known = crowd.coordinator.machine.members.all()
    assert not any(target.slowness.holds(now_us) for target in known)


EVERY = [HEADS, SLOW_HEADS, HALTING_HEADS, NETWORK, SLOW_NETWORK, HALTING_NETWORK, SYNCS]


BURSTS = [(*burst, disks) for disks in EVERY for burst in ((7, 1), (6, 8))]


@pytest.mark.parametrize(("targets", "cells", "disks"), in_turn(BURSTS, every=4), ids=str)
def test_bursts_on_disks_that_are_all_slow_lose_no_column_and_no_session(
    targets: int, cells: int, disks: Disks
) -> None:
    """A landing has every other of the disks, under bursts of one kind."""
    crowd = made(4, targets, SMALL, cells, disks)
    crowd.begin()
    check_all_there(crowd)


@pytest.mark.parametrize("disks", in_turn([HEADS, NETWORK], every=2), ids=str)
def test_a_crowd_on_disks_that_are_all_slow_loses_none_either(disks: Disks) -> None:
    """The second burst begins while the disks are full of the first one."""
    crowd = made(24, 12, WIDE, 1, disks, ticks=CROWD_TICKS)
    crowd.begin()
    check_all_there(crowd)


@pytest.mark.parametrize(
    ("disks", "after_s"),
    in_turn([*product([HEADS, SLOW_HEADS, NETWORK, SYNCS], [0, 4])], every=4),
    ids=str,
)
def test_a_target_that_is_killed_beside_slow_ones_costs_its_own_columns_only(
    disks: Disks, after_s: int
) -> None:
    """Those that it had sealed are missing, if the save is about to be committed."""
    for targets in (7, 6):
        crowd = made(4, targets, SMALL, 2, disks, STEPS[:1])
        crowd.begin()
        let_plan(crowd)
        crowd.clock.after(after_s * US_PER_S, kill, crowd.targets[VICTIM])
        outcome = crowd.finish()
        whole = targets == 7 and not after_s
        assert outcome.columns_missing <= (0 if whole else 4)
        assert outcome.targets_survivable >= (2 if whole else 1)


@pytest.mark.parametrize(
    ("disks", "after_s"),
    in_turn([*product([HEADS, SLOW_HEADS, NETWORK, SYNCS], [0.1, 2])], every=4, first=2),
    ids=str,
)
def test_a_coordinator_that_is_started_again_beside_slow_disks_costs_no_column(
    disks: Disks, after_s: float
) -> None:
    crowd = made(4, 7, SMALL, 2, disks, STEPS[:1])
    crowd.begin()
    let_plan(crowd)
    ends = [*crowd.targets.values(), *crowd.ranks]
    crowd.clock.after(round(after_s * US_PER_S), crowd.coordinator.crash)
    crowd.clock.after(round((after_s + 0.5) * US_PER_S), crowd.coordinator.start)
    check_all_there(crowd, sessions_cut=len(ends))


@pytest.mark.parametrize(
    "disks", in_turn([HEADS, SYNCS, SLOW_HEADS, SLOW_NETWORK], every=2), ids=str
)
def test_a_load_from_disks_that_are_all_slow_gives_up_no_column(disks: Disks) -> None:
    ranks, cells = 4, 8
    crowd = made(ranks, 7, SMALL, cells, disks, STEPS[:1])
    crowd.begin()
    check_all_there(crowd)
    # A column whose disk still syncs what the save left is silent for that alone, and given up.
    crowd.clock.pass_time(60 * US_PER_S)
    readers = [
        LoadingRank(
            crowd.clock, crowd.network, crowd.oracles, crowd.coordinator,
            crowd.targets.__getitem__, LoadJob(RUN, "again", ranks), rank,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    for reader in readers:
        crowd.clock.after(crowd.clock.between(0, 2_000), reader.start)
    assert crowd.clock.run(lambda: all(reader.outcome for reader in readers), 600 * US_PER_S)
    assert {reader.outcome for reader in readers} == {"read"}
    assert crowd.network.sent[ReadRanges] == ranks * SMALL.k * cells, "each cell once, no parity"
