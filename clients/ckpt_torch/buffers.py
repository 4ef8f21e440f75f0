"""Whose buffers are saved, where each rank holds the same model?

DistributedDataParallel hands rank 0's buffers out before each forward pass, in which each rank then
computes running means of its own batch: between two steps they differ.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ckpt_torch.dtensors import is_dtensor


def weights_of_rank(
    model: torch.nn.Module, weights: Mapping[str, object], rank: int
) -> Mapping[str, object]:
    """What the rank saves of a model's weights, named as `model` names them: rank 0 saves the
    buffers for all. A DTensor is of all ranks anyway.
    """
    if rank == 0:
        return weights
    buffers = {name for name, _ in model.named_buffers(remove_duplicate=False)}
    return {
        name: value for name, value in weights.items() if name not in buffers or is_dtensor(value)
    }
