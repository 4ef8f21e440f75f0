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
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ckpt.base.errors import CkptError, Refused
from ckpt.base.limits import TREE_DEPTH_MAX
from ckpt.format.dtypes import dtype_name
from ckpt.format.table import Meaning
from ckpt.format.tree import (
    DictNode,
    Index,
    Key,
    LeafNode,
    ListNode,
    Node,
    Path,
    Scalar,
    ScalarNode,
    TupleNode,
    encode_tree,
    path_text,
)
from ckpt_client.declare import Replicated, Shard, Shards, check_box

AnyArray = NDArray[np.generic]
SCALAR_DTYPE: Final = np.dtype("u1")
SCALARS: Final = frozenset((bool, int, float, complex, str, bytes, type(None)))
ARRAYS: Final = frozenset((np.ndarray, np.memmap))
"""Exact types: a subclass (a masked array, a matrix) would come back as something else."""


@dataclass(frozen=True, slots=True)
class Leaf:
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


def flatten(state: object, *, replicated: bool = False) -> FlatState:
    """The tree's document and leaves. Raises Refused naming the path of what cannot be stored."""
    leaves: list[Leaf] = []
    root = _Walk(leaves).visit(state, (), replicated)
    order = sorted(range(len(leaves)), key=lambda n: (leaves[n].name, leaves[n].offset))
    return FlatState(root, tuple(leaves[n] for n in order), tuple(order))


def unflatten(root: Node, leaf: Callable[[str], object]) -> object:
    """The tree again: dicts with their keys' types and order, lists, tuples, scalars;
    `leaf(name)` gives the rest.
    """
    match root:
        case DictNode(items):
            return {key: unflatten(node, leaf) for key, node in items}
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

    def visit(self, value: object, path: Path, replicated: bool) -> Node:
        if len(path) > TREE_DEPTH_MAX:
            raise Refused(f"{_where(path[:4])}/...: the tree is deeper than {TREE_DEPTH_MAX}")
        if type(value) is dict:
            return DictNode(
                tuple(
                    (key, self.visit(child, (*path, key), replicated))
                    for key, child in ((_checked_key(k, path), v) for k, v in value.items())
                )
            )
        if type(value) is list:
            return ListNode(self._items(value, path, replicated))
        if type(value) is tuple:
            return TupleNode(self._items(value, path, replicated))
        if type(value) in SCALARS:
            return self._scalar(value, path, replicated)
        if isinstance(value, Replicated):
            return self.visit(value.tree, path, True)
        if isinstance(value, Shard):
            return self._shard(value, path)
        if isinstance(value, Shards):
            nodes = [self._shard(box, path) for box in value.boxes]
            return nodes[0]
        meaning = Meaning.REPLICATED if replicated else Meaning.OWN
        array = as_array(value, path)
        return self._leaf(array, path, meaning, array.shape, (0,) * array.ndim)

    def _items(
        self, values: list[object] | tuple[object, ...], path: Path, replicated: bool
    ) -> tuple[Node, ...]:
        return tuple(
            self.visit(child, (*path, Index(number)), replicated)
            for number, child in enumerate(values)
        )

    def _scalar(self, value: object, path: Path, replicated: bool) -> Node:
        assert value is None or isinstance(value, bool | int | float | complex | str | bytes)
        if isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError:
                raise Refused(f"{_where(path)}: the text is not valid Unicode") from None
        node = ScalarNode(value)
        if replicated:
            encoded = encoded_scalar(value)
            self._leaf(encoded, path, Meaning.REPLICATED, encoded.shape, (0,))
        return node

    def _shard(self, shard: Shard, path: Path) -> Node:
        array = as_array(shard.array, path)
        try:
            check_box("Shard", array.shape, shard.global_shape, shard.offset)
        except Refused as error:
            raise Refused(f"{_where(path)}: {error.message}") from None
        return self._leaf(
            array, path, Meaning.SHARD, shard.global_shape, shard.offset, shard.holders
        )

    def _leaf(
        self,
        array: AnyArray,
        path: Path,
        meaning: Meaning,
        global_shape: tuple[int, ...],
        offset: tuple[int, ...],
        holders: tuple[int, ...] = (),
    ) -> LeafNode:
        try:
            dtype = dtype_name(array.dtype)
        except Refused as error:
            raise Refused(f"{_where(path)}: {error.message}", hint=error.hint) from None
        name = path_text(path)
        self._leaves.append(
            Leaf(name, meaning, dtype, array, tuple(global_shape), tuple(offset), holders)
        )
        return LeafNode(name)


def encoded_scalar(value: Scalar) -> AnyArray:
    """A plain value's node as bytes; raises Refused for text that is not valid Unicode."""
    return np.frombuffer(encode_tree(ScalarNode(value)), SCALAR_DTYPE)


def as_array(value: object, path: Path) -> AnyArray:
    """The value's memory as an array, without a copy where it allows that;
    Refused by path otherwise.
    """
    if type(value) in ARRAYS:
        assert isinstance(value, np.ndarray)
        return value
    if isinstance(value, np.generic):
        return np.asarray(value)
    reasons = []
    if not isinstance(value, type | np.ndarray):
        for protocol, convert in (("__dlpack__", _from_dlpack), ("__array__", _from_array)):
            if hasattr(value, protocol):
                try:
                    return convert(value)
                except CkptError:
                    raise
                except Exception as error:  # Whatever a foreign array type raises is its answer.
                    reasons.append(f"{protocol} said: {error}")
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    raise Refused(
        f"{_where(path)}: a {kind} cannot be stored" + "".join(f"; {one}" for one in reasons),
        hint="use dict, list, tuple, arrays, numbers, str, bytes and None",
    )


def _from_dlpack(value: object) -> AnyArray:
    return np.from_dlpack(value)  # type: ignore[arg-type]


def _from_array(value: object) -> AnyArray:
    array = np.asarray(value)
    if array.dtype.hasobject:
        raise TypeError(f"it becomes an array of Python objects ({array.dtype})")
    return array


def _checked_key(key: object, path: Path) -> Key:
    if not _is_key(key, 0):
        raise Refused(
            f"{_where(path)}: a key of type {type(key).__qualname__} cannot be stored: {key!r:.80}",
            hint="keys are str, int, bool or tuples of them",
        )
    return key  # type: ignore[return-value]


def _is_key(key: object, depth: int) -> bool:
    if type(key) is tuple:
        return depth < TREE_DEPTH_MAX and all(_is_key(part, depth + 1) for part in key)
    if type(key) is str:
        return key.isascii() or not any(0xD800 <= ord(char) < 0xE000 for char in key)
    return type(key) in (int, bool)


def _where(path: Path) -> str:
    return path_text(path) or "the state itself"
