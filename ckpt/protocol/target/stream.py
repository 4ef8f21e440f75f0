"""One column under way on a target: what was planned, what has come, and what it may still send."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from ckpt.base.errors import Refused
from ckpt.base.ids import ColumnId
from ckpt.base.limits import CELL_BYTES_MAX, PAGE_BYTES, PAYLOAD_BYTES_MAX
from ckpt.erasure.code import Code
from ckpt.format.layout import Layout
from ckpt.format.messages.writing import BeginColumn
from ckpt.protocol.events import Session
from ckpt.protocol.target.space import Reservation


class StreamState(Enum):
    WAITING = "waiting"
    OPEN = "open"
    SEALING = "sealing"
    ENDING = "ending"


@dataclass(slots=True, eq=False)
class Stream:
    """One column under way."""

    session: Session
    request: int
    begin: BeginColumn
    layout: Layout
    reservation: Reservation
    block_crcs: NDArray[np.uint32]
    fragment_crcs: NDArray[np.uint32]
    received: bytearray
    """One byte for each stripe: 1 when its fragment was taken over."""
    received_count: int = 0
    state: StreamState = StreamState.WAITING
    arrived_bytes: int = 0
    """Of fragments that were taken over, each once."""
    credit_bytes: int = 0
    """Granted and not received. `ckpt.protocol.target.credit` alone changes these five."""
    dormant_bytes: int = 0
    """Of `credit_bytes`: so long unused that they were lent to others."""
    writing_bytes: int = 0
    """Received and not written."""
    moved_us: int = 0
    """When credit was given or used last."""
    told_us: int = 0
    """When its sender heard from us last."""
    write_count: int = 0
    """Disk writes that are not answered."""
    manifest: bytearray = field(default_factory=bytearray)
    manifest_bytes: int | None = None
    damaged: bool = False
    """The aside file cannot be trusted any more."""

    @property
    def column(self) -> ColumnId:
        return self.begin.column

    @property
    def key(self) -> tuple[Session, int]:
        """What names it on the wire."""
        return self.session, self.request

    @property
    def taken_bytes(self) -> int:
        """Of the pool."""
        return self.credit_bytes - self.dormant_bytes + self.writing_bytes

    @property
    def left_bytes(self) -> int:
        """For which it has no credit yet."""
        return max(0, self.layout.column_bytes - self.arrived_bytes - self.credit_bytes)

    @property
    def is_whole(self) -> bool:
        """Whether every fragment has come."""
        return self.received_count == self.layout.stripe_count

    @property
    def waits_for_target(self) -> bool:
        """Whether its sender can do nothing before this target does something."""
        return self.state is not StreamState.ENDING and self.credit_bytes < self.layout.cell_bytes


def layout_of(message: BeginColumn) -> Layout:
    """The plan's layout; raises Refused for numbers that no plan has."""
    code = Code.parse(message.code)
    if not 0 <= message.column.column < code.n:
        raise Refused(f"column {message.column.column} is not one of code {code}")
    cell_bytes = message.cell_bytes
    if not PAGE_BYTES <= cell_bytes <= CELL_BYTES_MAX or cell_bytes % PAGE_BYTES:
        raise Refused(f"cells of {cell_bytes} bytes")
    if not 0 <= message.payload_bytes <= PAYLOAD_BYTES_MAX:
        raise Refused(f"a payload of {message.payload_bytes} bytes")
    return Layout(code, message.payload_bytes, cell_bytes)
