"""Trying again ends at its deadline; a pace keeps its rate and stands aside. No clock is real
here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from ckpt.base.errors import Aborted, NotFound, Unavailable
from ckpt.objects.pace import WritePace
from ckpt.objects.sinks.retry import Patience, retried


@dataclass
class Clock:
    """Sleeping takes exactly as long as it was asked to."""

    now_s: float = 100.0
    rests_s: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.rests_s.append(seconds)
        self.now_s += seconds

    def patience(self, total_s: float) -> Patience:
        return Patience(total_s, 0.1, 1.0, lambda: self.now_s, self.sleep, lambda: 1.0)


def failing(*errors: Exception) -> Iterator[Exception]:
    yield from errors


def test_what_may_pass_is_tried_again_with_growing_rests() -> None:
    clock, left = Clock(), failing(*[Unavailable("busy")] * 5)

    def once() -> str:
        for error in left:
            raise error
        return "done"

    assert retried("put", once, clock.patience(60.0)) == "done"
    assert clock.rests_s == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0])


def test_the_deadline_counts_all_attempts() -> None:
    clock = Clock()

    def once() -> str:
        clock.now_s += 3.0
        raise Unavailable("503 SlowDown")

    with pytest.raises(Unavailable, match="put x failed for 10 s, last with: 503 SlowDown"):
        retried("put x", once, clock.patience(10.0))
    assert clock.now_s - 100.0 <= 10.0 + 3.0


def test_what_will_not_change_is_told_at_once() -> None:
    clock = Clock()

    def once() -> str:
        raise NotFound("nothing there")

    with pytest.raises(NotFound):
        retried("get", once, clock.patience(60.0))
    assert clock.rests_s == []


def test_jitter_shortens_a_rest_by_at_most_half() -> None:
    clock, left = Clock(), failing(Unavailable("busy"))
    patience = Patience(60.0, 0.1, 1.0, lambda: clock.now_s, clock.sleep, lambda: 0.0)

    def once() -> int:
        for error in left:
            raise error
        return 1

    retried("get", once, patience)
    assert clock.rests_s == pytest.approx([0.05])


def test_a_pace_keeps_its_rate() -> None:
    clock = Clock()
    pace = WritePace(1000.0, clock=lambda: clock.now_s, sleep=clock.sleep)
    for _ in range(10):
        pace.wait_turn(1000)
    # A second's credit is there at the beginning, and the last one is not waited for.
    assert clock.now_s - 100.0 == pytest.approx(8.0)


def test_idle_time_is_not_saved_up() -> None:
    clock = Clock()
    pace = WritePace(1000.0, clock=lambda: clock.now_s, sleep=clock.sleep)
    pace.wait_turn(1000)
    clock.now_s += 3600
    for _ in range(5):
        pace.wait_turn(1000)
    assert sum(clock.rests_s) == pytest.approx(3.0)


def test_a_burst_goes_first() -> None:
    clock = Clock()
    pace = WritePace(
        None, lambda: clock.now_s < 105.0, clock=lambda: clock.now_s, sleep=clock.sleep
    )
    pace.wait_turn(1)
    assert 105.0 <= clock.now_s < 106.0


def test_a_stopped_writer_ends_at_its_next_turn_also_in_a_burst() -> None:
    clock = Clock()
    pace = WritePace(
        None, lambda: True, lambda: clock.now_s > 101.0, lambda: clock.now_s, clock.sleep
    )
    with pytest.raises(Aborted):
        pace.wait_turn(1)


@pytest.mark.parametrize("rate", [None, 1e6])
def test_who_waits_goes_on_as_soon_as_the_rate_is_higher(rate: float | None) -> None:
    clock = Clock()

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if clock.now_s > 103.0:
            pace.bytes_per_s = rate

    pace = WritePace(1.0, clock=lambda: clock.now_s, sleep=sleep)
    pace.wait_turn(1000)
    pace.wait_turn(1000)
    assert clock.now_s < 104.0


def test_a_rate_that_falls_counts_for_what_went_last() -> None:
    """Nothing is left over of a time without a rate, and of a higher one a second at the new."""
    clock = Clock()
    pace = WritePace(None, clock=lambda: clock.now_s, sleep=clock.sleep)
    pace.wait_turn(1000)
    pace.bytes_per_s = 100.0
    pace.wait_turn(0)
    assert sum(clock.rests_s) == pytest.approx(10.0)
    pace.bytes_per_s = 1e6
    clock.now_s += 3600
    pace.wait_turn(0)
    pace.bytes_per_s = 100.0
    pace.wait_turn(1100)
    pace.wait_turn(0)
    assert sum(clock.rests_s) == pytest.approx(20.0)


def test_who_waits_for_its_turn_ends_when_all_does() -> None:
    clock = Clock()
    pace = WritePace(
        1.0, is_stopped=lambda: clock.now_s > 101.0, clock=lambda: clock.now_s, sleep=clock.sleep
    )
    pace.wait_turn(1000)
    with pytest.raises(Aborted):
        pace.wait_turn(1)
    assert clock.now_s < 102.0
