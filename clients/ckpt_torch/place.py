"""Which store, run, step, rank and launch is meant: from DCP's arguments and the process group."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch.distributed as dist

from ckpt.base.errors import Refused
from ckpt.base.units import counted
from ckpt_client.default import process_store
from ckpt_client.environment import find_place
from ckpt_client.save.turn import SaveTurn
from ckpt_client.step_url import parse_step_url
from ckpt_client.store import Store

if TYPE_CHECKING:
    from ckpt_client.preemption.guard import PreemptionGuard

CheckpointName = str | os.PathLike[str]
NAME_HINT: Final = "name RUN/STEP, or ckpt://HOST:PORT/RUN/STEP"


@dataclass(frozen=True, slots=True)
class Where:
    """A checkpoint in an open store."""

    store: Store
    run: str
    step: int | None


@dataclass(frozen=True, slots=True)
class Step:
    """A checkpoint to be made in an open store."""

    store: Store
    run: str
    number: int

    def turn(self, rank: int, world_size: int, begun_s: float | None = None) -> SaveTurn:
        """That rank's turn in its save. Raises Refused when the store is closed."""
        return self.store.turn(
            self.run, self.number, rank=rank, world_size=world_size, begun_s=begun_s
        )


@dataclass(frozen=True, slots=True)
class Who:
    """This rank among those that save or load together."""

    rank: int
    world_size: int
    group: dist.ProcessGroup | None
    """None for the default group, when `speaking`."""
    speaking: bool
    """The ranks can talk: there is a process group."""


def launch_key(process_group: dist.ProcessGroup | None = None) -> str:
    """A word for `ckpt.open(launch=...)` that all ranks of this start of the job share, and no
    other start has. All ranks of the group call it together, once: its first rank makes the word
    and broadcasts it. It needs nothing of the launcher, whose nodes may count restarts apart.

    process_group: the ranks that save; default all.

    Raises Refused when the ranks have no process group to talk by.
    """
    who = find_who(process_group, no_dist=False)
    words = [f"torch:{secrets.token_hex(16)}"]
    if who.speaking:
        first = 0 if process_group is None else dist.get_process_group_ranks(process_group)[0]
        dist.broadcast_object_list(words, src=first, group=process_group)
    elif who.world_size > 1:
        raise Refused(
            f"launch_key: {counted(who.world_size, 'rank')} without a process group",
            hint="call torch.distributed.init_process_group first",
        )
    return words[0]


def find_where(checkpoint_id: CheckpointName | None, store: Store | str | None) -> Where:
    """The place that a checkpoint_id names, in `store` when it is given.

    Raises Refused when it names none, or two stores are named.
    """
    if checkpoint_id is None:
        raise Refused("no checkpoint_id", hint=NAME_HINT)
    name = os.fspath(checkpoint_id) if isinstance(checkpoint_id, os.PathLike) else checkpoint_id
    if not isinstance(name, str):
        raise Refused(f"checkpoint_id {checkpoint_id!r} is no text", hint=NAME_HINT)
    url = parse_step_url(name)
    if store is not None and url.store is not None:
        raise Refused(f"store= and {name} both name a store")
    if isinstance(store, Store):
        return Where(store, url.run, url.step)
    return Where(process_store(store or url.store), url.run, url.step)


def find_step(checkpoint_id: CheckpointName | None, store: Store | str | None) -> Step:
    """The step that a save is to make; Refused when the checkpoint_id names none."""
    where = find_where(checkpoint_id, store)
    if where.step is None:
        raise Refused(
            f"checkpoint_id {checkpoint_id!s} names no step",
            hint=f"the step is its end, a number, as in {checkpoint_id!s}/100",
        )
    return Step(where.store, where.run, where.step)


def find_guard(run: CheckpointName, store: Store | str | None, grace_s: float) -> PreemptionGuard:
    """This rank's preemption guard: one for each rank of the process group, else of the launcher's.

    Raises as `Store.preemption` and `find_where`.
    """
    where, who = find_where(run, store), find_who(None, no_dist=False)
    return where.store.preemption(
        where.run, grace_s=grace_s, rank=who.rank, world_size=who.world_size
    )


def find_who(group: dist.ProcessGroup | None, no_dist: bool) -> Who:
    """The seat in the process group; without one the launcher's, with `no_dist` rank 0 of 1.

    Raises Refused when this process is not in the group, or the environment contradicts it.
    """
    if no_dist:
        return Who(0, 1, None, False)
    if not (dist.is_available() and dist.is_initialized()):
        place = find_place()
        return Who(place.rank, place.world_size, None, False)
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    if rank < 0:
        raise Refused("this process is not in the process group")
    if group is None and os.environ.get("WORLD_SIZE", str(world_size)) != str(world_size):
        raise Refused(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']} in the environment, "
            f"the process group has {counted(world_size, 'rank')}",
            hint="unset it, or pass process_group=",
        )
    return Who(rank, world_size, group, world_size > 1)
