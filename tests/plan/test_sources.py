"""Lost columns are made again from those that gave least."""

from __future__ import annotations

from collections import Counter

from ckpt.base.ids import ColumnNumber, TargetId
from ckpt.plan.sources import SourceLoads

K, N = 4, 6


def holders(*names: int) -> list[TargetId | None]:
    return [TargetId(f"t{number}") for number in names]


def read(loads: SourceLoads, columns: list[TargetId | None], *lost: int) -> set[TargetId | None]:
    """Who is read for one payload."""
    numbers = set(map(ColumnNumber, lost))
    spared = loads.choose(columns, numbers, K, 1000)
    assert not spared & numbers
    return {columns[j] for j in range(N) if j not in spared | numbers}


def test_of_payloads_with_the_same_columns_all_others_give_the_same() -> None:
    loads = SourceLoads()
    counts = Counter(id for _ in range(200) for id in read(loads, holders(0, 1, 2, 3, 4, 5), 2))
    assert sorted(counts.values()) == [160] * 5


def test_in_a_group_that_is_wider_than_a_payload_too() -> None:
    loads = SourceLoads()
    counts: Counter[TargetId | None] = Counter()
    for number in range(210):
        names = [(number + j) % 7 for j in range(N)]
        if 3 in names:
            counts.update(read(loads, holders(*names), names.index(3)))
    assert max(counts.values()) <= 1.02 * sum(counts.values()) / 6


def test_where_only_k_are_left_all_of_them_are_read() -> None:
    loads = SourceLoads()
    assert len(read(loads, holders(0, 1, 2, 3, 4, 5), 0, 5)) == K
    columns = [*holders(0, 1, 2, 3, 4), None]
    assert loads.choose(columns, {ColumnNumber(0), ColumnNumber(1)}, K, 1) == frozenset()


def test_one_that_is_new_does_not_make_up_for_what_others_gave_before() -> None:
    loads = SourceLoads()
    for _ in range(100):
        read(loads, holders(0, 1, 2, 3, 4, 5), 0)
    counts = Counter(id for _ in range(100) for id in read(loads, holders(9, 1, 2, 3, 4, 5), 5))
    assert max(counts.values()) - min(counts.values()) <= 2
