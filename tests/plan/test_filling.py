"""Targets of unequal room: all of it can be used, fill levels come together, bursts stay even."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations
from random import Random
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from ckpt.base.ids import TargetId
from ckpt.erasure.code import Code
from ckpt.plan.filling import DomainRooms, needed, weight
from ckpt.plan.placement import Level, place
from ckpt.plan.seating import Candidate
from tests.landing import examples
from tests.plan.clusters import candidate

MiB = 1 << 20


class Disks:
    """A cluster that is filled: what is placed takes room, and bursts begin with no load."""

    def __init__(
        self, columns: Sequence[int], domain: Callable[[int], str], usable: Sequence[int] = ()
    ) -> None:
        """`columns`: so many have room on each; `usable`: on each that is empty."""
        self.now: dict[TargetId, Candidate] = {}
        for index, count in enumerate(columns):
            made = candidate(index, domain(index), bytes_free=count * MiB)
            size = usable[index] if usable else count
            self.now[made.target] = replace(made, usable_bytes=size * MiB)
        self.turn = 0
        self.burst: Counter[TargetId] = Counter()

    def save(self, code: Code, level: Level = "host", max_per_domain: int = 1) -> bool:
        """One payload; whether all its columns found a place."""
        self.turn += 1
        held = list(self.now.values())
        columns = place(code, MiB, held, level, max_per_domain, 0, self.turn).columns
        if None in columns:
            return False
        for target in columns:
            assert target is not None
            c = self.now[target]
            self.burst[target] += 1
            self.now[target] = replace(
                c, bytes_free=c.bytes_free - MiB, load_bytes=c.load_bytes + MiB
            )
        return True

    def end_burst(self) -> None:
        self.burst.clear()
        self.now = {id: replace(c, load_bytes=0) for id, c in self.now.items()}

    def fill(self, code: Code, payloads: int, level: Level = "host", most: int = 1) -> int:
        """Bursts of so many payloads until one finds no place; so many did."""
        count = 0
        while self.save(code, level, most):
            count += 1
            if count % payloads == 0:
                self.end_burst()
        return count

    def levels(self) -> list[float]:
        """How full each is."""
        return [1 - c.bytes_free / c.usable_bytes for c in self.now.values()]


def alone(index: int) -> str:
    return f"w/r/h{index}/d"


def by_pairs(index: int) -> str:
    return f"w/r/h{index // 2}/d{index}"


def best(columns: Sequence[int], domain: Callable[[int], str], n: int, most: int) -> int:
    """The most payloads, by trying: a domain is of use for `most` columns of each."""

    def fits(payloads: int) -> bool:
        use: Counter[str] = Counter()
        for index, count in enumerate(columns):
            use[domain(index).rpartition("/")[0]] += min(count, payloads)
        return sum(min(each, most * payloads) for each in use.values()) >= n * payloads

    return max(filter(fits, range(sum(columns) // n + 1)))


UNEQUAL = [
    ([5, 5, 5, 5, 5, 5, 5], Code(4, 2), alone, 1),
    ([9, 1, 1, 1, 1, 1, 1, 1], Code(2, 1), alone, 1),
    ([40, 40, 40, 40, 10, 10, 10], Code(4, 2), alone, 1),
    ([100, 50, 50, 20, 20, 10, 10, 0], Code(2, 1), alone, 1),
    ([1, 1, 2], Code(1, 1), alone, 1),
    ([30, 7, 11, 3, 19, 23, 2, 5, 13, 17], Code(4, 2), alone, 1),
    ([30, 7, 11, 3, 19, 23, 2, 5, 13, 17, 30, 1], Code(3, 1), by_pairs, 1),
    ([30, 0, 1, 1, 1, 1, 1, 1, 30, 30, 10, 10], Code(1, 1), by_pairs, 1),
    ([20, 20, 40, 40, 10, 10, 5, 50], Code(4, 2), by_pairs, 2),
]  # fmt: skip


@pytest.mark.parametrize("burst", [1, 8, 64])
@pytest.mark.parametrize(("columns", "code", "domain", "most"), UNEQUAL)
def test_all_room_that_the_domain_rule_allows_is_filled_before_a_save_is_refused(
    columns: list[int], code: Code, domain: Callable[[int], str], most: int, burst: int
) -> None:
    assert Disks(columns, domain).fill(code, burst, "host", most) == best(
        columns, domain, code.n, most
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 25), min_size=3, max_size=12), st.sampled_from((1, 5, 100)))
def test_no_room_is_wasted_whatever_the_targets_have(columns: list[int], burst: int) -> None:
    code = Code(2, 1)
    assert Disks(columns, alone).fill(code, burst) == best(columns, alone, code.n, 1)


def test_a_cluster_of_groups_is_filled_whole() -> None:
    random = Random(4)
    columns = [random.choice((4, 8, 16)) for _ in range(96)]
    code = Code(4, 2)
    filled = Disks(columns, alone).fill(code, 32)
    # What is left in the groups at the end is joined across them.
    assert filled == best(columns, alone, code.n, 1)


def test_targets_of_one_device_fill_its_space_as_one() -> None:
    held = [
        replace(candidate(i, f"w/r/h/d{i // 4}", device=f"d{i // 4}", bytes_free=space * MiB))
        for i, space in enumerate([4, 4, 4, 4, 40, 40, 40, 40])
    ]
    placed = place(Code(1, 1), MiB, held, "target", 1, 0, 1).columns
    assert {held[int(t[1:])].device for t in placed if t} == {"d0", "d1"}


def test_small_and_large_targets_are_full_at_the_same_time() -> None:
    disks = Disks([100] * 5 + [400] * 5, alone)
    spans = []
    while disks.save(Code(2, 1)):
        if disks.turn % 20 == 0:
            disks.end_burst()
            levels = disks.levels()
            spans.append((fmean(levels), max(levels) - min(levels)))
    # Even at first, so the small ones go ahead; then the large ones come after them.
    assert max(span for mean, span in spans if mean < 0.2) > 0.2
    assert max(span for mean, span in spans if mean > 0.9) < 0.15


def test_a_burst_is_even_while_all_have_plenty_of_room() -> None:
    disks = Disks([900, 600, 700, 1000, 600, 1000, 900], alone, [1000] * 7)
    for _ in range(70):
        assert disks.save(Code(2, 1))
    assert max(disks.burst.values()) - min(disks.burst.values()) <= 1


@pytest.mark.parametrize("free", [1000, 400, 100, 30])
@pytest.mark.parametrize(("targets", "code"), [(7, Code(4, 2)), (12, Code(5, 1)), (50, Code(4, 2))])
def test_equal_targets_get_alike_however_full_they_are(free: int, targets: int, code: Code) -> None:
    disks = Disks([free] * targets, alone, [1000] * targets)
    for _ in range(20 * targets // code.n):
        assert disks.save(code)
    assert max(disks.burst.values()) - min(disks.burst.get(id, 0) for id in disks.now) <= 1


@pytest.mark.parametrize("payloads", [1, 200])
@pytest.mark.parametrize(
    ("free", "times"), [(900, 1.0), (500, 1.0), (300, 2.0), (200, 4.0), (100, 8.0)]
)
def test_an_empty_target_gets_more_as_the_others_are_fuller(
    free: int, times: float, payloads: int
) -> None:
    """In bursts of one payload as in large ones: then loads do not tell who is next."""
    disks = Disks([1000] + [free] * 19, alone, [1000] * 20)
    first, *others = disks.now
    got: Counter[TargetId] = Counter()
    for _ in range(400 // payloads):
        for _ in range(payloads):
            assert disks.save(Code(1, 1))
        got.update(disks.burst)
        for id in disks.now:
            room = 1000 if id == first else free
            disks.now[id] = replace(disks.now[id], bytes_free=room * MiB)
        disks.end_burst()
    assert got[first] / fmean(got[id] for id in others) == pytest.approx(times, rel=0.2)


def test_a_group_that_has_more_room_gets_more_payloads() -> None:
    ordered = sorted(range(48), key=lambda i: f"h{i:02}")
    free = [100 if i % 2 else 800 for i in ordered]
    disks = Disks(free, lambda i: f"w/r/h{i:02}/d", [1000] * 48)
    for _ in range(100):
        assert disks.save(Code(4, 2))
        disks.end_burst()
    disks = Disks(free, lambda i: f"w/r/h{i:02}/d", [1000] * 48)
    for _ in range(60):
        assert disks.save(Code(4, 2))
    got = [disks.burst.get(id, 0) for id in disks.now]
    assert sum(got[::2]) > 4 * sum(got[1::2]) > 0


def test_what_is_made_again_goes_where_there_is_room() -> None:
    disks = Disks([10, 0, 900, 800], alone, [1000] * 4)
    assert all(disks.save(Code(1, 0)) for _ in range(20))
    assert disks.burst["t0000"] == disks.burst["t0001"] == 0


@pytest.mark.parametrize(
    ("room", "share", "weighs"),
    [
        (100, 1.0, 1.0),
        (1, 0.5, 1.0),
        (100, 0.01, 1.0),
        (80, 0.01, 1.0),
        (40, 0.25, 0.5),
        (40, 0.1, 0.5),
        (40, 0.375, 0.75),
        (0, 0.0, 1e-6),
    ],
)
def test_what_a_target_weighs(room: int, share: float, weighs: float) -> None:
    assert weight(room, 100, share) == pytest.approx(weighs)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.integers(0, 6), min_size=2, max_size=6))
def test_who_is_not_needed_may_be_left_out(rooms: list[int]) -> None:
    """Every choice that takes the needed ones loses one payload of those to come, never two."""
    n = 2
    left = [room for room in rooms if room]
    domains = [DomainRooms((room,), 1) for room in left]
    if len(left) < n:
        return
    most = best(left, alone, n, 1)
    first = {i for i, some in enumerate(needed(domains, n)) if some}
    for chosen in combinations(range(len(left)), n):
        if len(first & set(chosen)) >= min(n, len(first)):
            after = [room - (i in chosen) for i, room in enumerate(left)]
            assert best(after, alone, n, 1) >= most - 1


def test_nobody_is_needed_among_many_that_are_alike() -> None:
    assert needed([DomainRooms((50,), 1)] * 24, 6) == [frozenset()] * 24
    one = [DomainRooms((math.ceil(24 * 50 / 5),), 1), *[DomainRooms((50,), 1)] * 24]
    assert needed(one, 6) == [frozenset({0}), *[frozenset()] * 24]
