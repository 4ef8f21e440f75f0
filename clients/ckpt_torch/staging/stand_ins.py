"""Planning a save of tensors as if they were numpy arrays, wherever they lie.

A tensor of an accelerator has an array of its dtype and shape without memory in its place until the
state is laid out.
"""

from __future__ import annotations

import dataclasses
from typing import cast

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from ckpt_client.save.finite import check_finite
from ckpt_client.save.packing import PackingPlan
from ckpt_client.save.state import AnyArray
from ckpt_torch.staging.watch import Whole
from ckpt_torch.tensors import as_array, check_plain, numpy_dtype


class StandIns:
    """I know which array stands for which tensor, as long as I live."""

    def __init__(self) -> None:
        #: By the array's id; the arrays live as long as this.
        self._tensors: dict[int, tuple[AnyArray, torch.Tensor]] = {}
        #: Ids of arrays whose tensors are to be checked for NaN and infinity once they are copied.
        self._checked: set[int] = set()
        #: DTensors, by the id of the array of their local part.
        self._wholes: dict[int, DTensor] = {}

    def array(self, tensor: torch.Tensor, whole: object = None) -> AnyArray:
        """A view of a CPU tensor's memory, else an array of the dtype and shape. Raises Refused for
        a tensor that cannot be stored.

        whole: what the tensor is the local part of.
        """
        if tensor.is_cpu:
            array = as_array(tensor)
        else:
            check_plain(tensor)
            array = np.broadcast_to(np.zeros((), numpy_dtype(tensor.dtype)), tuple(tensor.shape))
        self._tensors[id(array)] = array, tensor
        if isinstance(whole, DTensor):
            self._wholes[id(array)] = whole
        return array

    def check_finite(self, name: str, array: AnyArray) -> None:
        """Raises Refused naming what holds NaN or infinity: now, or where it lies on a device once
        it is copied.
        """
        found = self._tensors.get(id(array))
        if found is None or found[1].is_cpu:
            check_finite(name, array)
        else:
            self._checked.add(id(array))

    def check_all_finite(self, packing: PackingPlan) -> None:
        """The same of all arrays of a plan."""
        for name, array in zip(packing.layout.names, packing.arrays, strict=True):
            self.check_finite(name, cast(AnyArray, array))

    def wholes(self, packing: PackingPlan) -> list[Whole]:
        """Of a plan whose arrays were not replaced yet."""
        places = {id(array): number for number, array in enumerate(packing.arrays)}
        return [(places[key], whole) for key, whole in self._wholes.items() if key in places]

    def replaced(self, packing: PackingPlan) -> PackingPlan:
        """The plan with the tensors themselves."""
        arrays = [self._tensor_of(array) for array in packing.arrays]
        checked = [n for n, array in enumerate(packing.arrays) if id(array) in self._checked]
        return dataclasses.replace(packing, arrays=tuple(arrays), checked=tuple(checked))

    def _tensor_of(self, array: object) -> object:
        found = self._tensors.get(id(array))
        return array if found is None else found[1]
