"""How ranks that read the same bytes part the reading among them, and give each other the rest."""

from __future__ import annotations

from msgspec import Struct

from ckpt.base.ids import CheckpointId
from ckpt.format.messages.loading import TargetAddress


class ShareReads(Struct, frozen=True, gc=False):
    """I read what others may read now. Answered by ReadsShared. Bulk: spans (ckpt.format.spans)."""

    checkpoint: CheckpointId
    key: str
    """What the ranks that read together have in common."""
    peer: TargetAddress
    """Where I give what I have read."""
    align_bytes: int
    """Spans are cut at multiples of it."""


class NextReads(Struct, frozen=True, gc=False):
    """What I was granted is read, and I give it to peers. What next? Answered by ReadsShared."""


class ReadsShared(Struct, frozen=True, gc=False):
    """What to read now. Bulk: spans (ckpt.format.spans), each with the number of the peer that has
    it, or OURS: not from a peer. Without spans all is done."""

    peers: tuple[TargetAddress, ...] = ()


class LeaveReads(Struct, frozen=True, gc=False):
    """I need nothing more. Answered by an empty ReadsShared when nobody who reads the same can need
    me, at the latest after the timeout; until then I serve."""

    timeout_us: int
