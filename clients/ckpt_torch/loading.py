"""`load`: DCP's call, without planner and storage reader. It fills the caller's own state dict.

Each rank reads the bytes of its own boxes, whatever the sharding that they were saved with; what
several ranks want at the same time is read by one of them and passed on
(ckpt_client.load.together.sharing). Plain values come from the rank's own tree, else from
whichever rank had the name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as dist

from ckpt.base.errors import Refused
from ckpt.base.ids import Rank
from ckpt.format.dtypes import dtype_of
from ckpt.format.tree import Scalar
from ckpt_client.load.checkpoint import Checkpoint
from ckpt_client.load.contents import Contents, Want
from ckpt_client.load.trees import listed
from ckpt_client.save.state import AnyArray
from ckpt_client.store import Store
from ckpt_torch.boxes import LocalBox, held, is_tensor
from ckpt_torch.dcp_names import unpack_value, value_name
from ckpt_torch.device.accelerators import accelerator_of
from ckpt_torch.device.page_locks import locked_memory
from ckpt_torch.place import CheckpointName, Who, find_where, find_who
from ckpt_torch.tensors import as_array, check_plain, torch_dtype
from ckpt_torch.tree import asked, is_plain, is_stateful, leaves, pickle_name, refill, unpickled


def load(
    state_dict: dict[str, object],
    *,
    checkpoint_id: CheckpointName | None = None,
    process_group: dist.ProcessGroup | None = None,
    no_dist: bool = False,
    store: Store | str | None = None,
    allow_pickle: bool = False,
    strict: bool = False,
    timeout_s: float = 30.0,
) -> int:
    """Fill the tensors of `state_dict` in place, replace all else in it; returns the step.

    state_dict: as in `async_save`, of any sharding and number of ranks. Tensors must have the
        saved dtype and global shape. Objects with `state_dict()` get their part through
        `load_state_dict()`.
    checkpoint_id, store: as in `async_save`; without a step the newest, the same for all ranks.
    process_group, no_dist: as in `async_save`.
    allow_pickle: load objects that were saved with it; runs whatever code they name.
    strict: refuse a checkpoint that holds names which `state_dict` does not ask for.
    timeout_s: how many seconds to wait for a checkpoint that is out of reach.

    Raises Refused by path for a name that the checkpoint lacks, another dtype or global shape, and
    pickles that are not allowed, before anything is changed; NotFound, Unavailable, Lost. After an
    error that comes later, the tensors may hold anything.
    """
    where, who = find_where(checkpoint_id, store), find_who(process_group, no_dist)
    state = asked(state_dict)
    with where.store.resolve(
        where.run, where.step, rank=who.rank, world_size=who.world_size, timeout_s=timeout_s
    ) as checkpoint:
        _read(checkpoint, state, who, strict, allow_pickle)
        step = checkpoint.step
    _give_back(state_dict, state)
    return step


def fill(
    checkpoint: Checkpoint,
    state_dict: dict[str, object],
    who: Who,
    *,
    allow_pickle: bool = False,
) -> None:
    """`load` of a checkpoint that is resolved, and stays open. Raises what `load` raises."""
    state = asked(state_dict)
    _read(checkpoint, state, who, strict=False, allow_pickle=allow_pickle)
    _give_back(state_dict, state)


def _read(
    checkpoint: Checkpoint, state: dict[str, object], who: Who, strict: bool, allow_pickle: bool
) -> None:
    found = checkpoint.read(
        lambda contents: _Reading(contents, who).run(state, strict, allow_pickle)
    )
    refill(state, found.value)


def _give_back(state_dict: dict[str, object], state: Mapping[str, object]) -> None:
    for key, value in state.items():
        target = state_dict[key]
        if is_stateful(target):
            assert isinstance(value, dict)
            target.load_state_dict(value)
        else:
            state_dict[key] = value


@dataclass(slots=True)
class _Found:
    """What replaces the leaves of the caller's tree, when every byte is here."""

    values: dict[str, object] = field(default_factory=dict)
    pickles: dict[str, AnyArray] = field(default_factory=dict)
    packed: dict[str, AnyArray] = field(default_factory=dict)
    """Plain data as DCP's planner cuts it: a list of numbers is one leaf."""

    def value(self, name: str, leaf: object) -> object:
        if name in self.pickles:
            return unpickled(self.pickles[name])
        if name in self.packed:
            return unpack_value(self.packed[name])
        return self.values.get(name, leaf)

    def check_pickles(self, allowed: bool) -> None:
        if self.pickles and not allowed:
            raise Refused(
                f"{listed(sorted(self.pickles))}: stored as a pickle, which runs code when loaded",
                hint="pass allow_pickle if you trust whoever saved it",
            )


@dataclass(slots=True)
class _Reading:
    """One attempt: I look every leaf up, name all problems, then read everything at once."""

    contents: Contents
    who: Who
    wants: list[Want] = field(default_factory=list)
    copies: dict[torch.device, list[tuple[torch.Tensor, torch.Tensor]]] = field(
        default_factory=dict
    )
    """(tensor of an accelerator, what was read for it)."""
    seen: set[str] = field(default_factory=set)
    absent: list[str] = field(default_factory=list)
    found: _Found = field(default_factory=_Found)

    def run(self, state: Mapping[str, object], strict: bool, allow_pickle: bool) -> _Found:
        ranks = self.contents.ranks()
        mine = Rank(self.who.rank) if self.who.rank in ranks else ranks[0]
        values = self.contents.values(mine)
        missing: dict[str, object] = {}
        for name, leaf in leaves(state):
            if not self._look_up(name, leaf, mine, values):
                missing[name] = leaf
        if missing:
            for rank in ranks:
                if rank != mine:
                    values = {**self.contents.values(rank), **values}
            self.absent = [
                name for name, leaf in missing.items()
                if not self._look_up(name, leaf, mine, values)
            ]  # fmt: skip
        self._check_names(strict, values)
        self.found.check_pickles(allow_pickle)
        self.contents.fill(self.wants)
        self._copy_in()
        return self.found

    def _copy_in(self) -> None:
        through = []
        for device, pairs in self.copies.items():
            sources, targets = [one for _, one in pairs], [one for one, _ in pairs]
            through.append(accelerator_of(device).copy_in(sources, targets))
        for point in through:
            point.wait()

    def _check_names(self, strict: bool, values: Mapping[str, Scalar]) -> None:
        if not (strict or self.absent):
            return
        stored = {tensor.name for tensor in self.contents.tensors()} | set(values)
        surplus = sorted(stored - self.seen)
        problems = [f"the checkpoint has no {listed(self.absent)}"] if self.absent else []
        if strict and surplus:
            problems.append(f"the state dict does not name {listed(surplus)}")
            hint = "strict=False takes a part"
        elif surplus:  # A prefix too many or too few shows here.
            hint = f"it has {listed(surplus)}, which the state dict does not name"
        else:
            hint = "leave out of the state dict what was not saved"
        if problems:
            raise Refused("; ".join(problems), hint=hint)

    def _look_up(self, name: str, leaf: object, rank: Rank, values: Mapping[str, Scalar]) -> bool:
        """Plan one leaf; False when the checkpoint has nothing of that name."""
        if is_tensor(leaf):
            return self._tensor(name, leaf, rank, values)
        if name in values:
            if not is_plain(leaf):  # Also not an array, which is replaced like a plain value.
                raise Refused(f"{name}: stored as a plain value, here it is a {_kind(leaf)}")
            self.seen.add(name)
            self.found.values[name] = values[name]
            return True
        if self.contents.variants(pickle_name(name)):
            inner = pickle_name(name)
            self.seen.add(inner)
            self.found.pickles[name] = self._array(inner, rank)
            return True
        inner = value_name(name)
        if self.contents.variants(inner):
            self.seen.add(inner)
            self.found.packed[name] = self._array(inner, rank)
            return True
        if self.contents.variants(name):
            if isinstance(leaf, np.ndarray | np.generic):
                self.seen.add(name)
                self.found.values[name] = self._array(name, rank)
                return True
            raise Refused(f"{name}: stored as a tensor, here it is a {_kind(leaf)}")
        return False

    def _tensor(self, name: str, leaf: object, rank: Rank, values: Mapping[str, Scalar]) -> bool:
        found = self.contents.variants(name)
        # None stands for what other ranks alone hold.
        if name in values and (values[name] is not None or not found):
            raise Refused(f"{name}: stored as a plain value, here it is a tensor")
        if not found:
            return False
        self.seen.add(name)
        here = held(leaf)
        self._check_shape(name, here.global_shape, found[0].global_shape)
        for box in here.boxes:
            if box.tensor.dtype != torch_dtype(found[0].dtype):
                raise Refused(
                    f"{name}: stored as {torch_dtype(found[0].dtype)}, here {box.tensor.dtype}",
                    hint="nothing is converted: load into a tensor of that dtype",
                )
            self._want(name, box, rank, here.replicated)
        return True

    def _want(self, name: str, box: LocalBox, rank: Rank, replica: bool) -> None:
        target = box.tensor.detach()
        memory = target
        try:
            if not target.is_cpu:
                check_plain(target)
                memory = locked_memory(target.device, target.nbytes).view(target.dtype)
                memory = memory.view(target.shape)
                self.copies.setdefault(target.device, []).append((target, memory))
            array = as_array(memory)
        except Refused as error:
            raise Refused(f"{name}: {error.message}", hint=error.hint) from None
        self.wants.append(Want(name, array, box.offset, rank, replica))

    def _array(self, name: str, rank: Rank) -> AnyArray:
        tensor = self.contents.variants(name)[0]
        array: AnyArray = self.contents.new_array(tensor.global_shape, dtype_of(tensor.dtype))
        self.wants.append(Want(name, array, (0,) * array.ndim, rank))
        return array

    def _check_shape(self, name: str, here: tuple[int, ...], stored: tuple[int, ...]) -> None:
        if here != stored:
            raise Refused(f"{name}: stored with global shape {stored}, here {here}")


def _kind(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
