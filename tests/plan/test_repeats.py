"""A save that repeats the one before is told; one that does not, or that none can judge, is not."""

from __future__ import annotations

import pytest

from ckpt.base.ids import Rank
from ckpt.format.messages.saving import Repeats
from ckpt.format.table import Meaning, RankTable, TensorEntry
from ckpt.plan.repeats import compare_saves, fingerprints_of, is_optimizer_state, repeat_warning


def _entry(name: str, digest: int, *, offset: int = 0, rows: int = 2) -> TensorEntry:
    return TensorEntry(
        name, Meaning.SHARD, "<f4", (8,), (offset,), (rows,), (), bytes([digest]) * 16
    )


def _table(*entries: TensorEntry) -> RankTable:
    return RankTable(Rank(0), 1, entries)


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("optim/state/=0/exp_avg", True),
        ("Optimizer/#0/lr", True),
        ("optimizer_states/#0", True),
        ("opt_state/#0/mu/w", True),
        ("train/opt/x", True),
        ("w/momentum_buffer", True),
        ("model/adopted/w", False),
        ("model/option/w", False),
        ("exp_avg/w", False),
        ("w", False),
    ],
)
def test_optimizer_state_is_known_by_its_path(name: str, is_one: bool) -> None:
    assert is_optimizer_state(name) is is_one


def test_tensors_are_compared_by_name_and_box_and_empty_ones_do_not_count() -> None:
    before = fingerprints_of(
        _table(_entry("a", 1), _entry("a", 2, offset=2), _entry("opt/m", 3), _entry("z", 4, rows=0))
    )
    assert compare_saves(7, before, before) == Repeats(7, 3, 3, 1, 1)
    now = fingerprints_of(_table(_entry("a", 2), _entry("a", 2, offset=2), _entry("opt/m", 4)))
    assert compare_saves(7, before, now) == Repeats(7, 3, 1, 1, 0)
    new = fingerprints_of(_table(_entry("a", 1), _entry("b", 1)))
    assert compare_saves(7, before, new) == Repeats(7, 2, 1, 0, 0)


ALL = Repeats(3, 5, 5, 2, 2)
FROZEN = Repeats(3, 5, 4, 2, 2)
TRAINED = Repeats(3, 5, 2, 2, 0)
EMPTY = Repeats(3, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([ALL], "nothing has changed since step 3: 5 tensors on 1 rank, bit for bit the same"),
        (
            [ALL, EMPTY],
            "nothing has changed since step 3: 5 tensors on 2 ranks, bit for bit the same",
        ),
        (
            [ALL, FROZEN],
            "no optimizer state has changed since step 3: 4 tensors on 2 ranks, bit for bit "
            "the same; of all 10, 1 changed",
        ),
        ([ALL, TRAINED], ""),
        ([Repeats(3, 5, 4, 0, 0)], ""),
        ([EMPTY], ""),
        ([ALL, None], ""),
        ([ALL, Repeats(2, 5, 5, 2, 2)], ""),
        ([], ""),
    ],
)
def test_only_what_all_ranks_repeat_is_told(ranks: list[Repeats | None], text: str) -> None:
    assert repeat_warning(ranks) == text
