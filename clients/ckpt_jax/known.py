"""Is this state of the form that was saved last? Then its arrays are collected, and copied as they
are.

A training's second save has the nodes, types, shapes and shardings of its first. JAX takes it apart
in C, and lists are compared: no leaf is named, and none is declared.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from operator import attrgetter
from typing import Final, cast
from weakref import WeakKeyDictionary

import jax
import numpy as np
from jax import tree_util

from ckpt.format.tree import Scalar
from ckpt_client.save.forms import Found
from ckpt_client.save.packing import PackingPlan, Picker, StateLayout, picker
from ckpt_client.save.state import encoded_scalar
from ckpt_client.store import Store
from ckpt_jax.trees import is_plain, rebuilt

_dtype_of: Final = attrgetter("dtype")
_shape_of: Final = attrgetter("shape")
_sharding_of: Final = attrgetter("sharding")


class _Held(enum.Enum):
    """What a leaf adds to what is found."""

    ITSELF = enum.auto()
    PLAIN = enum.auto()
    """A value for the document, and that value as a small array."""
    ELSEWHERE = enum.auto()
    """All of it is stored by other processes: None in the document."""


Held = _Held | tuple[int, ...]
"""Or the numbers of the parts of an array that this process stores, among those it can address."""


@dataclass(frozen=True, slots=True, eq=False)
class KnownState:
    """The form of a store's last save; it holds no array."""

    nodes: tree_util.PyTreeDef
    kinds: list[type]
    """Of all leaves, in JAX's order."""
    arrays: Picker
    """Takes numpy's and JAX's."""
    jax_arrays: Picker
    dtypes: list[object]
    shapes: list[tuple[int, ...]]
    shardings: list[jax.sharding.Sharding]
    """Of `jax_arrays`."""
    walk: list[tuple[int, Held]]
    """(number of a leaf, what it adds), in the order of the document."""
    layout: StateLayout

    def packing(self, state: object) -> PackingPlan | None:
        """How to save the state; None when it has another form, or an array of it is gone."""
        # Nodes compare what users put into them, and JAX cannot sort all keys.
        with suppress(Exception):
            leaves, nodes = _taken_apart(state)
            if nodes == self.nodes and self._fits(leaves):
                packing = self.layout.packing(self._found(leaves))
                # The size of a plain value's array is that of its text.
                if packing and tuple(map(_shape_of, packing.arrays)) == self.layout.shapes:
                    return packing
        return None

    def _fits(self, leaves: list[object]) -> bool:
        if list(map(type, leaves)) != self.kinds:
            return False
        arrays, ours = self.arrays(leaves), cast(Sequence[jax.Array], self.jax_arrays(leaves))
        return (
            list(map(_dtype_of, arrays)) == self.dtypes
            and list(map(_shape_of, arrays)) == self.shapes
            and list(map(_sharding_of, ours)) == self.shardings
            and not any(array.is_deleted() for array in ours)
        )

    def _found(self, leaves: list[object]) -> Found:
        found = Found()
        for number, held in self.walk:
            leaf = leaves[number]
            if held is _Held.ITSELF:
                found.arrays.append(leaf)
            elif held is _Held.PLAIN:
                found.scalars.append(cast(Scalar, leaf))
                found.arrays.append(encoded_scalar(cast(Scalar, leaf)))
            elif held is _Held.ELSEWHERE:
                found.scalars.append(None)
            else:
                found.arrays += [cast(jax.Array, leaf).addressable_data(n) for n in held]
        return found


_known: WeakKeyDictionary[Store, KnownState] = WeakKeyDictionary()


def recall(store: Store, rank: int, world_size: int) -> KnownState | None:
    """What is known of this process's last save there."""
    known = _known.get(store)
    fits = known is not None and (known.layout.rank, known.layout.world_size) == (rank, world_size)
    return known if fits else None


def remember(store: Store, state: object, packing: PackingPlan) -> None:
    """Keep the form of what was just laid out, or nothing when it is not one of ours."""
    _known.pop(store, None)
    with suppress(Exception):  # Nodes of users may take nothing but arrays.
        known = _learnt(state, packing.layout)
        again = known.packing(state) if known is not None else None
        if known is not None and again is not None and _same(again, packing):
            _known[store] = known


def _learnt(state: object, layout: StateLayout) -> KnownState | None:
    leaves, nodes = _taken_apart(state)
    if not all(map(_is_known, leaves)):
        return None
    arrays = tuple(n for n, leaf in enumerate(leaves) if not is_plain(leaf))
    ours = tuple(n for n, leaf in enumerate(leaves) if isinstance(leaf, jax.Array))
    picked, picked_ours = picker(arrays)(leaves), picker(ours)(leaves)
    # Of each leaf, when the document comes to it: dicts are in their own order there.
    numbers = count()
    turns, _ = _taken_apart(rebuilt(state, lambda name, leaf: next(numbers)))
    order = sorted(range(len(leaves)), key=cast(list[int], turns).__getitem__)
    return KnownState(
        nodes=nodes,
        kinds=list(map(type, leaves)),
        arrays=picker(arrays),
        jax_arrays=picker(ours),
        dtypes=list(map(_dtype_of, picked)),
        shapes=list(map(_shape_of, picked)),
        shardings=list(map(_sharding_of, picked_ours)),
        walk=[(number, _held(leaves[number])) for number in order],
        layout=layout,
    )


def _taken_apart(state: object) -> tuple[list[object], tree_util.PyTreeDef]:
    """None is a leaf here, as everywhere in this package."""
    return tree_util.tree_flatten(state, is_leaf=lambda node: node is None)


def _is_known(leaf: object) -> bool:
    return is_plain(leaf) or type(leaf) is np.ndarray or isinstance(leaf, jax.Array)


def _held(leaf: object) -> Held:
    if is_plain(leaf):
        return _Held.PLAIN
    if not isinstance(leaf, jax.Array):
        return _Held.ITSELF
    if len(leaf.sharding.device_set) == 1 and leaf.is_fully_addressable:
        return _Held.ITSELF
    parts = [n for n, shard in enumerate(leaf.addressable_shards) if shard.replica_id == 0]
    return tuple(parts) or _Held.ELSEWHERE


def _same(one: PackingPlan, other: PackingPlan) -> bool:
    """Whether both plans save the same."""
    pairs = zip(one.arrays, other.arrays, strict=True)
    return one.document == other.document and all(
        (_shape_of(a), _dtype_of(a)) == (_shape_of(b), _dtype_of(b)) for a, b in pairs
    )
