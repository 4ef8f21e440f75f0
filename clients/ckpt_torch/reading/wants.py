"""What does a load want of a checkpoint? Each leaf of a state dict is looked up by its path.

Everything is looked up, and all problems are named, before the first byte is read. Each rank wants
the boxes that it holds, whatever the sharding that they were saved with.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import torch

from ckpt.base.errors import Refused
from ckpt.base.ids import Rank
from ckpt.format.dtypes import dtype_of
from ckpt.format.table import Meaning
from ckpt.format.tree import Scalar, leaf_names
from ckpt_client.fs.metadata_names import METADATA
from ckpt_client.load.contents import Contents, Want
from ckpt_client.load.plan import check_places
from ckpt_client.load.trees import are_global, listed, scalars_of
from ckpt_client.save.arrays import AnyArray
from ckpt_client.warn import warn
from ckpt_torch.boxes import LocalBox, held, is_tensor
from ckpt_torch.dcp_names import unpack_value, value_name
from ckpt_torch.place import Who
from ckpt_torch.reading.device_reads import DeviceWant
from ckpt_torch.reading.order import LoadOrder
from ckpt_torch.reading.sequences import SequenceWalk, plain_data
from ckpt_torch.reading.twins import Twin, are_apart, place_of, shared_memory, shared_parts
from ckpt_torch.tensors import (
    PLAIN_TENSORS,
    as_array,
    as_plain_array,
    as_shape,
    is_apart,
    torch_dtype,
)
from ckpt_torch.tree import empty_mappings, is_plain, leaves, pickle_name, unpickled


@dataclass(slots=True)
class NewLeaves:
    """What replaces the leaves of the caller's tree, when every byte is here."""

    values: dict[str, object] = field(default_factory=dict)
    pickles: dict[str, AnyArray] = field(default_factory=dict)
    packed: dict[str, AnyArray] = field(default_factory=dict)
    """Plain data as DCP's planner cuts it: a list of numbers is one leaf."""
    sequences: set[str] = field(default_factory=set)
    """Names of lists and tuples that are replaced as a whole."""

    def value(self, name: str, leaf: object) -> object:
        """What stands there afterwards; `leaf` itself where it was filled in place."""
        if name in self.pickles:
            return unpickled(self.pickles[name])
        if name in self.packed:
            return unpack_value(self.packed[name])
        found = self.values.get(name, leaf)
        if isinstance(leaf, np.generic) and isinstance(found, np.ndarray) and not found.ndim:
            return found[()]
        return found

    def check_pickles(self, allowed: bool) -> None:
        """Raises Refused for any pickle that is not allowed."""
        if self.pickles and not allowed:
            raise Refused(
                f"{listed(sorted(self.pickles))}: stored as a pickle, which runs code when loaded",
                hint="pass allow_pickle if you trust whoever saved it",
            )


@dataclass(slots=True)
class Part:
    """What is read of the leaves of one part of the state (ckpt_torch.reading.order)."""

    in_place: list[Want] = field(default_factory=list)
    """The caller's own memory, of the host."""
    on_devices: list[DeviceWant] = field(default_factory=list)
    """The caller's own memory, elsewhere."""
    new: list[Want] = field(default_factory=list)
    """What is given to the caller when the load is through."""
    twins: list[Twin] = field(default_factory=list)
    """Names of the caller's own memory that others fill, in this part."""
    changed: list[torch.Tensor] = field(default_factory=list)
    """The caller's own memory, wherever it lies."""


class _Place(msgspec.Struct, frozen=True, gc=False, eq=False):
    """The caller's own memory, and what it wants under one name."""

    part: int
    tensor: torch.Tensor
    want: Want


@dataclass(slots=True)
class StateWants:
    """I look up what one attempt of a load reads; used once."""

    contents: Contents
    who: Who
    order: LoadOrder
    parts: list[Part] = field(init=False)
    found: NewLeaves = field(default_factory=NewLeaves)
    #: Names of what was found, some more than once.
    _seen: list[str] = field(default_factory=list)
    _absent: list[str] = field(default_factory=list)
    _places: list[_Place] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.parts = [Part() for _ in range(self.order.part_count)]

    def look_up(
        self,
        state: Mapping[str, object],
        *,
        strict: bool,
        allow_pickle: bool,
        objects: Collection[str] = (),
    ) -> None:
        """Fill `parts` and `found`, whose arrays hold nothing yet. Raises Refused.

        objects: names of what takes its part by `load_state_dict`: a warning says what of it does
            not come back.
        """
        ranks = self.contents.ranks()
        mine = Rank(self.who.rank) if self.who.rank in ranks else ranks[0]
        values = self.contents.values(mine)
        self._compare_sequences(state, ranks, mine)
        missing: dict[str, object] = {}
        for name, leaf in leaves(state, without=self.found.sequences):
            if not self._look_up(name, leaf, mine, values):
                missing[name] = leaf
        if missing:
            for rank in ranks:
                if rank != mine:
                    values = {**self.contents.values(rank), **values}
            self._absent = [
                name for name, leaf in missing.items()
                if not self._look_up(name, leaf, mine, values)
            ]  # fmt: skip
        self._check_names(strict, values)
        self._warn_of_empty(state, values)
        if self.who.rank in ranks:  # Else this rank asks another one's tree, which has its names.
            self._warn_of_rest(objects, mine)
        self.found.check_pickles(allow_pickle)
        self._part()

    def _compare_sequences(
        self, state: Mapping[str, object], ranks: Sequence[Rank], mine: Rank
    ) -> None:
        """Plan those that are replaced as a whole. Raises Refused."""
        walk = SequenceWalk(unknown=[((), state)])
        for rank in [mine, *(rank for rank in ranks if rank != mine)]:
            if walk.unknown:
                walk.look_into(self.contents.tree(rank))
        self.found.sequences = {*walk.plain, *walk.packed}
        for name, node in walk.plain.items():
            self.found.values[name] = plain_data(node)
            self._seen.extend(f"{name}/{inner}" for inner in scalars_of(node))
        for name in walk.packed:
            self._in_one_piece(name, mine)

    def _part(self) -> None:
        """Memory is filled once, in the first part that names any of it."""
        if are_apart([place.tensor for place in self._places]):
            for place in self._places:
                self.parts[place.part].changed.append(place.tensor)
                self._fill(self.parts[place.part], place)
            return
        first: dict[Hashable, _Place] = {}
        fillers: list[tuple[Part, _Place]] = []
        tensors, parts = [p.tensor for p in self._places], [p.part for p in self._places]
        filled = zip(shared_parts(tensors, parts), self._places, strict=True)
        for number, place in sorted(filled, key=lambda one: (one[0], one[1].part)):
            here = place_of(place.tensor)
            filler = place if here is None else first.setdefault(here, place)
            part = self.parts[number]
            part.changed.append(place.tensor)
            if filler is not place:
                part.twins.append(Twin(filler.want.name, place.tensor.detach(), place.want))
                continue
            fillers.append((part, place))
            self._fill(part, place)
        for number, other in shared_memory([place.tensor for _, place in fillers]).items():
            part, place = fillers[number]
            name = fillers[other][1].want.name
            twin = Twin(name, place.tensor.detach(), place.want, in_part=True)
            part.twins.append(twin)

    def _fill(self, part: Part, place: _Place) -> None:
        if not place.tensor.is_cpu and is_apart(place.tensor.device):
            part.on_devices.append(DeviceWant.of(self.contents, place.tensor, place.want))
        else:
            part.in_place.append(place.want)

    def _check_names(self, strict: bool, values: Mapping[str, Scalar]) -> None:
        if not (strict or self._absent):
            return
        stored = {tensor.name for tensor in self.contents.tensors()} | set(values)
        surplus = sorted(stored.difference(self._seen))
        problems = [f"the checkpoint has no {listed(self._absent)}"] if self._absent else []
        if strict and surplus:
            problems.append(f"the state dict does not name {listed(surplus)}")
            hint = "strict=False takes a part"
        elif any(name.endswith(f"/{METADATA}") for name in surplus):
            hint = (
                "it holds the files that DCP wrote: dcp.load(state, checkpoint_id=URL) loads them"
            )
        elif surplus:  # A prefix too many or too few shows here.
            hint = f"it has {listed(surplus)}, which the state dict does not name"
        else:
            hint = "leave out of the state dict what was not saved"
        if problems:
            raise Refused("; ".join(problems), hint=hint)

    def _warn_of_empty(self, state: Mapping[str, object], values: Mapping[str, Scalar]) -> None:
        empty = list(empty_mappings(state))
        stored = {tensor.name for tensor in self.contents.tensors()} | set(values) if empty else ()
        for name in empty:
            below = sorted(one for one in stored if one.startswith(f"{name}/"))
            self._seen.extend(below)
            if below:
                warn(
                    f"{name} is empty here: {listed(below)} is not loaded. A new optimizer has no "
                    "state: load into what torch.distributed.checkpoint.state_dict's "
                    "get_state_dict(model, optimizer) gives"
                )

    def _warn_of_rest(self, objects: Collection[str], mine: Rank) -> None:
        if not objects:
            return
        tree = self.contents.tree(mine)
        saved = set(leaf_names(tree)) | set(self.contents.values(mine))
        unseen = sorted(saved.difference(self._seen))
        rest = [one for one in unseen if one.partition("/")[0] in objects]
        if rest:
            warn(
                f"{listed(rest)}: in the checkpoint, and not in what state_dict() of the object "
                "here names: it is not loaded"
            )

    def _look_up(self, name: str, leaf: object, rank: Rank, values: Mapping[str, Scalar]) -> bool:
        """Plan one leaf; False when the checkpoint has nothing of that name."""
        if type(leaf) in PLAIN_TENSORS or is_tensor(leaf):
            return self._tensor(name, leaf, rank, values)
        if name in values:
            if not is_plain(leaf):  # Also not an array, which is replaced like a plain value.
                raise Refused(f"{name}: stored as a plain value, here it is a {_kind(leaf)}")
            self._seen.append(name)
            self.found.values[name] = values[name]
            return True
        if self._in_one_piece(name, rank):
            return True
        if self.contents.variants(name):
            if isinstance(leaf, np.ndarray | np.generic):
                self._seen.append(name)
                self.found.values[name] = self._array(name, name, rank)
                return True
            raise Refused(f"{name}: stored as a tensor, here it is a {_kind(leaf)}")
        return False

    def _in_one_piece(self, name: str, rank: Rank) -> bool:
        """Plan a pickle, or what DCP's planner took for one value; False where it is neither."""
        for inner, found in (
            (pickle_name(name), self.found.pickles),
            (value_name(name), self.found.packed),
        ):
            if self.contents.variants(inner):
                self._seen.append(inner)
                found[name] = self._array(name, inner, rank)
                return True
        return False

    def _tensor(self, name: str, leaf: object, rank: Rank, values: Mapping[str, Scalar]) -> bool:
        found = self.contents.variants(name)
        # None stands for what other ranks alone hold.
        if name in values and not (values[name] is None and are_global(found)):
            raise Refused(f"{name}: stored as a plain value, here it is a tensor")
        if not found:
            return False
        self._seen.append(name)
        head = found[0]
        try:
            kind = torch_dtype(head.dtype)
            array = as_plain_array(leaf, kind)
            if array is not None and array.shape == head.global_shape and array.flags.c_contiguous:
                form = head if len(found) == 1 and head.meaning is not Meaning.OWN else None
                want = Want(name, array, (0,) * array.ndim, rank, form=form)
                tensor: torch.Tensor = leaf  # type: ignore[assignment]  # `cast` is a call.
                self._places.append(_Place(self.order.part_of(name), tensor, want))
                return True
            here = held(leaf)
        except Refused as error:
            raise Refused(f"{name}: {error.message}", hint=error.hint) from None
        self._check_shape(name, here.global_shape, head.global_shape)
        for box in here.boxes:
            if box.tensor.dtype != kind:
                raise Refused(
                    f"{name}: stored as {kind}, here {box.tensor.dtype}",
                    hint="nothing is converted: load into a tensor of that dtype",
                )
            self._want(name, box, rank, here.replicated)
        return True

    def _want(self, name: str, box: LocalBox, rank: Rank, replica: bool) -> None:
        target = box.tensor.detach()
        try:
            array = as_shape(target) if is_apart(target.device) else as_array(target)
        except Refused as error:
            raise Refused(f"{name}: {error.message}", hint=error.hint) from None
        if not target.is_contiguous():
            check_places(name, target.shape, target.stride())
        want = Want(name, array, box.offset, rank, replica)
        self._places.append(_Place(self.order.part_of(name), target, want))

    def _array(self, leaf: str, name: str, rank: Rank) -> AnyArray:
        """A new one for what is stored under the name, for a leaf."""
        tensor = self.contents.variants(name)[0]
        array: AnyArray = self.contents.new_array(tensor.global_shape, dtype_of(tensor.dtype))
        want = Want(name, array, (0,) * array.ndim, rank)
        self.parts[self.order.part_of(leaf)].new.append(want)
        return array

    def _check_shape(self, name: str, here: tuple[int, ...], stored: tuple[int, ...]) -> None:
        if here != stored:
            raise Refused(f"{name}: stored with global shape {stored}, here {here}")


def _kind(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
