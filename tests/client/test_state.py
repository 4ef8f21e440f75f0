"""A state comes apart into a document and leaves, and together again as it was;
all else is refused by path.
"""

from __future__ import annotations

import random
import signal
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from datetime import date, timedelta
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given

from ckpt.base.errors import Refused
from ckpt.format.table import Meaning
from ckpt.format.tree import decode_tree, encode_tree
from ckpt_client.save.shards import Box, Replicated, Shard
from ckpt_client.save.state import flatten, unflatten
from tests.client import trees
from tests.client.bits import bits_of


@given(trees.states)
def test_a_state_comes_back_with_its_types_its_order_and_every_bit(state: object) -> None:
    flat = flatten(state)
    arrays = {leaf.name: leaf.array for leaf in flat.leaves}
    assert len(arrays) == len(flat.leaves)
    root = decode_tree(encode_tree(flat.root))
    assert bits_of(unflatten(root, arrays.__getitem__)) == bits_of(state)


@given(trees.states)
def test_leaves_are_sorted_by_name(state: object) -> None:
    names = [leaf.name for leaf in flatten(state).leaves]
    assert names == sorted(names)


class _Color(IntEnum):
    RED = 1


class _Array:
    """Something of another library."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        return self._array


class _Exported:
    """A tensor that only DLPack can read."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __dlpack__(self, **options: object) -> object:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> object:
        return self._array.__dlpack_device__()


class _Series(_Array):
    """Like pandas', which gives its values without its index."""

    __module__ = "pandas.core.series"


class _Column(_Series):
    """A user's own kind of it."""


_Point = namedtuple("_Point", "x y")
_structured = np.zeros(2, [("a", "<i4")])
_itself: list[object] = []
_itself.append(_itself)


@pytest.mark.parametrize(
    "leaf",
    [
        object(), {1, 2}, lambda: 0, _Point(1, 2), OrderedDict(a=1), _Color.RED, bytearray(b"x"), range(3),
        np.array([object()]), _structured, np.ma.masked_array([1.0], [True]), np.ndarray, int, {1.5: 0},
        {None: 0}, {(1, 2.0): 0}, {b"k": 0}, "\ud800", {"\ud800": 1}, Box((0,), (1,)),
        _Array(np.array([object()])), Replicated(object()), _Series(np.zeros(2)),
        _Column(np.zeros(2)), np.bytes_(b"a\0"), np.str_("a\0"),
        Replicated(Shard(np.zeros(2), (2,), (0,)).array.__class__), _itself,
    ],
    ids=lambda leaf: type(leaf).__name__,
)  # fmt: skip
def test_what_cannot_come_back_equal_is_refused_by_its_path(leaf: object) -> None:
    with pytest.raises(Refused, match=r"layers/.*0"):
        flatten({"layers": [leaf]})


class _Point(NamedTuple):
    x: int
    y: int


@dataclass
class _Settings:
    rate: float = 0.1


class _Module:
    """As torch's modules and optimizers."""

    def state_dict(self) -> OrderedDict[str, float]:
        return OrderedDict(a=1.0)


@pytest.mark.parametrize(
    ("value", "instead"),
    [
        (_Module(), "save its state_dict(), with ckpt_torch.save"),
        (_Module().state_dict(), "ckpt_torch.save takes a state_dict() as it is"),
        ({1}, "write sorted(it)"),
        (Path("/data"), "write str(it)"),
        (signal.SIGTERM, "write its .value"),
        (date(2026, 11, 30), "write it.isoformat()"),
        (timedelta(hours=1), "write it.total_seconds()"),
        (bytearray(b"x"), "write bytes(it)"),
        (_Point(1, 2), "write tuple(it)"),
        (_Settings(), "write dataclasses.asdict(it)"),
        (random.Random(1), "write it.getstate()"),
        (np.random.default_rng(1), "write it.bit_generator.state"),
        (_Settings, "use dict, list, "),
        (len, "use dict, list, "),
    ],
)
def test_who_saves_what_cannot_be_stored_hears_what_can(value: object, instead: str) -> None:
    with pytest.raises(Refused) as refused:
        flatten(value)
    assert instead in refused.value.hint


@pytest.mark.parametrize("kind", [_Array, _Exported])
def test_a_foreign_array_is_stored_by_its_protocol(kind: type[_Array] | type[_Exported]) -> None:
    array = np.arange(6.0).reshape(2, 3)
    (leaf,) = flatten({"a": kind(array)}).leaves
    assert bits_of(leaf.array) == bits_of(array)


def test_numpy_scalars_are_arrays_without_axes() -> None:
    (leaf,) = flatten({"a": np.float64(1.5)}).leaves
    assert (leaf.array.shape, leaf.dtype) == ((), "<f8")


def test_a_plain_leaf_is_the_ranks_own_and_a_replicated_one_is_not() -> None:
    state = {"own": np.zeros(2), "same": Replicated({"a": np.ones(2), "n": 3}), "s": 4}
    flat = flatten(state)
    assert {leaf.name: leaf.meaning for leaf in flat.leaves} == {
        "own": Meaning.OWN,
        "same/a": Meaning.REPLICATED,
        "same/n": Meaning.REPLICATED,
    }


def test_replicated_scalars_that_differ_have_other_bytes() -> None:
    def scalar_bytes(value: object) -> bytes:
        (leaf,) = flatten(Replicated({"n": value})).leaves
        return leaf.array.tobytes()

    assert scalar_bytes(1) == scalar_bytes(1)
    assert len({scalar_bytes(value) for value in (1, True, 1.0, "1", None)}) == 5


def test_replicated_true_makes_all_plain_leaves_replicas_and_leaves_shards_alone() -> None:
    shard = Shard(np.zeros((2, 2)), (4, 2), (2, 0))
    flat = flatten({"a": np.zeros(2), "s": shard}, replicated=True)
    meanings = [(leaf.meaning, leaf.global_shape, leaf.offset) for leaf in flat.leaves]
    assert meanings == [
        (Meaning.REPLICATED, (2,), (0,)),
        (Meaning.SHARD, (4, 2), (2, 0)),
    ]


@pytest.mark.parametrize(
    ("shape", "global_shape", "offset"),
    [((2, 2), (4, 2), (3, 0)), ((2,), (4, 2), (0, 0)), ((2, 2), (4, 2), (0,)), ((2,), (4,), (-1,))],
)
def test_a_shard_must_lie_within_its_global_tensor(
    shape: tuple[int, ...], global_shape: tuple[int, ...], offset: tuple[int, ...]
) -> None:
    with pytest.raises(Refused):
        Shard(np.zeros(shape), global_shape, offset)


def test_a_shard_of_something_without_a_shape_is_refused() -> None:
    with pytest.raises(Refused, match="list"):
        Shard([1.0], (1,), (0,))


def test_leaves_are_views_not_copies() -> None:
    array = np.zeros(4)
    (leaf,) = flatten([array]).leaves
    array[0] = 7
    assert leaf.array[0] == 7
