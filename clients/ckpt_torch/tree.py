"""A state dict taken apart: leaves by path, and what each of them is.

Objects that answer `state_dict()` at the top level are asked, as torch's own checkpoints do. Any
mapping counts as a dict: what comes back goes into the caller's own containers.
"""

from __future__ import annotations

import copy
import io
from collections import deque
from collections.abc import (
    Callable,
    Container,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias, TypeGuard, cast

import numpy as np
import torch

from ckpt.base.errors import Refused
from ckpt.base.limits import TREE_DEPTH_MAX
from ckpt.format.tree import Key, Scalar, SequenceIndex, below, names_below, path_text
from ckpt_client.save.arrays import ARRAYS, AnyArray
from ckpt_client.save.forms import items_of
from ckpt_client.save.state import too_deep
from ckpt_torch.boxes import is_tensor
from ckpt_torch.modes import refuse_modes
from ckpt_torch.tensors import PLAIN_TENSORS

PICKLE_KEY: Final = "#pickle"
"""A dict with this one key holds a pickled object's bytes."""
VALUE_KEY: Final = "#value"
"""The same of plain data that DCP's planner saw in one piece."""
MARK_KEY: Final = "#dcp"
"""In the tree of every rank of a checkpoint that DCP's planner laid out."""
_SCALARS: Final = (bool, int, float, complex, str, bytes, type(None))
_LEAVES: Final = PLAIN_TENSORS | {np.ndarray, *_SCALARS}
"""Exact types of nearly all leaves: who asks what else it may be asks an abstract type, which costs
more than a small tensor's bytes."""
Naming: TypeAlias = "Callable[[str, Key | SequenceIndex], str]"
"""Gives the path of what lies one step below a path."""


class Stateful(Protocol):
    """As in torch.distributed.checkpoint.stateful."""

    def state_dict(self) -> dict[str, object]:
        """The state to save."""

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        """Take it back."""


def asked(state_dict: object) -> dict[str, object]:
    """The state dict, with its Stateful values replaced by what they return. Raises Refused for
    other types, for one that another thread changes, and what `refuse_modes` raises.
    """
    refuse_modes()
    if not isinstance(state_dict, Mapping):
        kind = type(state_dict).__qualname__
        raise Refused(f"the state is of type {kind}, not a dict", hint='pass {"model": …}')
    state = cast(dict[str, object], _items(state_dict, ""))
    kinds = {type(value): value for value in state.values()}
    if any(map(is_stateful, kinds.values())):  # Of thousands of tensors their kinds are looked at.
        for key, value in state.items():
            if is_stateful(value):
                state[key] = value.state_dict()
    return state


def is_stateful(value: object) -> TypeGuard[Stateful]:
    """Whether it is asked for its state. A protocol's own check costs more than a tensor's copy."""
    kind = type(value)
    return hasattr(kind, "state_dict") and hasattr(kind, "load_state_dict")


def leaves(
    tree: object, name: str = "", without: Container[str] = ()
) -> Iterator[tuple[str, object]]:
    """Every leaf with its path as text, in the tree's order.

    name: of the tree itself, here and below.
    without: names of lists and tuples that are passed over.
    """
    if isinstance(tree, Mapping):
        items = list(tree.items())  # The names are of these, whatever becomes of the tree.
        for inner, (_, child) in zip(
            names_below(name, [key for key, _ in items]), items, strict=True
        ):
            if type(child) in _LEAVES:
                yield inner, child
            else:
                yield from leaves(child, inner, without)
    elif isinstance(tree, list | tuple):
        if name not in without:
            for position, child in enumerate(tree):
                yield from leaves(child, below(name, SequenceIndex(position)), without)
    else:
        yield name, tree


def leaf_values(tree: object) -> Iterator[object]:
    """Every leaf without its path, in the tree's order."""
    if not is_container(tree):
        yield tree
        return
    for child in tree.values() if isinstance(tree, Mapping) else tree:
        if type(child) in _LEAVES:
            yield child
        else:
            yield from leaf_values(child)


@dataclass(frozen=True, slots=True)
class Settled:
    """A state whose containers nobody else changes, or has."""

    tree: object
    """The same leaves in plain dicts, lists and tuples."""
    kinds: Mapping[int, type]
    """Types of those that stand for one of another type, by their ids."""


def settled(state: object) -> Settled:
    """Each container is looked at once: those of the caller may be another thread's as well, and a
    mapping of theirs may turn its order. Raises Refused by path for one that allows no look.
    """
    kinds: dict[int, type] = {}
    return Settled(_settled(state, "", kinds), kinds)


def _settled(tree: object, name: str, kinds: dict[int, type]) -> object:
    made: object
    if isinstance(tree, Mapping):
        items = made = _items(tree, name)
        for key, child in items.items():
            if type(child) not in _LEAVES:
                items[key] = _settled(child, below(name, cast(Key, key)), kinds)
    elif isinstance(tree, list | tuple):
        children = [
            child
            if type(child) in _LEAVES
            else _settled(child, below(name, SequenceIndex(position)), kinds)
            for position, child in enumerate(tuple(tree))
        ]
        made = children if isinstance(tree, list) else tuple(children)
    else:
        return tree
    if type(made) is not type(tree):
        kinds[id(made)] = type(tree)
    return made


def is_container(value: object) -> TypeGuard[Mapping[object, object] | Sequence[object]]:
    """Whether it has leaves below it."""
    return type(value) not in _LEAVES and isinstance(value, Mapping | list | tuple)


def empty_mappings(tree: object) -> Iterator[str]:
    """Paths of mappings that hold nothing, such as the state of an optimizer before a step."""
    for name, container in containers(tree):
        if isinstance(container, Mapping) and not container and name:
            yield name


def check_keys(tree: object) -> None:
    """Raises Refused for a key that has a meaning of its own: a load would not give it back; and
    what `containers` raises.
    """
    for name, container in containers(tree):
        for key in (PICKLE_KEY, VALUE_KEY, MARK_KEY):
            if isinstance(container, Mapping) and key in container:
                raise Refused(f"{name or 'the state'}: the key {key!r} is taken")


def check_depth(tree: object, naming: Naming = below) -> None:
    """Raises what `containers` raises, before somebody walks the tree without end."""
    deque(containers(tree, naming=naming), maxlen=0)


def containers(
    tree: object, name: str = "", naming: Naming = below
) -> Iterator[tuple[str, object]]:
    """Every container with its path as text, from the top; each is looked at once.

    Raises Refused by path for a tree that is too deep, such as one that holds itself, and for a
    mapping that another thread changes.
    """
    if not is_container(tree):
        return
    if name.count("/") >= TREE_DEPTH_MAX:
        raise too_deep(name)
    yield name, tree
    if isinstance(tree, Mapping):
        for key, child in _items(tree, name).items():
            if is_container(child):
                yield from containers(child, naming(name, cast(Key, key)), naming)
    else:
        for position, child in enumerate(tuple(tree)):
            if is_container(child):
                yield from containers(child, naming(name, SequenceIndex(position)), naming)


def _items(mapping: Mapping[object, object], name: str) -> dict[object, object]:
    """What a mapping with this path holds at one look; raises Refused where there is none."""
    try:
        return items_of(mapping)
    except RuntimeError as error:
        raise Refused(
            f"{name or 'the state'}: {error}",
            hint="let no other thread change the state while it is saved or loaded",
        ) from None


def replaced(tree: object, values: Iterator[object]) -> object:
    """A tree of plain dicts, lists and tuples in which the next of the values stands for each leaf,
    in the order of `leaves`.
    """
    if isinstance(tree, Mapping):
        return {
            key: next(values) if type(child) in _LEAVES else replaced(child, values)
            for key, child in tree.items()
        }
    if isinstance(tree, list | tuple):
        items = [replaced(child, values) for child in tree]
        return items if isinstance(tree, list) else tuple(items)
    return next(values)


def refill(
    tree: object, leaf: Callable[[str, object], object], whole: Container[str] = ()
) -> object:
    """The same containers, their leaves replaced in place; tuples and mappings that cannot be
    changed are new ones of their types. Where one container has two names, and they are to hold
    different things, the second name gets a copy. Plain tensors stay: they are filled in place.

    whole: names of lists and tuples that get the items of what `leaf` gives for them.
    """
    refilling = _Refilling(leaf, whole)
    found = refilling.visit(tree, "")
    refilling.finish()
    return found


class _Refilling:
    """I visit a tree once, and change it when all of it was visited: a container that is met
    again still holds what it held.
    """

    def __init__(self, leaf: Callable[[str, object], object], whole: Container[str]) -> None:
        self._leaf = leaf
        self._whole = whole
        #: By the id of a container: it, and what it is to hold.
        self._held: dict[int, tuple[_Changeable, _Items]] = {}

    def visit(self, tree: object, name: str) -> object:
        """What stands in the tree's place once `finish` was called."""
        if isinstance(tree, Mapping):
            items = {
                key: child if type(child) in PLAIN_TENSORS else self.visit(child, below(name, key))
                for key, child in tree.items()
            }
            if isinstance(tree, MutableMapping):
                return self._changed(tree, items)
            return _like(tree, items)
        if not isinstance(tree, list | tuple):
            return self._leaf(name, tree)
        if name in self._whole:
            found = self._leaf(name, tree)
            if not isinstance(found, list | tuple):
                return found
            children = list(found)
        else:
            children = [
                self.visit(child, below(name, SequenceIndex(n))) for n, child in enumerate(tree)
            ]
        return (
            self._changed(tree, children)
            if isinstance(tree, list)
            else _like(tree, tuple(children))
        )

    def finish(self) -> None:
        """Change every container."""
        for container, items in self._held.values():
            if isinstance(container, list):
                container[:] = cast(list[object], items)
            else:
                for key, child in cast(dict[object, object], items).items():
                    container[key] = child

    def _changed(self, container: _Changeable, items: _Items) -> object:
        known = self._held.get(id(container))
        if known is not None:
            if list(_entries(known[1])) == list(_entries(items)):
                return container
            container = copy.copy(container)
        self._held[id(container)] = container, items
        return container


_Changeable = list[object] | MutableMapping[object, object]
_Items = list[object] | dict[object, object]


def _like(tree: object, items: object) -> object:
    """A container of the tree's type, such as a named tuple or torch.Size; the items as they are
    where its type cannot be made of them, or means something else by them.
    """
    kind = type(tree)
    if type(items) is kind:
        return items
    make: Callable[[object], object] = getattr(kind, "_make", kind)
    try:
        made = make(items)
    except (TypeError, ValueError):
        return items
    return made if list(_entries(made)) == list(_entries(items)) else items


def _entries(container: object) -> Iterator[tuple[object, object]]:
    """To compare: plain values by themselves, tensors, which compare otherwise, by what they
    are.
    """
    pairs: Iterable[tuple[object, object]] = ()
    if isinstance(container, Mapping):
        pairs = container.items()
    elif isinstance(container, list | tuple):
        pairs = enumerate(container)
    for key, value in pairs:
        yield key, (type(value), value) if is_plain(value) else id(value)


def is_plain(value: object) -> bool:
    """Whether a leaf goes into the tree document as it is."""
    return type(value) in _SCALARS


def is_array(value: object) -> bool:
    """Whether a leaf is a tensor or an array whose memory is all that it is; a masked one has more
    than that.
    """
    return is_tensor(value) or type(value) in ARRAYS or isinstance(value, np.generic)


def as_scalar(value: object) -> Scalar:
    """A plain leaf, for the type checker."""
    assert value is None or isinstance(value, bool | int | float | complex | str | bytes)
    return value


def pickled(value: object) -> AnyArray:
    """An object's pickle as bytes, made by torch. Raises Refused for one that has none."""
    stream = io.BytesIO()
    try:
        torch.save(value, stream)
    except Exception as error:  # Whatever its own `__reduce__` raises.
        raise not_pickled(value, error) from None
    return np.frombuffer(stream.getvalue(), np.uint8)


def not_pickled(value: object, error: Exception) -> Refused:
    """Why an object, such as a lambda or a lock, is not stored; without its path."""
    return Refused(
        f"an object of type {type(value).__qualname__} cannot be pickled: {error}",
        hint="leave it out of the state dict, or keep its state as dicts, lists and numbers",
    )


def unpickled(array: AnyArray) -> object:
    """The object; runs whatever code the pickle names."""
    return torch.load(io.BytesIO(array.tobytes()), weights_only=False)


def pickle_name(name: str) -> str:
    """The name under which the pickle of the object at this path is stored."""
    own = path_text((PICKLE_KEY,))
    return f"{name}/{own}" if name else own
