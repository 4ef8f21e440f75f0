"""A store that has been drained to for years: what there is to tidy costs no look at each step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ckpt.base.ids import Generation, RunName, Step
from ckpt.objects import leftovers, names
from ckpt.objects.leftovers import LOOKS, Leftovers, expired_in, may_leave_over
from ckpt.objects.sinks.file_sink import FileSink
from ckpt.plan.drains import StorePolicy
from tests.objects.sources import HEADER
from tests.objects.test_leftovers import Clock, begin

RUN = RunName(HEADER.run)
QUIET_S = 100.0
LOOK_S = QUIET_S / LOOKS


class Counting(FileSink):
    """How often a store was asked: over a network each is some 20 ms, and is paid for."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.count = 0

    def children(self, prefix: str) -> Sequence[str]:
        self.count += 1
        return super().children(prefix)

    def head(self, key: str) -> int | None:
        self.count += 1
        return super().head(key)

    def commit(self, *steps: int, counter: int = 1) -> None:
        """As far as a listing and a look for the marker see it."""
        for step in steps:
            prefix = names.generation_prefix(RUN, Step(step), Generation(1, counter))
            self.put(prefix + names.COMMITTED, b"")


@pytest.fixture
def sink(tmp_path: Path) -> Counting:
    return Counting(tmp_path)


def test_what_was_found_whole_is_not_asked_for_at_each_look(
    sink: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "WHOLE_LOOKS", 5)
    clock = Clock()
    watched = Leftovers(sink, QUIET_S, clock)
    sink.commit(*range(1, 41))
    counts = []
    for _ in range(8):
        before, clock.now_s = sink.count, clock.now_s + LOOK_S
        assert watched.found(RUN, HEADER.cluster, []) == []
        counts.append(sink.count - before)
    assert counts[0] == counts[6] == 1 + 2 * 40, "the first look, and one in so many"
    assert counts[1:6] == [1] * 5, "a listing of the steps"


def test_what_is_half_written_goes_beside_steps_that_are_whole(sink: Counting) -> None:
    clock = Clock()
    watched = Leftovers(sink, QUIET_S, clock)
    sink.commit(*range(1, 6))
    assert watched.found(RUN, HEADER.cluster, []) == []
    begin(sink)
    for _ in range(LOOKS + 1):
        clock.now_s += LOOK_S
        found = watched.found(RUN, HEADER.cluster, [])
    assert found == [(Step(HEADER.step), Generation(1, 3))]


@pytest.mark.parametrize("keep", [None, 3])
def test_nothing_is_left_over_where_two_listings_say_so(sink: Counting, keep: int | None) -> None:
    policy = StorePolicy(sink.url, keep=keep)
    for step in (10, 20, 30, 40):
        sink.commit(step)
        before = sink.count
        said = may_leave_over(sink, policy, RUN, Step(step))
        assert sink.count - before <= 2
        assert said is bool(expired_in(sink, policy, RUN, HEADER.cluster))
    sink.commit(40, counter=2)
    assert may_leave_over(sink, policy, RUN, Step(40))
