"""What does each leaf of a state dict mean in a save, and which ranks hold it?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import starmap
from typing import cast

import msgspec
import numpy as np
import torch

from ckpt.aio.collector import collector_paused
from ckpt.base.errors import Refused
from ckpt.format.tree import Scalar, path_text
from ckpt_client.save.arrays import AnyArray, scalar_array, written_as
from ckpt_client.save.packing import PackingPlan
from ckpt_client.save.shards import Replicated, Shard, Shards
from ckpt_torch.boxes import Extent, held, is_tensor, mesh_holders
from ckpt_torch.exchange import Box, Holders, Shape
from ckpt_torch.place import Who
from ckpt_torch.staging.stand_ins import StandIns
from ckpt_torch.staging.watch import Whole
from ckpt_torch.tensors import PLAIN_TENSORS
from ckpt_torch.tree import (
    PICKLE_KEY,
    Settled,
    as_scalar,
    is_array,
    is_plain,
    leaves,
    pickle_name,
    pickled,
    replaced,
    settled,
)


def parts_of(
    state: Mapping[str, object], allow_pickle: bool, check_finite: bool | tuple[str, ...] = False
) -> StateParts:
    """Every leaf looked at; raises Refused by path.

    check_finite: as `ckpt_torch.async_save` takes it.
    """
    with collector_paused():
        parts = StateParts(settled(state), allow_pickle, check_finite)
        parts.add_all()
    return parts


class _Tensor(msgspec.Struct, frozen=True, gc=False):
    """The boxes in memory of a leaf that may be here in part."""

    global_shape: Extent
    boxes: tuple[tuple[Extent, AnyArray], ...]
    """(offset, array)."""
    ranks: Extent = ()
    """Which ranks hold these boxes, as its mesh says; empty for what has none."""


@dataclass(slots=True)
class StateParts:
    """I look at each leaf of a state once: what it is, and where its memory lies."""

    settled: Settled
    allow_pickle: bool
    check_finite: bool | tuple[str, ...]
    stand_ins: StandIns = field(default_factory=StandIns)
    wholes: dict[str, AnyArray] = field(default_factory=dict)
    """Of plain tensors, arrays and pickles: nearly all."""
    tensors: dict[str, _Tensor] = field(default_factory=dict)
    """Those that know of ranks."""
    plain: dict[str, Scalar] = field(default_factory=dict)
    leaves: list[tuple[str, object]] = field(default_factory=list)
    """In the state's order."""
    all_plain: bool = False
    """Whether its arrays are plain tensors, which were looked at together, and nothing else."""
    all_whole: bool = True
    """Whether each tensor is here as a whole."""

    def add_all(self) -> None:
        """Raises Refused by path."""
        self.leaves = list(leaves(self.settled.tree))
        names = [name for name, leaf in self.leaves if type(leaf) in PLAIN_TENSORS]
        tensors = [leaf for _, leaf in self.leaves if type(leaf) in PLAIN_TENSORS]
        # Nearly all leaves are these, and nearly never is one of them odd.
        arrays = self.stand_ins.arrays(cast(list[torch.Tensor], tensors))
        if arrays is not None:
            self.wholes = dict(zip(names, arrays, strict=True))
            if self.check_finite:
                for name, array in zip(names, arrays, strict=True):
                    self._check_finite(name, array)
        for name, leaf in self.leaves:
            if arrays is None or type(leaf) not in PLAIN_TENSORS:
                self._add(name, leaf)
        self.all_plain = arrays is not None and len(self.wholes) == len(names) and not self.tensors

    def _add(self, name: str, leaf: object) -> None:
        try:
            if type(leaf) in PLAIN_TENSORS:
                (box,) = held(leaf).boxes
                self.wholes[name] = self.stand_ins.array(box.tensor, leaf)
            elif is_tensor(leaf):
                self.tensors[name] = self._tensor_of(leaf)
            elif is_array(leaf):
                self.wholes[name] = _array_of(leaf)
            elif is_plain(leaf):
                self.plain[name] = as_scalar(leaf)
            elif self.allow_pickle:
                self.wholes[pickle_name(name)] = pickled(leaf)
            else:
                raise _not_plain(leaf)
        except Refused as error:
            raise Refused(f"{name or 'the state'}: {error.message}", hint=error.hint) from None
        if name in self.wholes:
            self._check_finite(name, self.wholes[name])
        elif name in self.tensors:
            for _, array in self.tensors[name].boxes:
                self._check_finite(name, array)

    def _tensor_of(self, leaf: object) -> _Tensor:
        found = held(leaf)
        boxes = tuple((box.offset, self.stand_ins.array(box.tensor, leaf)) for box in found.boxes)
        self.all_whole &= [array.shape for _, array in boxes] == [found.global_shape]
        return _Tensor(found.global_shape, boxes, mesh_holders(leaf))

    def _check_finite(self, name: str, array: AnyArray) -> None:
        asked = self.check_finite
        if not isinstance(asked, bool):
            asked = name.partition("/")[0] in [path_text((key,)) for key in asked]
        if asked:
            self.stand_ins.check_finite(name, array)

    def shape(self) -> Shape:
        """What other ranks need to know."""
        with collector_paused():
            return Shape.of([box for box, _ in self._boxes()], self.plain)

    def guessed_holders(self, who: Who) -> Holders:
        """Which ranks hold what, as far as this one can say without them: a DTensor's boxes those
        that its mesh says, all else everyone.
        """
        everyone = tuple(range(who.world_size))
        boxes = {box: ranks or everyone for box, ranks in self._boxes()}
        return Holders(boxes, dict.fromkeys(self.plain, everyone), who.world_size)

    def _boxes(self) -> Iterator[tuple[Box, Extent]]:
        """Each with the ranks that hold it, as its mesh says; none where it has none."""
        for name, array in self.wholes.items():
            yield (name, (0,) * array.ndim, array.shape), ()
        for name, tensor in self.tensors.items():
            for offset, array in tensor.boxes:
                yield (name, offset, array.shape), tensor.ranks

    def laid_out(
        self, lay_out: Callable[[object], PackingPlan], holders: Holders
    ) -> tuple[PackingPlan, list[Whole]]:
        """The plan with the tensors themselves, and which DTensors these are parts of.

        lay_out: as `SaveTurn.lay_out`; this raises what it raises.
        """
        with collector_paused():
            packing = lay_out(self._with_meaning(holders))
            return self.stand_ins.replaced(packing), self.stand_ins.wholes(packing)

    def _with_meaning(self, holders: Holders) -> object:
        """The state with the meaning of each leaf."""
        if self.all_whole and holders.all_common:  # As of one rank, or copies: said once for all.
            return Replicated(replaced(self.settled.tree, starmap(self._stored, self.leaves)))
        declared = [self._declare(name, leaf, holders) for name, leaf in self.leaves]
        return replaced(self.settled.tree, iter(declared))

    def _stored(self, name: str, leaf: object) -> object:
        """What stands for a leaf of which all is here."""
        whole = self.wholes.get(name)
        if whole is not None:
            return whole
        if name in self.tensors:
            return self.tensors[name].boxes[0][1]
        return leaf if name in self.plain else {PICKLE_KEY: self.wholes[pickle_name(name)]}

    def _declare(self, name: str, leaf: object, holders: Holders) -> object:
        """The leaf with its meaning."""
        if name in self.plain:
            common = len(holders.plain[name]) == holders.world_size
            return Replicated(leaf) if common else leaf
        if name in self.tensors:
            return _declared(name, self.tensors[name], holders)
        if name in self.wholes:
            return _declared(name, _whole(self.wholes[name]), holders)
        inner = pickle_name(name)
        return {PICKLE_KEY: _declared(inner, _whole(self.wholes[inner]), holders)}


def _not_plain(leaf: object) -> Refused:
    kind = f"{type(leaf).__module__}.{type(leaf).__qualname__}"
    if isinstance(leaf, np.ndarray):
        return Refused(
            f"a {kind} is no plain array",
            hint="save the arrays that it is made of, or set allow_pickle=True",
        )
    form = "save its state_dict()" if hasattr(leaf, "state_dict") else written_as(leaf)
    form = form or "keep its state as dicts, lists, numbers and text"
    return Refused(f"a {kind} is not plain data", hint=f"{form}, or set allow_pickle=True")


def _declared(name: str, tensor: _Tensor, holders: Holders) -> object:
    shards = []
    for offset, array in tensor.boxes:
        ranks = holders.boxes[name, offset, array.shape]
        if len(ranks) == holders.world_size and array.shape == tensor.global_shape:
            return Replicated(array)
        shards.append(Shard(array, tensor.global_shape, offset, ranks if len(ranks) > 1 else ()))
    if not shards:
        return None  # Outside of the tensor's mesh: nothing of it is here.
    return shards[0] if len(shards) == 1 else Shards(tuple(shards))


def _array_of(leaf: object) -> AnyArray:
    """What a leaf of numpy's holds."""
    return scalar_array(leaf) if isinstance(leaf, np.generic) else np.asarray(leaf)


def _whole(array: AnyArray) -> _Tensor:
    return _Tensor(array.shape, (((0,) * array.ndim, array),))
