"""Planning a save of tensors as if they were numpy arrays, wherever they lie.

Each tensor has an array of its dtype and shape without memory in its place until the state is laid
out: to have numpy see a tensor's own memory takes longer than all else that is asked of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Final, cast

import torch

from ckpt.base.errors import Refused
from ckpt_client.load.contents import shape_alone
from ckpt_client.save.arrays import AnyArray
from ckpt_client.save.finite import check_finite
from ckpt_client.save.packing import PackingPlan
from ckpt_torch.dtensors import is_dtensor
from ckpt_torch.staging.watch import Whole
from ckpt_torch.tensors import are_plain, as_array, as_shape, numpy_dtype

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

_shape_of: Final[Callable[[torch.Tensor], torch.Size]] = attrgetter("shape")
_dtype_of: Final[Callable[[torch.Tensor], torch.dtype]] = attrgetter("dtype")


class StandIns:
    """I know which array stands for which tensor, as long as I live."""

    def __init__(self) -> None:
        #: By the array's id.
        self._tensors: dict[int, torch.Tensor] = {}
        #: They live as long as this, so that the ids stay theirs.
        self._arrays: list[AnyArray] = []
        #: Ids of arrays whose tensors are to be checked for NaN and infinity once they are copied.
        self._checked: set[int] = set()
        #: DTensors, by the id of the array of their local part.
        self._wholes: dict[int, DTensor] = {}

    def array(self, tensor: torch.Tensor, whole: object = None) -> AnyArray:
        """An array of the dtype and shape. Raises Refused for a tensor that cannot be stored.

        whole: what the tensor is the local part of.
        """
        array = as_shape(tensor)
        self._note([array], [tensor])
        if is_dtensor(whole):
            self._wholes[id(array)] = whole
        return array

    def arrays(self, tensors: Sequence[torch.Tensor]) -> list[AnyArray] | None:
        """The same of each of thousands; None where `array` may have to refuse one."""
        if not are_plain(tensors):
            return None
        forms = list(zip(map(_shape_of, tensors), map(_dtype_of, tensors), strict=True))
        try:  # A model's tensors have few forms.
            firsts = {
                (shape, kind): shape_alone(tuple(shape), numpy_dtype(kind))
                for shape, kind in set(forms)
            }
        except Refused:
            return None
        arrays = [firsts[form].view() for form in forms]
        self._note(arrays, tensors)
        return arrays

    def _note(self, arrays: list[AnyArray], tensors: Sequence[torch.Tensor]) -> None:
        self._arrays += arrays
        self._tensors.update(zip(map(id, arrays), tensors, strict=True))

    def check_finite(self, name: str, array: AnyArray) -> None:
        """Raises Refused naming what holds NaN or infinity: now, or where it lies on a device once
        it is copied.
        """
        tensor = self._tensors.get(id(array))
        if tensor is None:
            check_finite(name, array)
        elif tensor.is_cpu:
            check_finite(name, as_array(tensor))
        else:
            self._checked.add(id(array))

    def check_all_finite(self, packing: PackingPlan) -> None:
        """The same of all arrays of a plan."""
        for name, array in zip(packing.layout.names, packing.arrays, strict=True):
            self.check_finite(name, cast(AnyArray, array))

    def wholes(self, packing: PackingPlan) -> list[Whole]:
        """Of a plan whose arrays were not replaced yet."""
        if not self._wholes:
            return []
        places = {id(array): number for number, array in enumerate(packing.arrays)}
        return [(places[key], whole) for key, whole in self._wholes.items() if key in places]

    def replaced(self, packing: PackingPlan) -> PackingPlan:
        """The plan with the tensors themselves."""
        ids = list(map(id, packing.arrays))
        arrays: tuple[object, ...] = tuple(map(self._tensors.get, ids, packing.arrays))
        checked = tuple([n for n, one in enumerate(ids) if one in self._checked])
        return dataclasses.replace(packing, arrays=arrays, checked=checked)
