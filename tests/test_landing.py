"""Each landing has its turn: in so many landings as it takes, everything was run."""

from __future__ import annotations

from inspect import signature

import pytest

from tests import landing
from tests.landing import at_turn, examples, has_turn, in_turn, turn_of, unmarked


def test_landings_in_a_row_run_all_seeds_and_none_that_soak_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran: list[int] = []
    for number in range(1250, 1250 + 14):
        monkeypatch.setattr(landing, "LANDING", number)
        begin = turn_of(7, 100)
        ran += range(begin, begin + 7)
    assert sorted(ran) == [*range(98)]


def test_a_campaign_that_has_its_turn_at_every_other_landing_runs_all_seeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of an even number of turns the even landings would see only half."""
    monkeypatch.setattr(landing, "IS_LANDING", True)
    ran: list[int] = []
    for number in range(1250, 1250 + 2 * 14):
        monkeypatch.setattr(landing, "LANDING", number)
        if has_turn(0, every=2):
            begin = turn_of(7, 100, every=2)
            ran += range(begin, begin + 7)
    assert sorted(ran) == [*range(98)]


@pytest.mark.parametrize("every", [1, 2, 3, 5])
def test_landings_in_a_row_run_each_case_once(monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    monkeypatch.setattr(landing, "IS_LANDING", True)
    ran: list[object] = []
    for number in range(1250, 1250 + every):
        monkeypatch.setattr(landing, "LANDING", number)
        ran += [
            each.values
            for each in in_turn([(n, str(n)) for n in range(5)], every)
            if not each.marks
        ]
    assert sorted(ran) == [(n, str(n)) for n in range(5)]


def test_fewer_cases_than_turns_leave_landings_to_other_tests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def of_landing(number: int) -> list[object]:
        monkeypatch.setattr(landing, "LANDING", number)
        both = (in_turn([(1,), (2,)], every=4), in_turn([(3,), (4,)], every=4, first=2))
        return [each.values for one in both for each in one if not each.marks]

    monkeypatch.setattr(landing, "IS_LANDING", True)
    ran = [of_landing(number) for number in range(1252, 1256)]
    assert ran == [[(1,)], [(2,)], [(3,)], [(4,)]]
    monkeypatch.setattr(landing, "IS_LANDING", False)
    assert of_landing(0) == [(1,), (3,)], "a person who runs them has the first of each"


def test_a_landing_draws_a_quarter_of_what_soak_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landing, "IS_LANDING", True)
    assert examples(300) == 75
    monkeypatch.setattr(landing, "IS_LANDING", False)
    assert examples(300) == 300


def test_a_test_of_another_place_takes_none_of_its_marks_along() -> None:
    @pytest.mark.slow
    def there(store: str) -> None:
        """Asks for a fixture."""

    here = pytest.mark.usefixtures("tmp_path")(unmarked(there))
    assert [mark.name for mark in here.pytestmark] == ["usefixtures"]
    assert [mark.name for mark in there.pytestmark] == ["slow"]
    assert [*signature(here).parameters] == ["store"]


def test_what_has_no_turn_is_left_to_soak() -> None:
    marks = [mark.name for each in in_turn("abc", 3) for mark in each.marks]
    assert marks == ["slow", "slow"]


def test_a_campaign_has_its_turn_at_one_of_each_so_many_landings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(landing, "IS_LANDING", True)
    turns = []
    for number in range(1250, 1250 + 6):
        monkeypatch.setattr(landing, "LANDING", number)
        turns.append([has_turn(which, every=3) for which in range(3)])
    assert turns[0].count(True) == 1
    assert sorted(turns[:3]) == sorted(turns[3:])
    assert [any(column) for column in zip(*turns[:3], strict=True)] == [True] * 3


def test_what_a_person_runs_alone_always_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    def marks_of(which: int) -> list[str]:
        @at_turn(which, every=2)
        def of_a_campaign() -> None:
            """Runs many histories."""

        return [mark.name for mark in getattr(of_a_campaign, "pytestmark", ())]

    monkeypatch.setattr(landing, "LANDING", 1)
    monkeypatch.setattr(landing, "IS_LANDING", False)
    assert (marks_of(0), marks_of(1)) == ([], [])
    monkeypatch.setattr(landing, "IS_LANDING", True)
    assert (marks_of(0), marks_of(1)) == (["slow"], [])
