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

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from ckpt.base.errors import CkptError, Refused
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
from ckpt_client.save.shards import Replicated, Shard, Shards, check_box

AnyArray = NDArray[np.generic]
SCALAR_DTYPE: Final = np.dtype("u1")
SCALARS: Final = frozenset((bool, int, float, complex, str, bytes, type(None)))
ARRAYS: Final = frozenset((np.ndarray, np.memmap))
"""Exact types: a subclass (a masked array, a matrix) would come back as something else."""


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
                raise Refused(f"{_shown(where)}: the text is not valid Unicode") from None
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
            raise Refused(f"{_shown(where)}: {error.message}") from None
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
            raise Refused(f"{_shown(where)}: {error.message}", hint=error.hint) from None
        self._leaves.append(Leaf(where, meaning, dtype, array, global_shape, offset, holders))
        return LeafNode(where)


def too_deep(where: str) -> Refused:
    """Why what has this path is not stored."""
    above = "/".join(where.split("/")[:4])
    return Refused(f"{above}/...: the tree is deeper than {TREE_DEPTH_MAX}")


def encoded_scalar(value: Scalar) -> AnyArray:
    """A plain value's node as bytes; raises Refused for text that is not valid Unicode."""
    return np.frombuffer(encode_tree(ScalarNode(value)), SCALAR_DTYPE)


def as_array(value: object, where: str) -> AnyArray:
    """The value's memory as an array, without a copy where it allows that;
    Refused by path otherwise.
    """
    if type(value) in ARRAYS:
        assert isinstance(value, np.ndarray)
        return value
    if isinstance(value, np.generic):
        try:
            return scalar_array(value)
        except Refused as error:
            raise Refused(f"{_shown(where)}: {error.message}", hint=error.hint) from None
    check_own_memory(value, where)
    if any(kind.__module__.partition(".")[0] in _LABELLED for kind in type(value).__mro__):
        raise Refused(
            f"{_shown(where)}: a {_kind_of(value)} is more than its values",
            hint="store its values as an array, and its labels or unit beside them",
        )
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
    raise Refused(
        f"{_shown(where)}: a {_kind_of(value)} cannot be stored"
        + "".join(f"; {one}" for one in reasons),
        hint=_instead(value),
    )


def scalar_array(value: np.generic) -> AnyArray:
    """A numpy scalar as an array without axes. Raises Refused for text whose end that drops."""
    array = np.asarray(value)
    if isinstance(value, np.str_ | np.bytes_) and len(array[()]) < len(value):
        raise Refused(
            f"a numpy.{type(value).__name__} that ends in a zero, which arrays drop",
            hint="store it as str or bytes",
        )
    return array


_LABELLED: Final = frozenset({"pandas", "xarray", "polars", "pyarrow", "pint"})
"""Libraries whose `__array__` leaves out labels or units."""


def _kind_of(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _instead(value: object) -> str:
    """What to store in its place; torch's modules, optimizers and their states come here often."""
    if isinstance(value, Mapping):
        return "make it a dict, dict(...); ckpt_torch.save takes a state_dict() as it is"
    if hasattr(value, "state_dict"):
        return "save its state_dict(), with ckpt_torch.save"
    return "use dict, list, tuple, arrays, numbers, str, bytes and None"


def check_own_memory(value: object, where: str) -> None:
    """Raises Refused by path for one of torch's tensors whose memory is not what it holds: what
    torch gives out as that of a DTensor, or of another class made of tensors, is freed or
    another's, and that of a view that is negated when it is read has the other sign.
    """
    kinds = [(one.__module__, one.__qualname__) for one in type(value).__mro__]
    if _TENSOR not in kinds:
        return
    if kinds[0] not in (_TENSOR, _PARAMETER):
        raise Refused(
            f"{_shown(where)}: a {'.'.join(kinds[0])} is no plain tensor",
            hint="ckpt_torch takes DTensors; of any other give the tensors that it is made of",
        )
    tensor = cast(Tensor, value)
    if tensor.is_nested or str(tensor.layout) != "torch.strided":
        raise Refused(
            f"{_shown(where)}: a nested tensor, or one of layout {tensor.layout}",
            hint="store the dense tensors that it is made of",
        )
    if _SUB_BYTE.fullmatch(str(tensor.dtype)):
        raise Refused(
            f"{_shown(where)}: a {tensor.dtype} tensor has no numpy form",
            hint="store its view(torch.uint8)",
        )
    if tensor._is_zerotensor():
        raise Refused(f"{_shown(where)}: a tensor that has no memory", hint="clone() it")
    if tensor.is_conj() or tensor.is_neg():
        raise Refused(
            f"{_shown(where)}: a lazily conjugated or negated tensor",
            hint="resolve_conj(), resolve_neg()",
        )
    try:
        check_memory(tensor)
    except Refused as error:
        raise Refused(f"{_shown(where)}: {error.message}", hint=error.hint) from None


def check_memory(tensor: Tensor) -> None:
    """Raises Refused for a tensor that reaches out of its memory: FSDP's first version frees that
    of parameters between their uses, and what lies there belongs to others then.
    """
    if not tensor.numel():
        return
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = tensor.storage_offset() + sum((size - 1) * stride for size, stride in steps)
    needed, there = (last + 1) * tensor.element_size(), tensor.untyped_storage().nbytes()
    if there < needed:
        raise Refused(
            f"a tensor that reaches to byte {needed} of its memory, which has {there}",
            hint="its memory was freed: save what the wrapped model's state_dict() gives",
        )


class _Storage(Protocol):
    def nbytes(self) -> int: ...


class Tensor(Protocol):
    """One of torch's, which need not be there."""

    @property
    def shape(self) -> Sequence[int]: ...
    @property
    def dtype(self) -> object: ...
    @property
    def layout(self) -> object: ...
    @property
    def is_nested(self) -> bool: ...

    def _is_zerotensor(self) -> bool: ...
    def is_conj(self) -> bool: ...
    def is_neg(self) -> bool: ...
    def numel(self) -> int: ...
    def stride(self) -> tuple[int, ...]: ...
    def storage_offset(self) -> int: ...
    def element_size(self) -> int: ...
    def untyped_storage(self) -> _Storage: ...


#: Modules and names of their classes.
_TENSOR: Final = "torch", "Tensor"
_PARAMETER: Final = "torch.nn.parameter", "Parameter"
#: What DLPack gives out as integers of a byte.
_SUB_BYTE: Final = re.compile(r"torch\.u?int[1-7]")


def _from_dlpack(value: object) -> AnyArray:
    return np.from_dlpack(value)  # type: ignore[arg-type]


def _from_array(value: object) -> AnyArray:
    array = np.asarray(value)
    if array.dtype.hasobject:
        raise TypeError(f"it becomes an array of Python objects ({array.dtype})")
    return array


def _checked_key(key: object, where: str) -> Key:
    if type(key) is str and key.isascii():
        return key
    if not _is_key(key, 0):
        raise Refused(
            f"{_shown(where)}: a key of type {type(key).__qualname__} cannot be stored: "
            f"{key!r:.80}",
            hint="keys are str, int, bool or tuples of them",
        )
    return key  # type: ignore[return-value]


def _is_key(key: object, depth: int) -> bool:
    if type(key) is tuple:
        return depth < TREE_DEPTH_MAX and all(_is_key(part, depth + 1) for part in key)
    if type(key) is str:
        return key.isascii() or not any(0xD800 <= ord(char) < 0xE000 for char in key)
    return type(key) in (int, bool)


def _shown(where: str) -> str:
    return where or "the state itself"
