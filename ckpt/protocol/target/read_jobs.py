"""What a target has been asked by readers, and what each of their sessions has under way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ckpt.protocol.events import Session
from ckpt.protocol.target.core import SealedColumn
from ckpt.protocol.target.pieces import BlockTable, DiskPiece


@dataclass(slots=True, eq=False)
class ReadQuestion:
    """One question. `pieces` is what is still to be asked of the disk."""

    session: Session
    request: int
    column: SealedColumn
    pieces: deque[DiskPiece]
    table: BlockTable | None = None
    loading: bool = False
    reading_count: int = 0
    cancelled: bool = False


@dataclass(slots=True, eq=False)
class StreamJob:
    """One question whose answer is bytes from a file as they lie (documents) or from memory
    (manifest).
    """

    session: Session
    request: int
    parts: deque[tuple[int, int]]
    """(start, end) of the parts to send, ascending."""
    fetch: Callable[[StreamJob, int, int], None]
    """Send or read one part, and count it at its reader."""
    cancelled: bool = False


@dataclass(slots=True, eq=False)
class ManifestJob:
    """One question for a manifest; a StreamJob takes its turn when the trailer is here."""

    session: Session
    request: int
    column: SealedColumn
    loading: bool = False
    cancelled: bool = False


@dataclass(slots=True, eq=False)
class CheckJob:
    """One question whose answer is what files are like: they are read whole, part by part."""

    session: Session
    request: int
    fetch: Callable[[CheckJob], int | None]
    """Read the next part; how many bytes, or None while one is under way."""
    cancelled: bool = False


Job = ReadQuestion | StreamJob | ManifestJob | CheckJob


@dataclass(slots=True)
class Reader:
    """What one session has under way."""

    jobs: deque[Job] = field(default_factory=deque)
    reading_bytes: int = 0
    """Asked of the disk."""
    sent_bytes: int = 0
    """Sent and not yet drained."""
    sent_operations: list[int] = field(default_factory=list)
    """Reads whose buffers the unsent frames use."""

    @property
    def held_bytes(self) -> int:
        """In memory because of the session."""
        return self.reading_bytes + self.sent_bytes
