"""Memory that payloads share which are made again at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from ckpt.base.errors import Aborted
from ckptd.repair.memory import MemoryShares
from tests.waiting import wait_until


def never() -> bool:
    return False


def at_once() -> bool:
    """Who would wait raises Aborted."""
    return True


def keep() -> None:
    raise AssertionError("what fits stays")


def taking(take: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=take)
    thread.start()
    return thread


def test_a_hand_whose_share_is_large_enough_keeps_what_it_has() -> None:
    shares = MemoryShares(100)
    shares.take("a", 60, lambda: None, at_once)
    shares.take("a", 60, keep, at_once)
    shares.take("a", 10, keep, at_once)


def test_what_does_not_fit_waits_until_others_have_given_back() -> None:
    shares = MemoryShares(100)
    shares.take("a", 60, lambda: None, never)
    let_go, has = threading.Event(), threading.Event()

    def take() -> None:
        shares.take("b", 60, let_go.set, never)
        has.set()

    thread = taking(take)
    assert let_go.wait(10)
    assert not has.is_set()
    shares.give_back("a")
    thread.join(10)
    assert has.is_set()


def test_one_share_may_be_larger_than_all_when_it_is_alone() -> None:
    shares = MemoryShares(100)
    shares.take("a", 500, lambda: None, at_once)
    shares.take("a", 600, lambda: None, at_once)


def test_who_asks_again_comes_after_who_waits() -> None:
    shares = MemoryShares(100)
    shares.take("small", 10, lambda: None, never)
    order: list[str] = []
    waits = threading.Event()

    def take_large() -> None:
        shares.take("large", 95, waits.set, never)
        order.append("large")
        shares.give_back("large")

    thread = taking(take_large)
    assert waits.wait(10)
    # It is in line once it has let go of what it had: under the same lock.
    wait_until(lambda: bool(shares._waiting), "it waits")
    shares.take("small", 10, lambda: None, never)
    order.append("small")
    thread.join(10)
    assert order == ["large", "small"]


def test_who_waits_ends_when_it_is_stopped() -> None:
    shares = MemoryShares(100)
    shares.take("a", 60, lambda: None, never)
    with pytest.raises(Aborted):
        shares.take("b", 60, lambda: None, lambda: True)
    shares.give_back("a")
    shares.take("c", 100, lambda: None, never)
