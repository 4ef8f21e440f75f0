"""The catalog's image that a list of entries leads to."""

from __future__ import annotations

from collections.abc import Iterable

from ckpt.protocol.coordinator.catalog import CatalogEntry, CatalogImage


def apply_all(image: CatalogImage, entries: Iterable[CatalogEntry]) -> CatalogImage:
    """The image after all entries, in order."""
    for entry in entries:
        image.apply(entry)
    return image
