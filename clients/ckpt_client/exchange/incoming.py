"""What can be taken in: arrays by name, of whatever format, one at a time.

safetensors   a directory (Hugging Face) or a file       mapped, never held
npz           numpy's archive                            mapped; a compressed entry is held
dcp           a directory of torch.distributed.checkpoint   held one at a time; needs torch
zarr          a group of any Zarr reader, by path or URL    held one at a time
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Final, Protocol

from ckpt.base.errors import NotFound
from ckpt.format.dtypes import dtype_of
from ckpt.objects.source import Array

FORMATS: Final = ("safetensors", "npz", "dcp", "zarr")


class Incoming(Protocol):
    """One array that somebody else has written."""

    @property
    def name(self) -> str: ...

    @property
    def dtype(self) -> str:
        """Ours."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def mapped(self) -> Array:
        """Its elements: a file's pages where that can be, else memory of its own."""


@dataclass(frozen=True, slots=True)
class HeldArray:
    """An array that can be read only whole, anew with each `mapped`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    load: Callable[[], Array]

    def mapped(self) -> Array:
        return self.load()


def byte_count(array: Incoming) -> int:
    """Of its elements."""
    return prod(array.shape) * dtype_of(array.dtype).itemsize


def guess_format(place: str) -> str:
    """By what lies there. Raises NotFound."""
    if "://" in place:
        return "zarr"
    path = Path(place)
    if not path.exists():
        raise NotFound(f"there is no {path}")
    if path.suffix == ".npz":
        return "npz"
    if (path / ".metadata").exists():
        return "dcp"
    if (path / "zarr.json").exists() or (path / ".zgroup").exists():
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
