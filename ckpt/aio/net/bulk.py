"""The bytes that came after a message, and how a server takes them."""

from __future__ import annotations

from dataclasses import dataclass

from ckpt.aio.lending import Loan, ReceivedFile
from ckpt.aio.net.wire_policy import WirePolicy, WireRule
from ckpt.aio.slots import Slot
from ckpt.format.checksum import crc32
from ckpt.native.sums import Sums


class Bulk:
    """The bytes after a message.

    Whoever gets one calls `release` exactly once when done: from any thread, but for a Loan.
    """

    __slots__ = ("file", "slot", "sums", "view")

    def __init__(
        self, view: memoryview, slot: Slot | Loan | None, sums: Sums | None,
        file: ReceivedFile | None = None,
    ) -> None:  # fmt: skip
        self.view = view
        self.file = file
        """What came along with a ColumnLent."""
        self.sums = sums
        """Of what came, not of what was sent, taken as it landed; None: it came with its message,
        or is lent, and nobody has looked at it."""
        self.slot = slot
        """None: memory of its own, or where a link's sink put it."""

    def crc(self) -> int:
        """CRC-32 of the bytes that came."""
        return crc32(self.view) if self.sums is None else self.sums.whole

    def release(self) -> None:
        """Give the memory back; `view` must not be used afterwards."""
        if self.slot is not None:
            self.slot.release()


@dataclass(frozen=True, slots=True)
class BulkRules:
    """How bulks of a server's peers are received."""

    unchecked: frozenset[type] = frozenset()
    """Messages whose bulk the handler itself compares with its checksum."""
    borrows: bool = False
    """Those of peers on the Unix path may stay where they lie (`lending`); the handler then
    releases what it got on the loop's thread."""
    lends: bool = False
    """Readers on the Unix path may ask for the files of columns."""
    wire: WireRule = WirePolicy.AUTO
    """Which connections have tags on theirs, or are encrypted."""
