"""Byte spans of payloads as the bulk of a message: who has them, whose payload, from where to
where.

| offset | size | type | field |
|---|---|---|---|
| 0 | 8 | i64 | peer: its number in the message, or OURS |
| 8 | 8 | i64 | rank whose payload it is |
| 16 | 8 | i64 | start |
| 24 | 8 | i64 | end, exclusive |

repeated; little-endian. In place of the rank stands, for a payload of the i-th home of the
checkpoint (from 1, in the order of its commit record), i * 2^20 + the rank; and of a load from an
object store, the object's number among the manifest's, with bytes of the object.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from ckpt.base.errors import Refused
from ckpt.base.ids import Rank
from ckpt.base.limits import FRAME_BULK_BYTES_MAX
from ckpt.format.checksum import Buffer

OURS: Final = -1
"""Nobody has it: whoever hears so reads it himself, from the tier or the object store."""
_ROW: Final = struct.Struct("<4q")
SPANS_MAX: Final = FRAME_BULK_BYTES_MAX // _ROW.size
"""Most spans in one message."""


class PayloadSpan(NamedTuple):
    """Payload bytes [start, end) of a rank."""

    peer: int
    rank: Rank
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


def encode_spans(spans: Iterable[PayloadSpan]) -> bytes:
    """At most SPANS_MAX of them."""
    return b"".join(_ROW.pack(*span) for span in spans)


def decode_spans(bulk: Buffer) -> list[PayloadSpan]:
    """Raises Refused for anything that `encode_spans` does not give."""
    if len(bulk) % _ROW.size:
        raise Refused(f"{len(bulk)} bytes are no list of spans")
    spans = [
        PayloadSpan(peer, Rank(rank), start, end)
        for peer, rank, start, end in _ROW.iter_unpack(bulk)
    ]
    if any(s.rank < 0 or not 0 <= s.start < s.end or s.peer < OURS for s in spans):
        raise Refused("a span that is empty or begins before its payload")
    return spans
