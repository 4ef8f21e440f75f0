"""Whose objects lie at a URL? By the engine that wrote them."""

from __future__ import annotations

from ckpt.base.errors import Refused
from ckptbench.engines.object_engine import Objects


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
