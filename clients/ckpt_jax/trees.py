"""A JAX state as a tree of dicts, lists and tuples, and back again.

Whatever JAX has registered as a node (named tuples, dataclasses, optax and flax states) is stored
as a dict of its parts under the names that JAX gives them, so that anyone can read it; what comes
back goes into the caller's own nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, cast

import jax
import numpy as np
from jax import tree_util

from ckpt.base.errors import Refused
from ckpt.format.tree import (
    Key,
    Node,
    Path,
    SequenceIndex,
    path_text,
    step_text,
)
from ckpt_client.load.trees import children_of

_SCALARS: Final = (bool, int, float, complex, str, bytes, type(None))
Leaf = Callable[[str, object], object]
_Made = Callable[[object, Mapping[Key, object]], object]
"""What stands for a registered node, of which the parts are known."""


def mapped(tree: object, leaf: Leaf) -> object:
    """The tree with `leaf(name, value)` for each leaf; registered nodes become dicts of parts."""
    return _walked(tree, leaf, (), lambda _, parts: parts)


def rebuilt(tree: object, leaf: Leaf) -> object:
    """The same nodes with `leaf(name, value)` in the place of each leaf."""
    return _walked(tree, leaf, (), _like)


def _walked(node: object, leaf: Leaf, path: Path, made: _Made) -> object:
    if type(node) is dict:
        return {key: _walked(child, leaf, (*path, key), made) for key, child in node.items()}
    if type(node) is list or type(node) is tuple:
        return type(node)(
            _walked(child, leaf, (*path, SequenceIndex(n)), made) for n, child in enumerate(node)
        )
    parts = None if is_leaf(node) else _parts(node)
    if parts is None:
        return leaf(path_text(path), node)
    walked = {key: _walked(child, leaf, (*path, key), made) for key, child in parts.items()}
    return made(node, walked)


def _like(node: object, parts: Mapping[Key, object]) -> object:
    """A node of the same kind, of these parts."""
    _, shape = tree_util.tree_flatten(node, is_leaf=lambda child: child is not node)
    return tree_util.tree_unflatten(shape, parts.values())


def check_lengths(like: object, stored: Node | None, path: Path = ()) -> None:
    """Raises Refused by path for a list, a tuple or another node of numbered parts that has more of
    them in the checkpoint: what is missing here may not be what comes last.

    stored: the checkpoint's tree; None where it has nothing.
    """
    if stored is None or is_leaf(like):
        return
    is_row = type(like) is list or type(like) is tuple
    parts = _row(like) if is_row else like if type(like) is dict else _parts(like)
    if not isinstance(parts, dict):
        return
    there = dict(children_of(stored))
    numbered = is_row or (bool(parts) and all(type(key) is int for key in parts))
    if numbered and len(there) > len(parts):
        raise Refused(
            f"{path_text(path)}: {len(there)} items in the checkpoint, {len(parts)} here",
            hint="ask for as many items as were saved",
        )
    for key, child in parts.items():
        if not is_leaf(child):
            check_lengths(child, there.get(step_text(key)), (*path, key))


def _row(like: object) -> dict[Key | SequenceIndex, object]:
    items = cast(Sequence[object], like)
    return {SequenceIndex(number): child for number, child in enumerate(items)}


def is_plain(value: object) -> bool:
    """Whether a leaf goes into the tree document unchanged."""
    return type(value) in _SCALARS


def is_leaf(value: object) -> bool:
    """What this package stores; anything else is a node, or refused."""
    return is_plain(value) or isinstance(
        value, jax.Array | jax.ShapeDtypeStruct | np.ndarray | np.generic
    )


def _parts(node: object) -> dict[Key, object] | None:
    """The parts of a registered node by name; None when JAX takes it for a leaf."""
    found, _ = tree_util.tree_flatten_with_path(node, is_leaf=lambda child: child is not node)
    if len(found) == 1 and found[0][0] == ():
        return None
    parts = {_key_of(path[0]): child for path, child in found}
    if len(parts) != len(found):
        raise Refused(f"a {type(node).__qualname__} has two parts of one name")
    return parts


def _key_of(step: object) -> Key:
    match step:
        case tree_util.DictKey(key) | tree_util.FlattenedIndexKey(key):
            return key if isinstance(key, str | int | tuple) else str(key)
        case tree_util.GetAttrKey(name):
            return str(name)
        case tree_util.SequenceKey(index):
            return int(index)
    return str(step)
