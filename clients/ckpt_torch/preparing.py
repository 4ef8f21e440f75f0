"""`prepare`: does beside the training, ahead of the first save, what that save would wait for."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial

import torch.distributed as dist

from ckpt.base.errors import CkptError
from ckpt_client.default import process_store
from ckpt_client.store import Store
from ckpt_torch.place import CheckpointName, find_where, find_who
from ckpt_torch.staging.copying import TorchCopier
from ckpt_torch.staging.known import learn, recall, recognise, remember
from ckpt_torch.staging.parts import parts_of
from ckpt_torch.tree import asked, check_keys

_log = logging.getLogger("ckpt.save")


def prepare_ahead(
    state_dict: Mapping[str, object], *,
    checkpoint_id: CheckpointName, store: Store | str | None = None, no_dist: bool = False,
    allow_pickle: bool = False,
) -> None:  # fmt: skip
    """Prepare on behalf of an adapter, without a request: errors only go to the log, since the save
    itself raises them on all ranks.
    """
    try:
        prepare(
            state_dict, checkpoint_id=checkpoint_id, store=store, no_dist=no_dist,
            allow_pickle=allow_pickle,
        )  # fmt: skip
    except CkptError as error:
        _log.warning("%s is not prepared for its saves: %s", checkpoint_id, error)


def prepare(
    state_dict: Mapping[str, object],
    *,
    checkpoint_id: CheckpointName | None = None,
    process_group: dist.ProcessGroup | None = None,
    no_dist: bool = False,
    store: Store | str | None = None,
    allow_pickle: bool = False,
) -> Future[None]:
    """Start this rank's stager, make its staging memory, and lock that for the accelerators that
    the state lies on, beside the training, so that the first save of a state like this one is as
    fast as the others.

    No save needs to wait for it. Call it once the state has its final form, an optimizer's moments
    included, and again when it has grown. All ranks may call it, or only some: it asks no other
    rank, copies nothing, and begins nothing that others see.

    state_dict, process_group, no_dist, allow_pickle: as `async_save` takes them.
    checkpoint_id, store: where it will be saved; RUN or RUN/STEP, or none beside a store.

    The future is done when all is ready, or raises what a save would: NoSpace, Unavailable,
    Aborted. You need not ask it: its error is logged. Raises Refused, with its path, for what
    cannot be stored, and what opening the store raises.
    """
    who = find_who(process_group, no_dist)
    if checkpoint_id is not None:
        opened = find_where(checkpoint_id, store).store
    else:
        opened = store if isinstance(store, Store) else process_store(store)
    preparation = opened.preparation(rank=who.rank, world_size=who.world_size)
    state = asked(state_dict)
    known = recall(opened, who)
    found = recognise(known, state) if known is not None else None
    packing = known.layout.packing(found) if known is not None and found is not None else None
    if packing is None:
        check_keys(state)
        parts = parts_of(state, allow_pickle)
        holders = parts.guessed_holders(who)
        learnt = learn(parts.settled, holders, all_plain=parts.all_plain)
        lay_out = partial(preparation.lay_out, keep_form=learnt is None)
        packing, _ = parts.laid_out(lay_out, holders)
        remember(opened, learnt, packing.layout, parts.shape(), holders, supposed=True)
    return preparation.begin(packing, TorchCopier(packing.arrays))
