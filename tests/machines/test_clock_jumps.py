"""F26 on real processes: wall clocks jump, and only the times that people are shown follow."""

from __future__ import annotations

import re
import time

import numpy as np
import pytest

import ckpt
from tests.e2e.cluster import command
from tests.machines.cluster import COORDINATOR, MachineCluster

RUN = "jumping"
WAIT_S = 90.0
HOUR_S = 3600
DAY_S = 24 * HOUR_S


def state(step: int) -> dict[str, object]:
    return {"w": np.arange(step, step + 500_000)}


def check(store: ckpt.Store, newest: int) -> None:
    """Every step up to this one, the newest last whatever the clock said."""
    assert [commit.step for commit in store.steps(RUN)] == list(range(1, newest + 1))
    assert store.latest(RUN) == newest
    for step in range(1, newest + 1):
        found = store.load(RUN, step)
        assert isinstance(found, dict)
        assert np.array_equal(found["w"], np.arange(step, step + 500_000))


@pytest.mark.parametrize("away_s", [HOUR_S, -HOUR_S])
def test_a_clock_that_jumps_in_mid_save_changes_nothing(
    cluster: MachineCluster, store: ckpt.Store, away_s: int
) -> None:
    """Of the coordinator, of half of the targets, of all; and back."""
    jumps = ((COORDINATOR,), cluster.everything[1:3], cluster.everything)
    for step, names in enumerate(jumps, start=1):
        saved = store.save(RUN, step, state(step))
        for name in names:
            cluster.clock(name).jump(away_s * step)
        saved.wait(WAIT_S)
        check(store, step)
        for name in names:
            cluster.clock(name).jump(0)
        check(store, step)
    assert cluster.live() == set(cluster.everything[1:])
    assert (
        store.save(RUN, len(jumps) + 1, state(len(jumps) + 1)).wait(WAIT_S).targets_survivable == 1
    )


def test_a_clock_that_jumps_a_day_ahead_takes_nothing_that_rules_by_age_keep(
    cluster: MachineCluster, store: ckpt.Store
) -> None:
    for step in (1, 2, 3):
        store.save(RUN, step, state(step)).wait(WAIT_S)
    command("keep", "--store", cluster.url, RUN, "--age", "6h")
    cluster.clock(COORDINATOR).jump(DAY_S)
    step, began_s = 3, time.time()
    while store.steps(RUN)[-1].committed_at_s < began_s + DAY_S / 2:
        step += 1
        store.save(RUN, step, state(step)).wait(WAIT_S)
    check(store, step)


def test_a_step_of_tomorrow_is_listed_and_the_newest_is_the_one_with_the_greatest_number(
    cluster: MachineCluster, store: ckpt.Store
) -> None:
    cluster.clock(COORDINATOR).jump(DAY_S)
    cluster.lose_power([COORDINATOR])
    cluster.start_again([COORDINATOR])
    first = store.save(RUN, 1, state(1)).wait(WAIT_S)
    cluster.clock(COORDINATOR).jump(-DAY_S)
    cluster.lose_power([COORDINATOR])
    cluster.start_again([COORDINATOR])
    second = store.save(RUN, 2, state(2)).wait(WAIT_S)
    # So the clocks did jump, and are for people only.
    assert second.committed_at_s < first.committed_at_s - DAY_S
    check(store, 2)
    said = command("ls", "--store", cluster.url, RUN).out
    assert re.search(r"jumping +1 .* dated 2[34] h.* ahead", said), said
    assert re.search(r"jumping +2 .* 24 h.* ago", said), said
