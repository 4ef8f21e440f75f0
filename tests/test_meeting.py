"""One starts it for all, and ends it when nobody uses it any more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

from tests.meeting import shared


class Shop:
    """What is started, and who has ended it."""

    def __init__(self, meeting: Path) -> None:
        self.meeting = meeting
        self.opened = 0
        self.closed = 0

    @contextmanager
    def start(self) -> Iterator[str]:
        self.opened += 1
        yield f"number {self.opened}"
        self.closed += 1

    def use(self, inside: Event, leave: Event) -> None:
        with shared(self.meeting, "shop", self.start):
            inside.set()
            assert leave.wait(30)


def test_who_comes_first_starts_it_and_stays_until_the_others_have_gone(tmp_path: Path) -> None:
    shop, inside, leave = Shop(tmp_path), Event(), Event()
    first = Thread(target=shop.use, args=(inside, leave))
    first.start()
    assert inside.wait(30)
    with shared(tmp_path, "shop", shop.start) as words:
        assert words == "number 1"
        leave.set()
        first.join(0.1)
        assert first.is_alive()
        assert shop.closed == 0
    first.join(30)
    assert (shop.opened, shop.closed) == (1, 1)


def test_who_comes_when_it_has_ended_starts_another(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    for number in (1, 2):
        with shared(tmp_path, "shop", shop.start) as words:
            assert words == f"number {number}"
        assert shop.closed == number
