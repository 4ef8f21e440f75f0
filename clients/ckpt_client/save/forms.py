"""Is this state of a form that is known already? One walk that checks and collects at once.

A training saves the same names, types and shapes at every step, so the second save need not take
its state apart again (`state.flatten`), only see that nothing but values has changed. A form says
yes or no and raises nothing: what it does not know goes the long way, which refuses by path.

    save n       flatten, lay out                     form_of(settled(state), ...)
    save n + 1   form.recognise(state) -> Found       what is found goes where save n's parts went

Each container is looked at once in a walk, and what two walks must find alike is settled first:
another thread may change the caller's.

The cheap checks run over all arrays at once, in C; a loop over leaves is as dear as their copy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from operator import attrgetter
from typing import Final, Protocol, cast

from ckpt.base.errors import CkptError
from ckpt.base.limits import TREE_DEPTH_MAX
from ckpt.format.tree import Scalar
from ckpt_client.save.arrays import ARRAYS, as_array
from ckpt_client.save.shards import Replicated, Shard, Shards
from ckpt_client.save.state import SCALARS, encoded_scalar

_dtype_of: Final = attrgetter("dtype")
_shape_of: Final = attrgetter("shape")


@dataclass(slots=True)
class Found:
    """What a state of a known form holds, in the order of the walk."""

    arrays: list[object] = field(default_factory=list)
    """Of every tensor or box; what an element is, the form's own `arrays_fit` says."""
    scalars: list[Scalar] = field(default_factory=list)
    wholes: list[tuple[int, object]] = field(default_factory=list)
    """(number of an array, what it is the local part of)."""


class Form(Protocol):
    """What one node of the tree was."""

    def gather(self, value: object, found: Found) -> bool:
        """Add what the value holds; False when it is another form."""


@dataclass(frozen=True, slots=True)
class StateForm:
    """A whole state's form."""

    root: Form
    dtypes: list[object]
    shapes: list[tuple[int, ...]]
    """Of the arrays, in the order of the walk."""
    arrays_fit: Callable[[Sequence[object]], bool]
    """Whether they are all of kinds that have a dtype and a shape and that can be copied."""

    def recognise(self, state: object) -> Found | None:
        """What the state holds; None when it is of another form."""
        found = Found()
        try:
            known = self.root.gather(state, found)
        except CkptError:  # The long way names the path.
            return None
        if not known or not self.arrays_fit(found.arrays):
            return None
        same = list(map(_dtype_of, found.arrays)) == self.dtypes
        try:
            return found if same and list(map(_shape_of, found.arrays)) == self.shapes else None
        except RuntimeError:  # Torch's nested tensors have none.
            return None


def form_of(state: object, replicated: bool, arrays: Sequence[object]) -> StateForm | None:
    """The form of a settled state that `flatten` took apart.

    arrays: of its leaves, in the order of the walk.
    """
    return learn_form(_form_of(state, replicated), arrays, are_arrays)


def learn_form(
    root: Form, arrays: Sequence[object], arrays_fit: Callable[[Sequence[object]], bool]
) -> StateForm | None:
    """The form with this root, and arrays like these; None when they do not fit themselves."""
    return form_like(root, arrays, arrays_fit) if arrays_fit(arrays) else None


def form_like(
    root: Form, arrays: Sequence[object], arrays_fit: Callable[[Sequence[object]], bool]
) -> StateForm:
    """The same where it is known that these arrays fit."""
    dtypes, shapes = map(_dtype_of, arrays), map(_shape_of, arrays)
    return StateForm(root, list(dtypes), list(map(tuple, shapes)), arrays_fit)


def items_of(mapping: Mapping[object, object]) -> dict[object, object]:
    """What it holds at one look: another thread may change it, or it may turn its own order."""
    return mapping.copy() if type(mapping) is dict else dict(mapping.items())


def settled(state: object, depth: int = 0) -> object:
    """The same state in containers of ours, which nobody else changes. What `flatten` refuses stays
    as it is.
    """
    kind = type(state)
    if depth > TREE_DEPTH_MAX:
        return state
    if kind is dict:
        made = items_of(cast(dict[object, object], state))
        for key, child in made.items():
            if type(child) not in ARRAYS:
                made[key] = settled(child, depth + 1)
        return made
    if kind is list or kind is tuple:
        items = [settled(child, depth + 1) for child in tuple(cast(Sequence[object], state))]
        return items if kind is list else tuple(items)
    return Replicated(settled(state.tree, depth)) if type(state) is Replicated else state


def are_arrays(found: Iterable[object]) -> bool:
    """Whether all are numpy arrays, of exact type."""
    return ARRAYS.issuperset(map(type, found))


def _form_of(value: object, replicated: bool) -> Form:
    if type(value) in ARRAYS:
        return _ARRAY
    if type(value) is dict:
        mapping = cast(Mapping[object, object], value)
        children = (_form_of(child, replicated) for child in mapping.values())
        return mapping_form(dict, mapping, children)
    if type(value) in (list, tuple):
        items = cast(Sequence[object], value)
        return sequence_form(type(value), (_form_of(item, replicated) for item in items))
    if type(value) in SCALARS:
        return CopiedScalarForm() if replicated else ScalarForm()
    if isinstance(value, Replicated):
        return ReplicatedForm(type(value), _form_of(value.tree, True))
    if isinstance(value, Shard):
        return _shard_form(value)
    if isinstance(value, Shards):
        return ShardsForm(type(value), Children.of(_shard_form(box) for box in value.boxes))
    return ForeignForm()


# --------------------------------------------------------------------------- nodes


@dataclass(frozen=True, slots=True)
class Children:
    """The forms of what a container holds, in its order."""

    count: int
    runs: tuple[tuple[Form, int], ...]
    """(form, how many values have it); arrays that follow each other are one run, which C takes."""

    @classmethod
    def of(cls, forms: Iterable[Form]) -> Children:
        runs: list[tuple[Form, int]] = []
        for are_arrays, group in groupby(forms, lambda form: type(form) is ArrayForm):
            run = list(group)
            runs += [(run[0], len(run))] if are_arrays else [(form, 1) for form in run]
        return cls(sum(count for _, count in runs), tuple(runs))

    def gather(self, values: Collection[object], found: Found) -> bool:
        """Add what all values hold; False when one is of another form."""
        if len(values) != self.count:
            return False
        rest = iter(values)
        for form, count in self.runs:
            if type(form) is ArrayForm:
                found.arrays.extend(islice(rest, count))
            elif not form.gather(next(rest), found):
                return False
        return True


@dataclass(frozen=True, slots=True)
class MappingForm:
    """A mapping of one type, with these keys in this order."""

    kind: type
    keys: list[object]
    key_kinds: object
    """Since 1, True and a subclass of str equal what is stored as something else."""
    children: Children

    def gather(self, value: object, found: Found) -> bool:
        if type(value) is not self.kind:
            return False
        items = items_of(cast(Mapping[object, object], value))
        keys = list(items)
        if keys != self.keys or _kinds_of(keys) != self.key_kinds:
            return False
        return self.children.gather(items.values(), found)


@dataclass(frozen=True, slots=True)
class SequenceForm:
    """A list or tuple of one length."""

    kind: type
    children: Children

    def gather(self, value: object, found: Found) -> bool:
        if type(value) is not self.kind:
            return False
        return self.children.gather(tuple(cast(Sequence[object], value)), found)


@dataclass(frozen=True, slots=True)
class ReplicatedForm:
    """A subtree below Replicated."""

    kind: type
    tree: Form

    def gather(self, value: object, found: Found) -> bool:
        return type(value) is self.kind and self.tree.gather(cast(Replicated, value).tree, found)


# --------------------------------------------------------------------------- leaves


class ArrayForm:
    """An array as it is; `StateForm` looks at all of them together."""

    def gather(self, value: object, found: Found) -> bool:
        found.arrays.append(value)
        return True


_ARRAY: Final = ArrayForm()


class ForeignForm:
    """What becomes an array by a protocol of its own."""

    def gather(self, value: object, found: Found) -> bool:
        found.arrays.append(as_array(value, ""))
        return True


class ScalarForm:
    """A plain value of any plain type."""

    def gather(self, value: object, found: Found) -> bool:
        found.scalars.append(cast(Scalar, value))
        return type(value) in SCALARS


class CopiedScalarForm:
    """A plain value below Replicated: its encoded node is a small tensor besides."""

    def gather(self, value: object, found: Found) -> bool:
        if type(value) not in SCALARS:
            return False
        scalar = cast(Scalar, value)
        found.scalars.append(scalar)
        found.arrays.append(encoded_scalar(scalar))
        return True


@dataclass(frozen=True, slots=True)
class ShardForm:
    """One box of one tensor; its own shape is looked at with all others'."""

    kind: type
    global_shape: tuple[int, ...]
    offset: tuple[int, ...]
    holders: tuple[int, ...]

    def gather(self, value: object, found: Found) -> bool:
        if type(value) is not self.kind:
            return False
        shard = cast(Shard, value)
        array = shard.array
        found.arrays.append(array if type(array) in ARRAYS else as_array(array, ""))
        return (
            shard.offset == self.offset
            and shard.global_shape == self.global_shape
            and shard.holders == self.holders
        )


@dataclass(frozen=True, slots=True)
class ShardsForm:
    """Several boxes of one tensor."""

    kind: type
    boxes: Children

    def gather(self, value: object, found: Found) -> bool:
        if type(value) is not self.kind:
            return False
        return self.boxes.gather(cast(Shards, value).boxes, found)


# --------------------------------------------------------------------------- making them


def mapping_form(kind: type, keys: Iterable[object], children: Iterable[Form]) -> MappingForm:
    """The form of a mapping of this type with these keys, and these forms of its values."""
    listed = list(keys)
    return MappingForm(kind, listed, _kinds_of(listed), Children.of(children))


def sequence_form(kind: type, children: Iterable[Form]) -> SequenceForm:
    """The form of a list or tuple of this type with these forms of its items."""
    return SequenceForm(kind, Children.of(children))


def _shard_form(shard: Shard) -> ShardForm:
    return ShardForm(type(shard), shard.global_shape, shard.offset, shard.holders)


def _kinds_of(keys: list[object]) -> object:
    """Of every key; the one kind, where all have the same and it has no parts."""
    kinds: set[object] = set(map(type, keys))
    return kinds if len(kinds) == 1 and tuple not in kinds else [_kind_of(key) for key in keys]


def _kind_of(key: object) -> object:
    return tuple(map(_kind_of, key)) if isinstance(key, tuple) else type(key)
