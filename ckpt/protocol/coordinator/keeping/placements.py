"""Which target holds which column of a committed checkpoint, as the catalog keeps it."""

from __future__ import annotations

import msgspec

from ckpt.base.errors import Corrupt
from ckpt.base.ids import Rank, TargetId

Placement = dict[Rank, tuple[TargetId | None, ...]]
"""By rank: the accepted target of each column, None where a column is missing."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(dict[int, tuple[str | None, ...]])


def encode_placement(placement: Placement) -> bytes:
    """MessagePack: a map of rank to an array of target ids."""
    return _encoder.encode(placement)


def decode_placement(data: bytes) -> Placement:
    """The inverse; raises Corrupt."""
    try:
        raw = _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise Corrupt(f"placement in the catalog does not parse: {error}") from error
    return {
        Rank(rank): tuple(TargetId(t) if t is not None else None for t in columns)
        for rank, columns in raw.items()
    }
