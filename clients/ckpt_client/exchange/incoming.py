"""What can be taken in: arrays by name, of whatever format, one at a time.

safetensors   a directory (Hugging Face) or a file       read in place, never held
npz           numpy's archive                            likewise; a compressed entry is held
dcp           a directory of torch.distributed.checkpoint   held one at a time; needs torch
zarr          a group of any Zarr reader, by path or URL    held one at a time
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ckpt.aio.durable import is_there
from ckpt.base.errors import NotFound
from ckpt_client.exchange.arrays import Incoming

FORMATS: Final = ("safetensors", "npz", "dcp", "zarr")


def guess_format(place: str) -> str:
    """By what lies there. Raises NotFound."""
    if "://" in place:
        return "zarr"
    path = Path(place)
    if not is_there(path):
        raise NotFound(f"there is no {path}")
    if path.suffix == ".npz":
        return "npz"
    if is_there(path / ".metadata"):
        return "dcp"
    if is_there(path / "zarr.json") or is_there(path / ".zgroup"):
        return "zarr"
    return "safetensors"


def incoming(place: str, format: str) -> Sequence[Incoming]:
    """Every array, by name. Raises NotFound, Corrupt, Refused, each naming the place."""
    if format == "npz":
        from ckpt_client.exchange.npz_file import read_npz

        return read_npz(Path(place))
    if format == "dcp":
        from ckpt_client.exchange.dcp_directory import read_dcp

        return read_dcp(Path(place))
    if format == "zarr":
        from ckpt_client.exchange.zarr_group import read_zarr

        return read_zarr(place)
    from ckpt_client.exchange.safetensors_file import read_directory, read_header

    path = Path(place)
    return read_header(path) if path.is_file() else read_directory(path)
