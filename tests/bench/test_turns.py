"""Turns: in order, alone, and nobody waits for who has left."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from ckptbench.run.turns import Seat, Turns


def take(counts: Sequence[int]) -> list[int]:
    """What threads with so many turns each did, in order."""
    turns, did, inside = Turns(len(counts)), list[int](), list[int]()

    def live(number: int) -> None:
        with Seat(turns, number) as seat:
            for _ in range(counts[number]):
                with seat.turn():
                    inside.append(number)
                    assert len(inside) == 1
                    did.append(number)
                    inside.remove(number)

    threads = [threading.Thread(target=live, args=(number,)) for number in range(len(counts))]
    for thread in reversed(threads):
        thread.start()
    for thread in threads:
        thread.join()
    return did


def test_everyone_has_a_turn_before_anyone_has_two() -> None:
    assert take([3, 3, 3]) == [0, 1, 2] * 3


def test_who_has_left_is_not_waited_for() -> None:
    assert take([1, 4, 2, 0]) == [0, 1, 2, 1, 2, 1, 1]


def test_an_error_passes_the_turn_on() -> None:
    turns = Turns(2)
    with pytest.raises(ZeroDivisionError), Seat(turns, 0) as seat, seat.turn():
        raise ZeroDivisionError
    done = False
    with Seat(turns, 1) as seat, seat.turn():
        done = True
    assert done


def test_without_turns_nobody_waits() -> None:
    with Seat() as one, Seat() as other, one.turn(), other.turn():
        assert one is not other
