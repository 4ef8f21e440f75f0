"""The placement groups of targets in a catalog, as JSON. What cannot be read, as a later version's,
says nothing: targets are dealt out again.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ckpt.base.ids import TargetId


def encode_groups(groups: Mapping[TargetId, int]) -> bytes:
    """By target."""
    return msgspec.json.encode(dict(sorted(groups.items())))


def decode_groups(stored: bytes) -> dict[TargetId, int]:
    """The inverse."""
    try:
        return {
            TargetId(id): n for id, n in msgspec.json.decode(stored, type=dict[str, int]).items()
        }
    except msgspec.MsgspecError:
        return {}
