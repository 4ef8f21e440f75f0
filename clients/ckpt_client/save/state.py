"""What does the caller's tree hold? A walk that takes it apart,
and the one that puts it together again.

Goals
- Everything that cannot come back equal is refused by its path, before a byte is staged: no pickle.
- No array is copied here; leaves are views of the caller's memory.

A leaf below Replicated (or any plain leaf with `replicated=True`) is declared as replicated.
Scalars stay in the tree document; a replicated scalar is declared besides as a small tensor of
bytes (its own encoded node), so that replicas which differ in a scalar are found like any others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

import msgspec
import numpy as np

from ckpt.base.errors import Refused
from ckpt.base.limits import TREE_DEPTH_MAX
from ckpt.format.dtypes import dtype_name
from ckpt.format.table import Meaning
from ckpt.format.tree import (
    DictNode,
    Key,
    LeafNode,
    ListNode,
    Node,
    Scalar,
    ScalarNode,
    SequenceIndex,
    TupleNode,
    encode_tree,
    step_text,
)
from ckpt_client.save.arrays import ARRAYS, AnyArray, as_array, shown
from ckpt_client.save.shards import Replicated, Shard, Shards, check_box

SCALAR_DTYPE: Final = np.dtype("u1")
SCALARS: Final = frozenset((bool, int, float, complex, str, bytes, type(None)))


class Leaf(msgspec.Struct, frozen=True, gc=False):
    """One tensor of this rank: what it means, and a view of its bytes."""

    name: str
    meaning: Meaning
    dtype: str
    array: AnyArray
    """Any strides; C order of its elements is what is stored."""
    global_shape: tuple[int, ...]
    offset: tuple[int, ...]
    holders: tuple[int, ...] = ()
    """Ranks that declare the same box and share its writing; empty when this one stores it whole.
    """


@dataclass(frozen=True, slots=True)
class FlatState:
    """A tree taken apart."""

    root: Node
    leaves: tuple[Leaf, ...]
    """Sorted by name and offset; only boxes of one tensor share a name."""
    order: tuple[int, ...]
    """order[i] is the place of leaves[i] in the walk: depth first, in the containers' own order."""

    def walked(self) -> list[object]:
        """The leaves' arrays in the order of the walk."""
        found: list[object] = [None] * len(self.leaves)
        for place, leaf in zip(self.order, self.leaves, strict=True):
            found[place] = leaf.array
        return found


def flatten(state: object, *, replicated: bool = False) -> FlatState:
    """The tree's document and leaves. Raises Refused naming the path of what cannot be stored."""
    leaves: list[Leaf] = []
    root = _Walk(leaves).visit(state, "", 0, replicated)
    names = [leaf.name for leaf in leaves]
    order = sorted(range(len(leaves)), key=names.__getitem__)
    if len(set(names)) < len(names):  # Boxes of one tensor.
        order.sort(key=lambda number: (names[number], leaves[number].offset))
    return FlatState(root, tuple(leaves[n] for n in order), tuple(order))


def unflatten(root: Node, leaf: Callable[[str], object]) -> object:
    """The tree again: dicts with their keys' types and order, lists, tuples, scalars;
    `leaf(name)` gives the rest.
    """
    match root:
        case DictNode(items):
            return {
                key: leaf(node.name) if type(node) is LeafNode else unflatten(node, leaf)
                for key, node in items
            }
        case ListNode(items):
            return [unflatten(node, leaf) for node in items]
        case TupleNode(items):
            return tuple(unflatten(node, leaf) for node in items)
        case ScalarNode(value):
            return value
        case LeafNode(name):
            return leaf(name)


class _Walk:
    """I visit a tree once, depth first, and collect its leaves."""

    def __init__(self, leaves: list[Leaf]) -> None:
        self._leaves = leaves

    def visit(self, value: object, where: str, depth: int, replicated: bool) -> Node:
        """where: the value's path as text, which names a tensor; depth: its steps."""
        if depth > TREE_DEPTH_MAX:
            raise too_deep(where)
        kind = type(value)
        if kind in ARRAYS:  # First, since a state has more of them than of all else.
            return self._array(cast(AnyArray, value), where, replicated)
        if kind is dict:
            items = cast(dict[object, object], value)
            return DictNode(self._entries(items, where, depth, replicated))
        if kind is list:
            return ListNode(self._items(cast(list[object], value), where, depth, replicated))
        if kind is tuple:
            values = cast(tuple[object, ...], value)
            return TupleNode(self._items(values, where, depth, replicated))
        if kind in SCALARS:
            return self._scalar(value, where, replicated)
        if isinstance(value, Replicated):
            return self.visit(value.tree, where, depth, True)
        if isinstance(value, Shard):
            return self._shard(value, where)
        if isinstance(value, Shards):
            nodes = [self._shard(box, where) for box in value.boxes]
            return nodes[0]
        return self._array(as_array(value, where), where, replicated)

    def _entries(
        self, value: dict[object, object], where: str, depth: int, replicated: bool
    ) -> tuple[tuple[Key, Node], ...]:
        above, is_deep = f"{where}/" if depth else "", depth >= TREE_DEPTH_MAX
        entries: list[tuple[Key, Node]] = []
        for some, child in value.items():
            key = _checked_key(some, where)
            name = above + step_text(key)
            # Nearly all are arrays, or copies of arrays. (A call of `cast` costs as much as these.)
            is_copy = type(child) is Replicated
            found = child.tree if is_copy else child  # type: ignore[attr-defined]
            if type(found) in ARRAYS and not is_deep:
                array: AnyArray = found  # type: ignore[assignment]
                node: Node = self._array(array, name, is_copy or replicated)
            else:
                node = self.visit(child, name, depth + 1, replicated)
            entries.append((key, node))
        return tuple(entries)

    def _items(
        self,
        values: list[object] | tuple[object, ...],
        where: str,
        depth: int,
        replicated: bool,
    ) -> tuple[Node, ...]:
        above = f"{where}/" if depth else ""
        return tuple(
            [
                self.visit(child, above + step_text(SequenceIndex(number)), depth + 1, replicated)
                for number, child in enumerate(values)
            ]
        )

    def _scalar(self, value: object, where: str, replicated: bool) -> Node:
        assert value is None or isinstance(value, bool | int | float | complex | str | bytes)
        if isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError:
                raise Refused(f"{shown(where)}: the text is not valid Unicode") from None
        node = ScalarNode(value)
        if replicated:
            encoded = encoded_scalar(value)
            self._leaf(encoded, where, Meaning.REPLICATED, encoded.shape, (0,))
        return node

    def _array(self, array: AnyArray, where: str, replicated: bool) -> Node:
        meaning = Meaning.REPLICATED if replicated else Meaning.OWN
        shape = array.shape
        return self._leaf(array, where, meaning, shape, (0,) * len(shape))

    def _shard(self, shard: Shard, where: str) -> Node:
        array = as_array(shard.array, where)
        try:
            check_box("Shard", array.shape, shard.global_shape, shard.offset)
        except Refused as error:
            raise Refused(f"{shown(where)}: {error.message}") from None
        whole, offset = tuple(shard.global_shape), tuple(shard.offset)
        return self._leaf(array, where, Meaning.SHARD, whole, offset, shard.holders)

    def _leaf(
        self,
        array: AnyArray,
        where: str,
        meaning: Meaning,
        global_shape: tuple[int, ...],
        offset: tuple[int, ...],
        holders: tuple[int, ...] = (),
    ) -> LeafNode:
        try:
            dtype = dtype_name(array.dtype)
        except Refused as error:
            raise Refused(f"{shown(where)}: {error.message}", hint=error.hint) from None
        self._leaves.append(Leaf(where, meaning, dtype, array, global_shape, offset, holders))
        return LeafNode(where)


def too_deep(where: str) -> Refused:
    """Why what has this path is not stored."""
    above = "/".join(where.split("/")[:4])
    return Refused(
        f"{above}/...: the tree is deeper than {TREE_DEPTH_MAX}",
        hint="leave out what holds itself, such as an object's reference to its owner",
    )


def encoded_scalar(value: Scalar) -> AnyArray:
    """A plain value's node as bytes; raises Refused for text that is not valid Unicode."""
    return np.frombuffer(encode_tree(ScalarNode(value)), SCALAR_DTYPE)


def _checked_key(key: object, where: str) -> Key:
    if type(key) is str and key.isascii():
        return key
    if not _is_key(key, 0):
        raise Refused(
            f"{shown(where)}: a key of type {type(key).__qualname__} cannot be stored: {key!r:.80}",
            hint="keys are str, int, bool or tuples of them",
        )
    return key  # type: ignore[return-value]


def _is_key(key: object, depth: int) -> bool:
    if type(key) is tuple:
        return depth < TREE_DEPTH_MAX and all(_is_key(part, depth + 1) for part in key)
    if type(key) is str:
        return key.isascii() or not any(0xD800 <= ord(char) < 0xE000 for char in key)
    return type(key) in (int, bool)
