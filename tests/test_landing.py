"""Each landing has its turn: in so many landings as it takes, everything was run."""

from __future__ import annotations

import pytest

from tests import landing
from tests.landing import in_turn, turn_of


def test_landings_in_a_row_run_all_seeds_and_none_that_soak_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran: list[int] = []
    for number in range(1250, 1250 + 14):
        monkeypatch.setattr(landing, "LANDING", number)
        begin = turn_of(7, 100)
        ran += range(begin, begin + 7)
    assert sorted(ran) == [*range(98)]


@pytest.mark.parametrize("every", [1, 2, 3, 5])
def test_landings_in_a_row_run_each_case_once(monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    ran: list[object] = []
    for number in range(1250, 1250 + every):
        monkeypatch.setattr(landing, "LANDING", number)
        ran += [
            each.values
            for each in in_turn([(n, str(n)) for n in range(5)], every)
            if not each.marks
        ]
    assert sorted(ran) == [(n, str(n)) for n in range(5)]


def test_what_has_no_turn_is_left_to_soak() -> None:
    marks = [mark.name for each in in_turn("abc", 3) for mark in each.marks]
    assert marks == ["slow", "slow"]
