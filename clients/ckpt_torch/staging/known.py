"""Is this state dict of the form that was saved last? Then its tensors are copied as they are.

A training's second save has the names, types, shapes and placements of its first: one walk sees
that and collects the local tensors (`ckpt_client.save.forms`); none becomes a numpy array on the
way. What is no plain tensor, one-box DTensor, numpy array or plain value goes the long way always.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Final, cast
from weakref import WeakKeyDictionary

import torch

from ckpt.aio.collector import collector_paused
from ckpt.base.errors import CkptError
from ckpt.format.tree import Path, Scalar, SequenceIndex, path_text
from ckpt_client.save.arrays import ARRAYS
from ckpt_client.save.forms import (
    ArrayForm,
    CopiedScalarForm,
    Form,
    Found,
    ScalarForm,
    StateForm,
    form_like,
    learn_form,
    mapping_form,
    sequence_form,
)
from ckpt_client.save.packing import StateLayout
from ckpt_client.save.state import encoded_scalar
from ckpt_client.store import Store
from ckpt_torch.boxes import held
from ckpt_torch.dtensors import dtensor_type, is_dtensor
from ckpt_torch.exchange import Holders, Shape
from ckpt_torch.place import Who
from ckpt_torch.staging.copying import Devices, devices_of
from ckpt_torch.tensors import PLAIN_TENSORS, Sizes, lie_in_memory, sizes_of
from ckpt_torch.tree import Settled, as_scalar, is_plain

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Placement


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """The form of a store's last save; it holds no tensor."""

    rank: int
    world_size: int
    form: StateForm
    layout: StateLayout
    shape: Shape
    """What other ranks know of this one."""
    plain: tuple[str, ...]
    """Names of the plain values, in the order of the walk."""
    devices: Devices
    """Of the arrays, in the order of the walk."""
    holders: Holders
    """What all ranks together came to; until they have met, what this one supposes."""
    supposed: bool = False
    """They have not met: nothing was saved yet, and `holders` is a guess."""

    def agrees(self, holders: Holders) -> bool:
        """Whether this is what the ranks have agreed on now: of what this rank holds. Other ranks'
        boxes, of which it supposed nothing, lie elsewhere in theirs.
        """
        return holders is self.holders or (
            self.supposed
            and self.holders.boxes.items() <= holders.boxes.items()
            and self.holders.plain.items() <= holders.plain.items()
        )

    def values(self, found: Found) -> dict[str, Scalar]:
        """The plain values by name."""
        return dict(zip(self.plain, found.scalars, strict=True))


_known: WeakKeyDictionary[Store, Known] = WeakKeyDictionary()


def recall(store: Store, who: Who) -> Known | None:
    """What is known of this rank's last save there."""
    known = _known.get(store)
    fits = known is not None and (known.rank, known.world_size) == (who.rank, who.world_size)
    return known if fits else None


def recognise(known: Known, state: Mapping[str, object]) -> Found | None:
    """What the state holds, if it has the known form."""
    with torch.no_grad():  # Else a DTensor's local tensor is a view with a history.
        return known.form.recognise(state)


def confirm(store: Store, known: Known, holders: Holders) -> None:
    """The ranks have met, and agreed on what was known or supposed."""
    if known.supposed:
        _known[store] = replace(known, holders=holders, supposed=False)


@dataclass(frozen=True, slots=True)
class Learnt:
    """What `Known` knows of a state that is not laid out yet."""

    form: StateForm
    plain: tuple[str, ...]
    devices: Devices


def learn(state: Settled, holders: Holders, *, all_plain: bool = False) -> Learnt | None:
    """A state's form; None when it is not one of ours.

    all_plain: `tensors.are_plain` took all its tensors a moment ago, and no other array is there.
    """
    walk = _Walk(state.kinds, holders)
    with torch.no_grad(), collector_paused():
        root = walk.form(state.tree, ())
        if walk.strange:
            return None
        devices = devices_of(walk.arrays)
        make = form_like if all_plain else learn_form
        form = make(root, walk.arrays, _fits(walk.arrays, devices))
    return None if form is None else Learnt(form, tuple(walk.plain), devices)


def remember(
    store: Store,
    learnt: Learnt | None,
    layout: StateLayout,
    shape: Shape,
    holders: Holders,
    *,
    supposed: bool = False,
) -> None:
    """Keep the form of what was just laid out, or nothing when it is not one of ours."""
    _known.pop(store, None)
    if learnt is not None:
        _known[store] = Known(
            layout.rank, layout.world_size, learnt.form, layout, shape, learnt.plain,
            learnt.devices, holders, supposed,
        )  # fmt: skip


def _fits(first: Sequence[object], devices: Devices) -> Callable[[Sequence[object]], bool]:
    """Whether all are numpy arrays, or dense tensors whose memory is what they say, each on the
    device where the first ones are.
    """
    # Of another dtype none is taken for what it was.
    kinds = set(map(_dtype_of, first))
    has_complex = any(isinstance(kind, torch.dtype) and kind.is_complex for kind in kinds)

    sizes = None
    if ARRAYS.isdisjoint(map(type, first)):
        sizes = sizes_of(cast(Sequence[torch.Tensor], first))

    def all_fit(found: Sequence[object]) -> bool:
        return _are_plain(found, has_complex, sizes) and devices_of(found) == devices

    return all_fit


def _are_plain(found: Sequence[object], has_complex: bool, sizes: Sizes | None) -> bool:
    """Loops of C's: each question asked of thousands of tensors is a part of the stall.

    sizes: of these tensors if they have the known dtypes and shapes, and no array is among them.
    """
    kinds = set(map(type, found))
    tensors = found
    if not kinds.isdisjoint(ARRAYS):
        tensors, sizes = [one for one in found if type(one) not in ARRAYS], None
    return (
        PLAIN_TENSORS.issuperset(kinds - ARRAYS)
        and set(map(_layout_of, tensors)) <= _DENSE
        and not (has_complex and any(map(torch.Tensor.is_conj, tensors)))
        and not any(map(torch.Tensor.is_neg, tensors))
        and lie_in_memory(cast(Sequence[torch.Tensor], tensors), sizes)
    )


_dtype_of: Final = attrgetter("dtype")
_layout_of: Final = attrgetter("layout")
_DENSE: Final = frozenset((torch.strided,))
_ARRAY: Final = ArrayForm()


class _Walk:
    """I learn the form of a settled state; `strange` when it has a leaf that must go the long
    way.
    """

    def __init__(self, kinds: Mapping[int, type], holders: Holders) -> None:
        self._kinds = kinds
        self._holders = holders
        self.plain: list[str] = []
        self.arrays: list[object] = []
        """As `StateForm.recognise` finds them."""
        self.strange = False

    def form(self, value: object, path: Path) -> Form:
        if type(value) is dict:
            children: list[Form] = []
            for key, child in value.items():
                if type(child) in PLAIN_TENSORS:
                    self.arrays.append(child)
                    children.append(_ARRAY)
                else:
                    children.append(self.form(child, (*path, key)))
            return mapping_form(self._kinds.get(id(value), dict), value, children)
        if type(value) is list or type(value) is tuple:
            items = [self.form(child, (*path, SequenceIndex(n))) for n, child in enumerate(value)]
            return sequence_form(self._kinds.get(id(value), type(value)), items)
        if is_plain(value):
            return self._plain(as_scalar(value), path_text(path))
        if is_dtensor(value):
            return self._dtensor(value)
        self.strange |= type(value) not in PLAIN_TENSORS and type(value) not in ARRAYS
        self.arrays.append(value)
        return _ARRAY

    def _plain(self, value: Scalar, name: str) -> Form:
        self.plain.append(name)
        if len(self._holders.plain[name]) != self._holders.world_size:
            return ScalarForm()
        try:
            self.arrays.append(encoded_scalar(value))
        except CkptError:  # To lay it out names the path.
            self.strange = True
        return CopiedScalarForm()

    def _dtensor(self, value: DTensor) -> Form:
        self.strange |= type(value) is not dtensor_type() or len(held(value).boxes) != 1
        self.arrays.append(value.to_local())
        return DTensorForm(tuple(value.shape), value.device_mesh, tuple(value.placements))


@dataclass(frozen=True, slots=True)
class DTensorForm:
    """A DTensor of which this rank holds one box: its whole local tensor."""

    shape: tuple[int, ...]
    mesh: DeviceMesh
    placements: tuple[Placement, ...]

    def gather(self, value: object, found: Found) -> bool:
        if type(value) is not dtensor_type():
            return False
        cut = cast("DTensor", value)
        found.wholes.append((len(found.arrays), cut))
        found.arrays.append(cut.to_local())
        same = cut.shape == self.shape and cut.placements == self.placements
        return bool(same and cut.device_mesh == self.mesh)
