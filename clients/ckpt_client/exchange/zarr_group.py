"""Arrays of a Zarr group that somebody else wrote, read by zarr itself.

A checkpoint of our own drained format is more than its arrays (trees, packed tensors, ranks):
`ckpt fetch` brings it back.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from ckpt.base.errors import CkptError, Corrupt, NotFound, Refused
from ckpt.base.extras import needing
from ckpt.format.dtypes import dtype_name
from ckpt.objects.names import COMMITTED
from ckpt.objects.source import Array
from ckpt_client.exchange.arrays import HeldArray

Value = TypeVar("Value")


def read_zarr(place: str) -> Sequence[HeldArray]:
    """Every array below a group; its path is its name. Raises NotFound, Corrupt, Refused."""
    with needing("reading Zarr"):
        import zarr

    if "://" not in place and (Path(place) / COMMITTED).exists():
        raise Refused(f"{place} is a drained checkpoint", hint="ckpt fetch URL/RUN@STEP")

    def opened() -> list[tuple[str, object]]:
        try:
            return [*zarr.open_group(place, mode="r").members(max_depth=None)]
        except FileNotFoundError:
            raise NotFound(f"there is no Zarr group at {place}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(f"{place}: {error}") from None

    members = _in_our_words(place, opened)
    arrays = [(name, node) for name, node in members if isinstance(node, zarr.Array)]
    if not arrays:
        raise NotFound(f"{place} has no arrays")
    return [
        HeldArray(
            name,
            _dtype(place, name, node.dtype),
            tuple(node.shape),
            partial(_load, place, node, tuple(node.shape)),
        )
        for name, node in sorted(arrays)
    ]


def _load(place: str, node: object, shape: tuple[int, ...]) -> Array:
    read = partial(operator.getitem, node, ...)  # zarr.Array
    # Of one element without axes numpy makes an axis here.
    return np.ascontiguousarray(_in_our_words(place, read)).reshape(shape)


def _in_our_words(place: str, once: Callable[[], Value]) -> Value:
    """Its value; raises CkptError for what a store's library says, each in its own way."""
    if "://" not in place:
        return once()
    from ckpt.objects.sinks.fsspec_sink import in_our_words

    return in_our_words(place, once)


def _dtype(place: str, name: str, dtype: np.dtype[np.generic]) -> str:
    try:
        return dtype_name(dtype)
    except CkptError as error:
        raise Refused(f"{place}: {name}: {error.message}") from None
