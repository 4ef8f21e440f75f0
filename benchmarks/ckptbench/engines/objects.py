"""How are objects written, read and removed? Through fsspec or obstore, for the engines of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ckpt.base.errors import Refused


class Objects(Protocol):
    """A place of whole objects, read in ranges."""

    def put(self, name: str, data: memoryview) -> None:
        """The object is in the store when this returns."""

    def get(self, name: str, into: memoryview, offset: int) -> None:
        """Fill `into` with the object's bytes from `offset`."""

    def remove(self, names: Sequence[str]) -> None:
        """Those that are there."""

    def names(self) -> list[str]:
        """Of everything below the place."""


def open_objects(engine: str, url: str) -> Objects:
    """By the engine's name. Raises Refused for a URL that it does not know."""
    if engine == "fsspec":
        from ckptbench.engines.fsspec import FsspecObjects

        return FsspecObjects(url)
    if engine == "s3":
        from ckptbench.engines.s3 import ObstoreObjects

        return ObstoreObjects(url)
    raise Refused(f"ioengine={engine} writes no objects")


def remove_all(engine: str, url: str) -> None:
    """Everything that a run has left below its own name."""
    place = open_objects(engine, url)
    place.remove(place.names())
