"""Arrays of a Zarr group that somebody else wrote, read by zarr itself.

A checkpoint of our own drained format is more than its arrays (trees, packed tensors, ranks):
`ckpt fetch` brings it back.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from ckpt.base.errors import CkptError, Corrupt, NotFound, Refused
from ckpt.base.extras import needing
from ckpt.format.dtypes import dtype_name
from ckpt.objects.names import COMMITTED
from ckpt.objects.source import Array
from ckpt_client.exchange.arrays import HeldArray


def read_zarr(place: str) -> Sequence[HeldArray]:
    """Every array below a group; its path is its name. Raises NotFound, Corrupt, Refused."""
    with needing("reading Zarr"):
        import zarr

    if "://" not in place and (Path(place) / COMMITTED).exists():
        raise Refused(f"{place} is a drained checkpoint", hint="ckpt fetch URL/RUN@STEP")
    try:
        group = zarr.open_group(place, mode="r")
        members = [(name, node) for name, node in group.members(max_depth=None)]
    except FileNotFoundError:
        raise NotFound(f"there is no Zarr group at {place}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"{place}: {error}") from None
    arrays = [(name, node) for name, node in members if isinstance(node, zarr.Array)]
    if not arrays:
        raise NotFound(f"{place} has no arrays")
    return [
        HeldArray(name, _dtype(place, name, node.dtype), tuple(node.shape), partial(_load, node))
        for name, node in sorted(arrays)
    ]


def _load(node: object) -> Array:
    return np.ascontiguousarray(node[...])  # type: ignore[index]  # zarr.Array


def _dtype(place: str, name: str, dtype: np.dtype[np.generic]) -> str:
    try:
        return dtype_name(dtype)
    except CkptError as error:
        raise Refused(f"{place}: {name}: {error.message}") from None
