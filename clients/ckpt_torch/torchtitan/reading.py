"""A step of a store, read into a training: as it was saved here, or by torchtitan's own manager.

saved here             tensors and values by name; the model's may have another dtype, as the
                       last step of a training has that `export_dtype` names
DCP's files, by URL    step-N/.metadata and what it names: DCP reads them through the filesystem
"""

from __future__ import annotations

from typing import Final

import torch
import torch.distributed.checkpoint as dcp
from torchtitan.components.checkpointer import OPTIMIZER

from ckpt.base.errors import Refused
from ckpt.format.dtypes import dtype_name
from ckpt.format.tree import path_text
from ckpt_client.load.checkpoint import Checkpoint
from ckpt_client.load.tensor_info import TensorInfo
from ckpt_client.step_url import parse_step_url
from ckpt_client.url import LocalUrl, parse_url
from ckpt_torch.place import find_where, find_who
from ckpt_torch.reading.loading import fill
from ckpt_torch.tensors import torch_dtype
from ckpt_torch.torchtitan.states import TrainingStates

_METADATA: Final = ".metadata"


def resolve_step(name: str, step: int | None = None) -> Checkpoint:
    """The step, else the one that `name` names, else the newest of its run: the same for all ranks,
    held until it is closed. Raises NotFound, Unavailable, Lost.
    """
    where, who = find_where(name, None), find_who(None, no_dist=False)
    return where.store.resolve(
        where.run,
        where.step if step is None else step,
        rank=who.rank,
        world_size=who.world_size,
    )


def fill_from(
    checkpoint: Checkpoint,
    name: str,
    states: TrainingStates,
    *,
    model_only: bool,
    allow_pickle: bool,
) -> None:
    """Give every part of the training what the step has of it. `name` led to the checkpoint.

    Raises Refused by path for what it lacks.
    """
    state = states.to_load(model_only=model_only)
    stored = checkpoint.tensors()
    folder = _folder_of_dcp(stored)
    if folder is not None:
        dcp.load(state, checkpoint_id=f"{_run_url(name)}/{folder}")
        states.take_back(state)
        return
    others = _in_their_dtype(state, stored)
    try:
        fill(
            checkpoint,
            {**state, **others},
            find_who(None, no_dist=False),
            allow_pickle=allow_pickle,
        )
    except Refused as error:
        if model_only or any(one.name.startswith(f"{OPTIMIZER}/") for one in stored):
            raise
        raise Refused(
            f"{checkpoint.run}@{checkpoint.step} has the model alone, as last_save_model_only "
            f"leaves the last step: {error.message}",
            hint="--checkpoint.load_step takes an earlier one; a run of its own begins from it "
            "with --checkpoint.initial_load_path",
        ) from None
    for key, found in others.items():
        target = state[key]
        assert isinstance(target, torch.Tensor)
        target.copy_(found)
    states.take_back(state)


def _in_their_dtype(state: dict[str, object], stored: list[TensorInfo]) -> dict[str, torch.Tensor]:
    """New tensors for those of the model that were saved in another dtype."""
    dtypes = {info.name: info.dtype for info in stored}
    found = {}
    for key, value in state.items():
        dtype = dtypes.get(path_text((key,)))
        if isinstance(value, torch.Tensor) and dtype is not None:
            saved_as = torch_dtype(dtype_name(dtype))
            if saved_as != value.dtype:
                found[key] = torch.empty_like(value, dtype=saved_as)
    return found


def _folder_of_dcp(stored: list[TensorInfo]) -> str | None:
    """The folder's name where the step's files are those of a DCP checkpoint."""
    for info in stored:
        folder, _, file = info.name.rpartition("/")
        if file == _METADATA and folder:
            return folder
    return None


def _run_url(name: str) -> str:
    """For the filesystem."""
    place = parse_step_url(name)
    if place.store is not None:
        return f"{place.store}/{place.run}"
    url = parse_url()
    if isinstance(url, LocalUrl):
        return f"ckpt+local://{url.directory}/{place.run}"
    return f"ckpt://{url.address}/{place.run}"
