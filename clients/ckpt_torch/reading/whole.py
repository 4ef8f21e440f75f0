"""`load_whole`: a checkpoint as new tensors, without a state dict to fill.

For frameworks that load before there is anything to load into. Each process gets everything.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import torch

from ckpt.base.errors import Refused
from ckpt.format.tree import Path, SequenceIndex, path_text
from ckpt_client.load.checkpoint import Checkpoint
from ckpt_client.save.arrays import AnyArray
from ckpt_client.save.shards import PerRank, Shard
from ckpt_client.store import Store
from ckpt_torch.dcp_names import unpack_value
from ckpt_torch.place import CheckpointName, find_where, find_who
from ckpt_torch.tensors import from_array
from ckpt_torch.tree import MARK_KEY, PICKLE_KEY, VALUE_KEY, unpickled


def load_whole(
    checkpoint_id: CheckpointName,
    *,
    store: Store | str | None = None,
    allow_pickle: bool = False,
) -> object:
    """The whole state: dicts, lists, tuples and plain values as saved, every array as a CPU tensor
    of the saved dtype and global shape; as one of numpy's where torch has no such element type, as
    of text and dates. What ranks have under one name in different forms, such as lists of
    different lengths, is a `ckpt.PerRank`.

    checkpoint_id, store: as in `load`; without a step the newest. All ranks may call it, or only
        some: those that do get the same checkpoint.
    allow_pickle: load objects that were saved as pickles; this runs whatever code they name.

    Raises Refused, with the path, for pickles that are not allowed; NotFound, Unavailable, Lost.
    """
    where, who = find_where(checkpoint_id, store), find_who(None, no_dist=False)
    with where.store.resolve(
        where.run, where.step, rank=who.rank, world_size=who.world_size
    ) as checkpoint:
        return whole_of(checkpoint, allow_pickle=allow_pickle)


def whole_of(checkpoint: Checkpoint, *, allow_pickle: bool = False) -> object:
    """The same for a resolved checkpoint, which stays open."""
    return _made(checkpoint.load(whole=True), (), allow_pickle)


def _made(node: object, path: Path, allow_pickle: bool) -> object:
    if isinstance(node, PerRank):
        ranks = {rank: _made(child, path, allow_pickle) for rank, child in node.values.items()}
        # Of one rank it is keyed by that: nobody else has it.
        return PerRank(ranks) if len(ranks) != 1 else next(iter(ranks.values()))
    if isinstance(node, Shard) and np.shape(cast(AnyArray, node.array)) == node.global_shape:
        node = node.array
    if isinstance(node, dict):
        if PICKLE_KEY in node:
            return _unpickled(node[PICKLE_KEY], path, allow_pickle)
        if VALUE_KEY in node:
            return unpack_value(node[VALUE_KEY])
        return {
            key: _made(child, (*path, key), allow_pickle)
            for key, child in node.items()
            if key != MARK_KEY
        }
    if isinstance(node, list | tuple):
        items = [
            _made(child, (*path, SequenceIndex(n)), allow_pickle) for n, child in enumerate(node)
        ]
        return items if isinstance(node, list) else tuple(items)
    if isinstance(node, np.ndarray):
        return _tensor(node)
    return node


def _tensor(array: AnyArray) -> torch.Tensor | AnyArray:
    try:
        return from_array(array)
    except Refused:  # A numpy array that was saved beside tensors: all of the step is wanted.
        return array


def _unpickled(array: AnyArray, path: Path, allowed: bool) -> object:
    if not allowed:
        raise Refused(
            f"{path_text(path)}: stored as a pickle, which runs code when loaded",
            hint="pass allow_pickle if you trust whoever saved it",
        )
    return unpickled(array)
