"""Histories whose coordinators decode and merge tables an entry at a time, all else between, and
look for the form of each.
"""

from __future__ import annotations

import pytest

from ckpt.protocol.coordinator.desk import Desk
from ckpt.protocol.coordinator.saving import decoding, merging
from tests.sim.scenario import run_seed

SEEDS = 100


def test_no_promise_is_broken_between_two_slices(monkeypatch: pytest.MonkeyPatch) -> None:
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
    for seed in range(SEEDS):
        run_seed(seed)
    assert slices > 2 * SEEDS
