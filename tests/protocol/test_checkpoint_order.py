"""Checkpoints of a run are in the order of their steps, however they come."""

from __future__ import annotations

import itertools

from ckpt.protocol.coordinator.keeping.checkpoints import Checkpoints
from tests.protocol.coordinating import RUN, Bench


def known() -> tuple[Bench, Checkpoints]:
    """Three of one run, saved in their order."""
    bench = Bench()
    for step in (10, 20, 30):
        bench.save(step)
    return bench, bench.machine.checkpoints


def test_whatever_comes_first_they_are_in_their_order() -> None:
    bench, kept = known()
    held = kept.of_run(RUN, *{one.state for one in kept.all()})
    for order in itertools.permutations(held):
        other = Checkpoints(bench.machine.members, "host")
        for one in order:
            other.add(one)
        assert list(other.all()) == held


def test_one_that_is_added_again_keeps_its_place() -> None:
    _, kept = known()
    held = list(kept.all())
    for one in held:
        kept.add(one)
    assert list(kept.all()) == held


def test_one_that_comes_while_somebody_goes_through_them_does_no_harm() -> None:
    bench, kept = known()
    seen = []
    for one in kept.all():
        seen.append(one.id.step)
        if one.id.step == 20:
            bench.save(40)
    assert seen == [10, 20, 30]
    assert [one.id.step for one in kept.all()] == [10, 20, 30, 40]


def test_what_comes_in_its_order_is_not_sorted_again() -> None:
    """10,000 rows of a catalog would be sorted 10,000 times before a term begins."""
    bench, kept = known()
    order = kept._by_run[RUN]
    bench.save(40)
    assert kept._by_run[RUN] is order
