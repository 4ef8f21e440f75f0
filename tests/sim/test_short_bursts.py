"""P4 in short bursts: what one stopped or slow target costs, and that nobody else loses a column.

Time is virtual, so that bounds are facts. docs/performance.md has the whole table.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from ckpt.base.units import US_PER_S
from ckpt.erasure.code import Code
from ckpt.format.messages.writing import AskPace, Fragment
from ckpt.protocol.stager.events import SaveCommitted
from tests.landing import in_turn
from tests.sim.crowd import DAEMONS, Crowd
from tests.sim.short_bursts import CELLS, HARMS, Burst, cost, ratio
from tests.sim.test_crowds import check_whole, unequal

SMALL, WIDE, LONG = Code(4, 2), Code(8, 2), 10.0


STOPPED = [
    (Burst(4, 7, SMALL, 0.5), 1.4),
    (Burst(4, 7, SMALL, 1.0), 1.2),
    (Burst(4, 12, SMALL, 2.0), 1.2),
    (Burst(4, 12, WIDE, 0.5), 1.2),
    (Burst(24, 7, SMALL, 0.5), 1.2),
    (Burst(24, 12, SMALL, 0.5), 1.2),
    (Burst(4, 7, SMALL, 0.3, former=True), 1.2),
    (Burst(4, 12, SMALL, 0.5, former=True), 1.2),
]
"""Bursts, and what each may take at most beside one without a stopped target."""


@pytest.mark.parametrize(
    ("burst", "at_most", "part"),
    in_turn([(*stopped, part) for stopped in STOPPED for part in (0.0, 0.5)], every=4),
)
def test_a_stopped_target_costs_a_short_burst_little(
    burst: Burst, at_most: float, part: float
) -> None:
    assert ratio(burst, "stop", part) <= at_most


@pytest.mark.parametrize("seconds", [0.5, 2.0, LONG])
@pytest.mark.parametrize("part", in_turn([0.0, 0.5], every=2))
def test_a_slow_device_costs_a_burst_less_than_its_own_time_again(
    seconds: float, part: float
) -> None:
    """A hundred times slower, for the rest of the burst it would take the whole day."""
    assert ratio(Burst(4, 7, SMALL, seconds), "100 x", part) <= 2


def test_a_device_that_stays_slow_is_tried_by_ever_fewer_bursts() -> None:
    """They are further apart than the first pause, so that each would find it again, and wait: for
    its documents above all, which pass it over for an hour.
    """
    burst = Burst(4, 12, SMALL, 0.5)
    first, second = seconds_of_bursts(burst, 2, None)
    # Without a harm a burst that has a former one is like any other that has.
    well = [first, *[second] * 5]
    slow = seconds_of_bursts(burst, len(well), "100 x")
    longer = [number for number, times in enumerate(zip(well, slow, strict=True)) if costs(*times)]
    assert longer == [0]


def costs(well: float, slow: float) -> bool:
    return slow > 1.2 * well


def seconds_of_bursts(burst: Burst, count: int, harm: str | None) -> list[float]:
    """So many of them, 90 s apart; the harm strikes in the first and stays."""
    steps = tuple(range(10, 10 + count))
    crowd = Crowd(
        burst.seed, burst.ranks, [burst.slow] * burst.targets, burst.code, CELLS, steps,
        ticks=DAEMONS, gap_us=90 * US_PER_S,
    )  # fmt: skip
    crowd.start()
    if harm is not None:
        HARMS[harm](list(crowd.targets.values())[3])
    crowd.finish()
    ends = [[node.outcomes[step] for node in crowd.ranks] for step in steps]
    return [
        max(end.info.commit_us for end in of_step if isinstance(end, SaveCommitted)) / US_PER_S
        for of_step in ends
    ]


@pytest.mark.parametrize("harm", ["stop", "100 x"])
def test_only_the_columns_of_the_bad_target_are_sent_again(harm: str) -> None:
    burst = Burst(24, 12, SMALL, 0.5)
    done = cost(burst, HARMS[harm], 0.25)
    assert done.missing == 0
    assert 0 < done.sent_again <= 1 / burst.targets + 0.03


@pytest.mark.parametrize("at_us", [100_000, 300_000, 500_000])
@pytest.mark.parametrize("seed", in_turn([2, 3], every=2))
def test_when_all_targets_stand_still_at_once_nobody_is_blamed(seed: int, at_us: int) -> None:
    """As on a host that is out of breath; the writers look on and see it."""
    crowd = Crowd(seed, 8, [40] * 7, SMALL, CELLS, ticks=DAEMONS)
    crowd.start()
    for target in crowd.targets.values():
        crowd.clock.after(at_us, setattr, target, "stopped", True)
        crowd.clock.after(at_us + 1_500_000, setattr, target, "stopped", False)
    outcome = crowd.finish()
    assert outcome.columns_missing == outcome.abandoned == outcome.spares_asked == 0
    assert crowd.network.sent[AskPace] > 0


def test_load_alone_moves_no_column_where_processes_look_as_often_as_the_real_ones() -> None:
    """The other crowds tick twice a second, which hides what short deadlines do."""
    crowd = Crowd(1, 32, unequal(7), SMALL, cells_per_column=10, ticks=DAEMONS)
    outcome = crowd.burst()
    check_whole(outcome, SMALL)
    assert outcome.abandoned == 0
    sent = crowd.network.sent
    assert sent[AskPace] < sent[Fragment] * 3, "questions are few beside what is sent"


def test_short_bursts_on_unequal_devices_move_no_column() -> None:
    for seed in (1, 2):
        devices = [3 * times for times in (1, 1, 2, 3, 1, 2, 3)]
        outcome = Crowd(seed, 24, devices, SMALL, CELLS, ticks=DAEMONS).burst()
        assert outcome.abandoned == outcome.columns_missing == outcome.spares_asked == 0


def test_a_burst_that_nothing_harms_is_as_long_with_a_former_one_as_without() -> None:
    first = Burst(4, 7, SMALL, 0.5)
    assert cost(replace(first, former=True)).seconds <= 1.2 * cost(first).seconds
