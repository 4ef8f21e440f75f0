"""A trainer's checkpoint without a Trainer."""

from __future__ import annotations

import io

import torch

from ckpt_client.store import Store
from ckpt_torch.lightning.io import CkptIO
from ckpt_torch.lightning.paths import FilePath


def load(
    run: str,
    path: FilePath = "last",
    *,
    store: Store | str | None = None,
    allow_pickle: bool = False,
) -> dict[str, object]:
    """The checkpoint that a trainer saved to `path`, by default the newest, as new CPU tensors:
    `state_dict`, `hyper_parameters`, `epoch` and whatever else Lightning put there.

    run, store, allow_pickle: as in `CkptIO`. Raises NotFound, Unavailable, Lost; Refused for a path
    that may be each of several.
    """
    return CkptIO(run, store=store, allow_pickle=allow_pickle).load_checkpoint(path)


def as_file(
    run: str,
    path: FilePath = "last",
    *,
    store: Store | str | None = None,
    allow_pickle: bool = False,
) -> io.BytesIO:
    """The same as a file in memory, for `LightningModule.load_from_checkpoint`, which takes a file
    where it takes a path. It holds every byte once more.
    """
    file = io.BytesIO()
    torch.save(load(run, path, store=store, allow_pickle=allow_pickle), file)
    file.seek(0)
    return file
