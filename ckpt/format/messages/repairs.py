"""What workers of `ckptd repair` and the coordinator say to each other.

A worker names itself in every message. All requests may be repeated. What there is to do is
ckpt.protocol.coordinator.repairing.
"""

from __future__ import annotations

from msgspec import Struct

from ckpt.base.ids import ColumnNumber, PayloadId
from ckpt.format.messages.saving import Place


class LeaseRepair(Struct, frozen=True, gc=False):
    """What is next? Repeated before EndRepair, the answer is the same."""

    worker: str
    """`repair HOST:PID`, and what parts it from an earlier process of that number."""


class LostColumn(Struct, frozen=True, gc=False):
    """To be made again, there."""

    column: ColumnNumber
    place: Place


class RepairLeased(Struct, frozen=True, gc=False):
    """The payload that comes first now; None when there is none, or no room for any."""

    payload: PayloadId | None = None
    lost: tuple[LostColumn, ...] = ()
    """Of it, ascending."""


class RenewRepair(Struct, frozen=True, gc=False):
    """The worker lives. Failed(fenced) when the payload is no longer leased to it."""

    worker: str
    payload: PayloadId
    read_bytes: int = 0
    """Of the payload, so far."""


class EndRepair(Struct, frozen=True, gc=False):
    """All is sealed; or why not. The targets are asked what there is."""

    worker: str
    payload: PayloadId
    error: str = ""


class RepairNoted(Struct, frozen=True, gc=False):
    """To EndRepair: the targets have answered."""

    counted: int = 0
    """Columns that are there, and count or are about to."""
