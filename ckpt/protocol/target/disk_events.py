"""What a machine asks of a disk, and what the disk answers.

File names are relative to the directory that the shell owns, with `/` between parts. Every action
has an `op` number of its own; exactly one DiskDone or DiskFailed carries it back. A shell may
perform an action at once or later and in any order: a machine never issues an action whose input
another one still owns.

Buffers. `WriteAt.data` with `keeps_bulk` is the bulk of the frame being handled: its owner keeps
that buffer until `ReleaseBulk(op)`. `DiskDone.data` of a ReadAt, and every part of it that was
handed to `Send`, likewise belongs to the machine until `ReleaseBulk(op)`. So no slot is used again
while a write, an unread completion or an unsent frame owns it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ckpt.protocol.events import Buffer, Session

# --------------------------------------------------------------------------- actions


@dataclass(frozen=True, slots=True)
class Preallocate:
    """Create the file, with so many bytes of space held for it. What was there is gone."""

    op: int
    file: str
    bytes_count: int


@dataclass(frozen=True, slots=True)
class WriteAt:
    """Write all of `data`; the file is created when it is missing."""

    op: int
    file: str
    offset: int
    data: Buffer
    keeps_bulk: bool = False


@dataclass(frozen=True, slots=True)
class TruncateFile:
    """Set the file's length."""

    op: int
    file: str
    bytes_count: int


@dataclass(frozen=True, slots=True)
class SyncFile:
    """Make the file's bytes durable.

    A failure is final: its unsynced bytes may be lost for ever.
    """

    op: int
    file: str


@dataclass(frozen=True, slots=True)
class RenameFile:
    """Atomic; durable only after both directories were synced. Replaces what `new` named."""

    op: int
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class SyncDirectory:
    """Make the directory's entries durable. The empty name is the root."""

    op: int
    directory: str


@dataclass(frozen=True, slots=True)
class RemoveFile:
    """Unlink; a missing file counts as done."""

    op: int
    file: str


@dataclass(frozen=True, slots=True)
class ReadAt:
    """Read; the answer is shorter only where the file ends."""

    op: int
    file: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class ReleaseBulk:
    """The buffer of this operation (see above) may be used again. Not answered."""

    op: int


DiskAction = (
    Preallocate
    | WriteAt
    | TruncateFile
    | SyncFile
    | RenameFile
    | SyncDirectory
    | RemoveFile
    | ReadAt
)

# --------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class DiskDone:
    """The operation has happened; durable only where it was a sync."""

    now_us: int
    op: int
    data: Buffer = b""


@dataclass(frozen=True, slots=True)
class DiskFailed:
    """The operation failed, wholly or in part."""

    now_us: int
    op: int
    errno_name: str
    """`EIO`, `ENOSPC`, …"""
    message: str = ""


@dataclass(frozen=True, slots=True)
class SpaceMeasured:
    """What the file system says of itself."""

    now_us: int
    bytes_total: int
    bytes_free: int


@dataclass(frozen=True, slots=True)
class SessionDrained:
    """Every frame that was sent on this session before this event has left; its bulk is free."""

    now_us: int
    session: Session


DiskEvent = DiskDone | DiskFailed | SpaceMeasured | SessionDrained
