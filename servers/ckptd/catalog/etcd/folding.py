"""What does a ticket write? The values of the keys that its entries change, and what goes.

Limits of etcd: so many operations and bytes in one transaction (its --max-txn-ops and
--max-request-bytes). A launch or a store that ends takes all below its key with it, as a range:
that is one operation, however many ranks there were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from ckpt.base.errors import Refused
from ckpt.base.units import KiB, format_bytes
from ckpt.protocol.coordinator.catalog import CatalogEntry
from ckpt.protocol.coordinator.image import CatalogImage
from ckptd.catalog.etcd.url import PREFIX_BYTES_MAX
from ckptd.catalog.etcd.values import KeyedValue, Values, touched

OPERATIONS_MAX: Final = 128
"""Of one transaction: etcd's own default."""
REQUEST_BYTES_MAX: Final = 1536 * KiB
"""Likewise."""
WRITES_MAX: Final = OPERATIONS_MAX - 2
"""The fence's own put is one, that of the count another."""
BYTES_MAX: Final = REQUEST_BYTES_MAX - 16 * KiB
"""For keys and values; the rest is what is said around them."""
_AROUND_BYTES: Final = 48 + PREFIX_BYTES_MAX
"""Of each key: tags, lengths, and what stands ahead of its name."""


@dataclass(slots=True)
class Writes:
    """What one transaction changes, in any order."""

    values: Values = field(default_factory=dict)
    sweeps: set[str] = field(default_factory=set)
    """All keys go that begin so, none of which is among the values."""
    added: int = 0
    """So many keys there are more after it; less than 0: fewer."""

    @property
    def count(self) -> int:
        """Of operations."""
        return len(self.values) + len(self.sweeps)

    @property
    def bytes(self) -> int:
        """About, and not less."""
        around = _AROUND_BYTES
        size = sum(len(name) + len(value or b"") + around for name, value in self.values.items())
        return size + sum(2 * len(name) + 2 * around for name in self.sweeps)

    @property
    def value_bytes(self) -> int:
        """Of names and values alone."""
        return sum(len(name) + len(value or b"") for name, value in self.values.items())

    @property
    def fits(self) -> bool:
        """Whether one transaction can have them all."""
        return self.count <= WRITES_MAX and self.bytes <= BYTES_MAX

    def merged(self, later: Writes) -> Writes | None:
        """Both, one after the other; None if one transaction cannot do that."""
        if any(name.startswith(tuple(self.sweeps)) for name in later.values):
            return None
        swept = tuple(later.sweeps)
        values = {name: value for name, value in self.values.items() if not name.startswith(swept)}
        return Writes(values | later.values, self.sweeps | later.sweeps, self.added + later.added)

    def check(self, what: str) -> None:
        """Raises Refused for more than one transaction can take."""
        if self.fits:
            return
        largest = max(self.values, key=lambda name: len(self.values[name] or b""))
        size = len(self.values[largest] or b"")
        raise Refused(
            f"{what} has {self.count} writes of {format_bytes(self.bytes)}, the largest"
            f" {largest!r} of {format_bytes(size)}: etcd takes {WRITES_MAX} of"
            f" {format_bytes(BYTES_MAX)} at once",
            hint="keep such a cluster's catalog in SQLite: leave --catalog out",
        )


def fold(image: CatalogImage, entries: Sequence[CatalogEntry]) -> Writes:
    """Apply the entries, and return what that changes. Raises KeyError for entries that cannot
    apply; then the image must not be used any more.
    """
    cells: dict[str, KeyedValue] = {}
    before: Values = {}
    for entry in entries:
        for cell in touched(entry, image):
            if cell.name not in cells:
                cells[cell.name] = cell
                before[cell.name] = cell.value(image)
        image.apply(entry)
    after = {name: cell.value(image) for name, cell in cells.items()}
    changed = {name: value for name, value in after.items() if value != before[name]}
    ended = [name for name, value in changed.items() if value is None and _has_keys_below(name)]
    sweeps = {f"{name}/" for name in ended}
    swept = tuple(sweeps)
    added = sum((value is not None) - (before[name] is not None) for name, value in changed.items())
    kept = {k: v for k, v in changed.items() if not k.startswith(swept)}
    return Writes(kept, sweeps, added)


def _has_keys_below(name: str) -> bool:
    """It is a launch's own key, or a store's."""
    words = name.split("/")
    return (words[0], len(words)) in (("launch", 3), ("store", 2))
