"""A directory that torch's own `dcp.load` reads, written by torch itself, one tensor at a time.

Planning sees tensors without memory (the meta device); each is read from its source when it is
written and let go behind it. Needs torch, a GPU never.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ckpt.base.errors import Refused
from ckpt.objects.source import Source, Wish
from ckpt_client.exchange.tensors import NamedArray

if TYPE_CHECKING:
    import torch
    from torch.distributed.checkpoint.planner import WriteItem


def write_dcp(source: Source, arrays: Sequence[NamedArray], folder: Path) -> int:
    """Write the directory; how many bytes its tensors have.

    Raises Refused when torch is missing, names the array whose type torch has not, or when the
    directory is not empty.
    """
    try:
        from torch.distributed import checkpoint as dcp
        from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemWriter
    except ImportError:
        raise Refused("--format dcp needs torch", hint="pip install torch") from None
    if folder.exists() and any(folder.iterdir()):
        raise Refused(f"{folder} is not empty", hint="name a new directory")
    by_name = {array.name: array for array in arrays}
    empty = {array.name: _without_memory(array) for array in arrays}

    class Planner(DefaultSavePlanner):  # type: ignore[misc]  # torch is an extra
        """Gives each tensor its bytes when they are written."""

        def resolve_data(self, write_item: WriteItem) -> torch.Tensor:
            return _filled(source, by_name[write_item.index.fqn])

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.distributed.*single process.*")
        writer = FileSystemWriter(folder, thread_count=1, single_file_per_rank=False)
        planner = Planner(flatten_state_dict=False)
        dcp.save(empty, storage_writer=writer, planner=planner, no_dist=True)
    return sum(array.byte_count for array in arrays)


def _without_memory(array: NamedArray) -> torch.Tensor:
    import torch

    return torch.empty(array.shape, dtype=_torch_dtype(array), device="meta")


def _filled(source: Source, array: NamedArray) -> torch.Tensor:
    import torch

    memory = np.empty(array.shape, array.dtype)
    source.read([Wish(array.tensor, array.rank, (0,) * memory.ndim, memory)])
    if not memory.size:
        return torch.empty(array.shape, dtype=_torch_dtype(array))
    raw = torch.from_numpy(memory.reshape(-1).view(np.uint8))
    return raw.view(_torch_dtype(array)).reshape(array.shape)


def _torch_dtype(array: NamedArray) -> torch.dtype:
    import torch

    name = array.dtype.name if array.dtype.isnative else ""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise Refused(
            f"{array.name}: torch has no {array.tensor.dtype}",
            hint="export a part without it by --prefix",
        )
    return found
