"""`load`: DCP's call, without planner and storage reader. It fills the caller's own state dict.

Each rank reads the bytes of its own boxes, whatever sharding they were saved with. If several ranks
want the same bytes at the same time, one reads them and passes them on
(ckpt_client.load.together.sharing). Plain values come from the rank's own tree, else from whichever
rank had the name. Tensors on a device are read through a ring of host memory
(ckpt_torch.reading.device_reads).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.autograd.graph import increment_version
from torch.distributed._shard.sharded_tensor.api import ShardedTensor

from ckpt.aio.collector import collector_paused
from ckpt.format.tree import below
from ckpt_client.load.checkpoint import Checkpoint
from ckpt_client.load.contents import Contents
from ckpt_client.save.staged import wait_for_stagings
from ckpt_client.store import Store
from ckpt_torch.dtensors import is_dtensor
from ckpt_torch.modes import uncompiled
from ckpt_torch.place import CheckpointName, Who, find_where, find_who
from ckpt_torch.reading.device_reads import RING_BYTES, DeviceReads
from ckpt_torch.reading.order import LoadOrder
from ckpt_torch.reading.twins import check_twins
from ckpt_torch.reading.wants import NewLeaves, StateWants
from ckpt_torch.tensors import PLAIN_TENSORS
from ckpt_torch.tree import asked, check_depth, is_stateful, leaf_values, leaves, refill


@uncompiled
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
    order: Sequence[str] = (),
    ring_bytes: int = RING_BYTES,
) -> int:
    """Fill the tensors of `state_dict` in place, and replace everything else in it: a list or tuple
    of plain values has as many items afterwards as were saved. Returns the step.

    state_dict: as in `async_save`, of any sharding and number of ranks. Tensors must have the
        saved dtype and global shape. Objects with `state_dict()` get their part through
        `load_state_dict()`; a warning names what was saved of them and is not in theirs.
    checkpoint_id, store: as in `async_save`; without a step the newest, the same for all ranks.
    process_group, no_dist: as in `async_save`.
    allow_pickle: load objects that were saved as pickles; this runs whatever code they name.
    strict: refuse a checkpoint that holds names that `state_dict` does not ask for.
    timeout_s: how many seconds to wait for a checkpoint that is out of reach.
    order: paths that are read first, in that order, such as ["model"]; the same on all ranks.
        `async_load` lets you use them before the rest is here.
    ring_bytes: how much page-locked host memory each process uses to read tensors to devices,
        whatever their size. The same on all ranks.

    Raises Refused, with the path, for a name that the checkpoint lacks, another dtype or global
    shape, and pickles that are not allowed, before anything is changed; NotFound, Unavailable,
    Lost; Aborted when a device fails; Refused for names that share memory here and differ in the
    checkpoint. After a later error the tensors may hold anything.
    """
    where, who = find_where(checkpoint_id, store), find_who(process_group, no_dist)
    state = asked_to_fill(state_dict)
    objects = objects_of(state_dict)
    job = LoadJob(state, who, LoadOrder(order, names_of(state)), strict, allow_pickle, objects)
    with (
        DeviceReads(tensors_of(state), ring_bytes) as devices,
        where.store.resolve(
            where.run, where.step, rank=who.rank, world_size=who.world_size, timeout_s=timeout_s
        ) as checkpoint,
    ):
        found = job.read(checkpoint, devices)
        step = checkpoint.step
    give_back(state_dict, state, found)
    return step


def fill(
    checkpoint: Checkpoint,
    state_dict: dict[str, object],
    who: Who,
    *,
    allow_pickle: bool = False,
) -> None:
    """`load` of a checkpoint that is resolved already, and stays open. Raises what `load`
    raises.
    """
    state = asked_to_fill(state_dict)
    job = LoadJob(state, who, LoadOrder((), ()), strict=False, allow_pickle=allow_pickle)
    with DeviceReads(tensors_of(state)) as devices:
        found = job.read(checkpoint, devices)
    give_back(state_dict, state, found)


@dataclass(frozen=True, slots=True)
class LoadJob:
    """One load of a state, over all its attempts."""

    state: Mapping[str, object]
    """As `asked` gives it."""
    who: Who
    order: LoadOrder
    strict: bool
    allow_pickle: bool
    objects: frozenset[str] = frozenset()
    """Names of those that get their part as a whole."""

    def read(self, checkpoint: Checkpoint, devices: DeviceReads) -> NewLeaves:
        """Read all of it; what is not filled in place is what `give_back` takes. Raises as
        `load`."""
        wait_for_stagings()
        return checkpoint.read(lambda contents: self._once(checkpoint, contents, devices))

    def _once(self, checkpoint: Checkpoint, contents: Contents, devices: DeviceReads) -> NewLeaves:
        """One attempt: all problems are named, then everything is read."""
        contents.expect(devices.wanted_bytes, in_pieces=devices.host_in_pieces)
        wanted = StateWants(contents, self.who, self.order)
        with collector_paused():
            wanted.look_up(
                self.state, strict=self.strict, allow_pickle=self.allow_pickle, objects=self.objects
            )
        generation = checkpoint.info.checkpoint
        self.order.begin(generation)
        for number, part in enumerate(wanted.parts):
            if self.order.is_handed_out(number):
                devices.fill(contents, part.new, ())
                continue
            # Torch does not see that: a backward pass whose values these were must not go on.
            increment_version(part.changed)
            devices.fill(contents, [*part.in_place, *part.new], part.on_devices)
            if part.twins:
                devices.wait_copied()
                check_twins(contents, part.twins)
            if self.order.hands_out:
                devices.wait_copied()
                self.order.hand_out(number, generation)
        devices.wait_copied()
        return wanted.found


def asked_to_fill(state_dict: Mapping[str, object]) -> dict[str, object]:
    """`asked`, for a load: what holds itself has no end to fill. Raises Refused by path."""
    state = asked(state_dict)
    check_depth(state)
    return state


def objects_of(state_dict: Mapping[str, object]) -> frozenset[str]:
    """Names of the objects with `load_state_dict`."""
    others = [(key, one) for key, one in state_dict.items() if type(one) not in PLAIN_TENSORS]
    found = [key for key, one in others if not isinstance(one, torch.Tensor)]
    return frozenset(below("", key) for key in found if is_stateful(state_dict[key]))


def names_of(state: Mapping[str, object]) -> Iterator[str]:
    """The names of all leaves."""
    return (name for name, _ in leaves(state))


def tensors_of(state: Mapping[str, object]) -> Iterator[torch.Tensor]:
    """This rank's part of all tensors."""
    for leaf in leaf_values(state):
        if type(leaf) in PLAIN_TENSORS:
            yield leaf  # type: ignore[misc]  # A call of `cast` for each costs more.
        elif is_dtensor(leaf):
            yield leaf.to_local()
        # That is a tensor as well, which has no bytes of its own.
        elif isinstance(leaf, ShardedTensor):
            yield from (shard.tensor for shard in leaf.local_shards())
        elif isinstance(leaf, torch.Tensor):
            yield leaf


def give_back(state_dict: dict[str, object], state: dict[str, object], found: NewLeaves) -> None:
    """Put what was not filled in place into the caller's dict and objects."""
    refill(state, found.value, whole=found.sequences)
    for key, value in state.items():
        target = state_dict[key]
        if value is target and type(value) in PLAIN_TENSORS:
            continue  # As nearly all are, and filled in place.
        if is_stateful(target):
            assert isinstance(value, dict)
            target.load_state_dict(value)
        else:
            state_dict[key] = value
