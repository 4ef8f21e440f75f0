"""What a target has been asked by readers: questions, one kind for each way to answer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ckpt.protocol.events import Session
from ckpt.protocol.target.core import SealedColumn
from ckpt.protocol.target.reading.pieces import BlockTable, DiskPiece


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
    kept_bytes: int = 0
    """In memory of what is not sent, when it is sent from there."""
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


@dataclass(slots=True, eq=False)
class LendJob:
    """One question for a column's file, which goes along with its block table."""

    session: Session
    request: int
    column: SealedColumn
    loading: bool = False
    cancelled: bool = False


Job = ReadQuestion | StreamJob | ManifestJob | CheckJob | LendJob
