"""Our arrays as torch tensors over the same memory, and back."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from ckptbench.workload import Array

_BFLOAT16 = "bfloat16"


def to_tensor(array: Array) -> torch.Tensor:
    """Without a copy; numpy's own bfloat16 is unknown to torch, its bits are not."""
    if array.dtype.name == _BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_array(tensor: torch.Tensor, like: np.dtype[np.generic]) -> Array:
    """Without a copy, as `like`."""
    if tensor.dtype == torch.bfloat16:
        found: Array = tensor.view(torch.int16).numpy().view(like)
        return found
    plain: Array = tensor.numpy()
    return plain


@contextmanager
def full_disk_as_oserror(directory: Path, needed_bytes: int) -> Iterator[None]:
    """Raises OSError (ENOSPC) for a RuntimeError when the device has less than so much left.

    torch's zip writer says of a write that was cut short only "unexpected pos 704 vs 598".
    """
    try:
        yield
    except RuntimeError as error:
        if shutil.disk_usage(directory).free < needed_bytes:
            reason = os.strerror(errno.ENOSPC)
            raise OSError(errno.ENOSPC, reason, str(directory)) from error
        raise
