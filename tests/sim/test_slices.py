"""Histories whose coordinators decode and merge tables an entry at a time, all else between, and
look for the form of each.
"""

from __future__ import annotations

import pytest

from ckpt.protocol.coordinator.desk import Desk
from ckpt.protocol.coordinator.saving import decoding, merging
from tests.landing import turn_of
from tests.sim.scenario import run_seed

SEEDS = 17
SEEDS_SOAK = 1_000


def slices_in(monkeypatch: pytest.MonkeyPatch, first: int, count: int) -> int:
    """How many there were in so many seeds."""
    monkeypatch.setattr(decoding, "AT_ONCE_BYTES", 0)
    monkeypatch.setattr(decoding, "FORM_BYTES_MIN", 0)
    monkeypatch.setattr(decoding, "ENTRIES_AT_ONCE", 1)
    monkeypatch.setattr(merging, "ENTRIES_AT_ONCE", 1)
    slices, work = 0, Desk.work

    def counted(desk: Desk) -> None:
        nonlocal slices
        slices += 1
        work(desk)

    monkeypatch.setattr(Desk, "work", counted)
    for seed in range(first, first + count):
        run_seed(seed)
    return slices


def test_no_promise_is_broken_between_two_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert slices_in(monkeypatch, turn_of(SEEDS, SEEDS_SOAK), SEEDS) > 2 * SEEDS


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_nor_is_one_in_many_more_histories(monkeypatch: pytest.MonkeyPatch) -> None:
    assert slices_in(monkeypatch, 0, SEEDS_SOAK) > 2 * SEEDS_SOAK
