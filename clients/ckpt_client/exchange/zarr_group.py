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

from ckpt.aio.durable import is_there
from ckpt.base.errors import CkptError, Corrupt, NotFound, Refused
from ckpt.base.extras import needing
from ckpt.format.dtypes import dtype_name
from ckpt.objects.names import COMMITTED
from ckpt.objects.source import Array
from ckpt_client.exchange.arrays import HeldArray
from ckpt_client.exchange.seen_file import SeenFile, changed, check_all

Value = TypeVar("Value")


def read_zarr(place: str) -> Sequence[HeldArray]:
    """Every array below a group; its path is its name. Raises NotFound, Corrupt, Refused.

    Whether somebody writes it meanwhile is seen where it lies in files; a store by URL says
    nothing of that.
    """
    with needing("reading Zarr"):
        import zarr

    if "://" not in place and is_there(Path(place) / COMMITTED):
        raise Refused(f"{place} is a drained checkpoint", hint="ckpt fetch URL/RUN@STEP")

    def opened() -> list[tuple[str, object]]:
        try:
            return [*zarr.open_group(place, mode="r").members(max_depth=None)]
        except FileNotFoundError:
            raise NotFound(f"there is no Zarr group at {place}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(f"{place}: {error}") from None

    files = _Files(place)
    members = _in_our_words(place, opened)
    files.check_group()
    arrays = [(name, node) for name, node in members if isinstance(node, zarr.Array)]
    if not arrays:
        raise NotFound(f"{place} has no arrays")
    return [
        HeldArray(
            name,
            _dtype(place, name, node.dtype),
            tuple(node.shape),
            partial(_load, place, node, name, tuple(node.shape), files),
        )
        for name, node in sorted(arrays)
    ]


class _Files:
    """The files of a group as they were before anything of it was read."""

    def __init__(self, place: str) -> None:
        self._root = Path(place)
        #: By the group's or array's path in the group: all that lies below it, sorted.
        self._below: dict[str, list[SeenFile]] = {}
        #: All of it, where it is one file.
        self._alone = SeenFile.see(self._root) if self._root.is_file() else None
        if "://" in place:
            return
        for path in _paths_below(self._root):
            seen = SeenFile.see(path)
            for folder in path.relative_to(self._root).parents:
                self._below.setdefault(str(folder), []).append(seen)

    def check_group(self) -> None:
        """Of what lies in the group itself: it may say what the arrays are."""
        check_all([one for one in self._below.get(".", ()) if one.path.parent == self._root])

    def check(self, name: str) -> None:
        """Of one array, whose chunks may have become more. Raises ChangedMeanwhile."""
        if self._alone is not None:
            self._alone.check()
            return
        seen = self._below.get(name, ())
        check_all(seen)
        known = {one.path for one in seen}
        for path in _paths_below(self._root / name) if known else ():
            if path not in known:
                raise changed(path)


def _paths_below(folder: Path) -> Sequence[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _load(place: str, node: object, name: str, shape: tuple[int, ...], files: _Files) -> Array:
    read = partial(operator.getitem, node, ...)  # zarr.Array
    try:
        found = _in_our_words(place, read)
    except Exception:  # Whatever a codec raises for half a chunk.
        files.check(name)
        raise
    files.check(name)
    # Of one element without axes numpy makes an axis here.
    return np.ascontiguousarray(found).reshape(shape)


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
