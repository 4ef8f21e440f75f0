"""Every target that the cluster has had, and how each stands: a copy of it lies on all of them.

The catalog is the map that counts. Its copies are for a catalog that is made again from the targets
alone: without them it would take in a target that was removed, and call lost what lies on one that
is away and that nobody names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct

from ckpt.base.ids import CatalogPosition, TargetId
from ckpt.base.limits import FRAME_BULK_BYTES_MAX
from ckpt.base.units import KiB, MiB
from ckpt.format.checksum import Buffer, xxh3_128
from ckpt.format.envelope import Packing, decode_body, unwrap, wrap

MAP_MAGIC: Final = b"CKPA"
VERSION: Final = 1
MAP_BYTES_MAX: Final = 16 * MiB
"""Largest map before packing that is read."""
TARGETS_BYTES_MAX: Final = FRAME_BULK_BYTES_MAX - 128 * KiB
"""Most `target_bytes` of all targets together, enough for tens of thousands: their map travels in
one frame, also where packing makes it larger by 1 byte in 255.
"""
_TARGET_BYTES: Final = 48
"""Of an entry and its group, beside their texts."""

assert TARGETS_BYTES_MAX + TARGETS_BYTES_MAX // 255 + KiB <= FRAME_BULK_BYTES_MAX <= MAP_BYTES_MAX


class MapEntry(Struct, array_like=True, frozen=True, gc=False):
    """One target in the cluster map."""

    target: TargetId
    domain: str
    directory: str
    incarnation: bytes
    """Of its directory, 16 bytes; empty: none was known."""
    standing: str
    """`in`, `draining`, `out` or `removed`."""


class ClusterMap(Struct, frozen=True, gc=False, omit_defaults=True):
    """The document. Of several the one with the highest version is the newest."""

    cluster: str
    version: CatalogPosition
    """The coordinator's term, and a number within it."""
    entries: bytes
    """An array of MapEntry, by target, in MessagePack."""
    packed_groups: bytes = b""
    """Target -> number of its placement group, by target, in MessagePack; empty: there are none."""

    @property
    def digest(self) -> bytes:
        """Equal for maps that say the same of the same targets, whoever wrote them when."""
        return xxh3_128(self.entries + self.packed_groups)

    @property
    def groups(self) -> dict[TargetId, int]:
        """The placement group of each target. Raises Corrupt."""
        return decode_body(_GROUPS, self.packed_groups) if self.packed_groups else {}

    @property
    def targets(self) -> tuple[MapEntry, ...]:
        """By target. Raises Corrupt."""
        return decode_body(_ENTRIES, self.entries)


def target_bytes(target: TargetId, domain: str, directory: str) -> int:
    """What it takes of the map, at most, however it stands and in whatever group."""
    texts = target, target, domain, directory
    return _TARGET_BYTES + sum(len(text.encode()) for text in texts)


_ENCODER: Final = msgspec.msgpack.Encoder()
_MAP: Final = msgspec.msgpack.Decoder(ClusterMap)
_ENTRIES: Final = msgspec.msgpack.Decoder(tuple[MapEntry, ...])
_GROUPS: Final = msgspec.msgpack.Decoder(dict[TargetId, int])


def make_map(
    cluster: str, version: CatalogPosition, targets: tuple[MapEntry, ...],
    groups: Mapping[TargetId, int] | None = None,
) -> ClusterMap:  # fmt: skip
    """Make the map of these targets, given in any order, and of their groups."""
    ordered = sorted(targets, key=lambda entry: entry.target)
    packed = _ENCODER.encode(dict(sorted(groups.items()))) if groups else b""
    return ClusterMap(cluster, version, _ENCODER.encode(ordered), packed)


def encode_map(map: ClusterMap) -> bytes:
    """The document."""
    return wrap(MAP_MAGIC, VERSION, _ENCODER.encode(map), Packing.LZ4)


def decode_map(document: Buffer) -> ClusterMap:
    """The inverse; its entries and groups can be read. Raises Corrupt."""
    map = decode_body(_MAP, unwrap(MAP_MAGIC, VERSION, document, MAP_BYTES_MAX))
    decode_body(_ENTRIES, map.entries)
    if map.packed_groups:
        decode_body(_GROUPS, map.packed_groups)
    return map
