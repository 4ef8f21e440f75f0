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

from msgspec import Struct

from ckpt.format.messages.lending import ColumnLent
from ckpt.protocol.events import Buffer, Session

# --------------------------------------------------------------------------- actions


class Preallocate(Struct, frozen=True, gc=False):
    """Create the file, with so many bytes of space held for it. What was there is gone."""

    op: int
    file: str
    bytes_count: int


class WriteAt(Struct, frozen=True, gc=False):
    """Write all of `data`; the file is created when it is missing."""

    op: int
    file: str
    offset: int
    data: Buffer
    keeps_bulk: bool = False


class TruncateFile(Struct, frozen=True, gc=False):
    """Set the file's length."""

    op: int
    file: str
    bytes_count: int


class SyncFile(Struct, frozen=True, gc=False):
    """Make the file's bytes durable.

    A failure is final: its unsynced bytes may be lost for ever.
    """

    op: int
    file: str


class RenameFile(Struct, frozen=True, gc=False):
    """Atomic; durable only after both directories were synced. Replaces what `new` named."""

    op: int
    old: str
    new: str


class SyncDirectory(Struct, frozen=True, gc=False):
    """Make the directory's entries durable. The empty name is the root."""

    op: int
    directory: str


class RemoveFile(Struct, frozen=True, gc=False):
    """Unlink; a missing file counts as done."""

    op: int
    file: str


class ReadAt(Struct, frozen=True, gc=False):
    """Read; the answer is shorter only where the file ends."""

    op: int
    file: str
    offset: int
    length: int
    at_rest: bool = False
    """What lies on the device, not what the page cache holds; nobody waits for it."""


class ProbeFile(Struct, frozen=True, gc=False):
    """Write `data` into a new file, sync it, read it back, compare, and remove it."""

    op: int
    file: str
    data: bytes


class ReleaseBulk(Struct, frozen=True, gc=False):
    """The buffer of this operation (see above) may be used again. Not answered."""

    op: int


class LendFile(Struct, frozen=True, gc=False):
    """Send the file along with the message and the bulk, to be read only. Where it cannot be
    opened, refuse the request, and feed its return back.
    """

    session: Session
    request: int
    file: str
    message: ColumnLent
    bulk: bytes


DiskAction = (
    Preallocate
    | WriteAt
    | TruncateFile
    | SyncFile
    | RenameFile
    | SyncDirectory
    | RemoveFile
    | ReadAt
    | ProbeFile
)

FULL_ERRNOS = frozenset({"ENOSPC", "EDQUOT", "EFBIG"})
"""The device is in order, but has no more room."""
PASSING_ERRNOS = frozenset({"EMFILE", "ENFILE", "ENOMEM", "EAGAIN", "EINTR", "EBUSY"})
"""Why a read failed that says nothing about the bytes: it is repeated later."""
RIGHTS_ERRNOS = frozenset({"EACCES", "EPERM"})
"""Its owner, its mode or a rule of the host keeps us from a file: whoever changed that may take it
back, and the bytes are as they were.
"""
UNSAID_ERRNOS = PASSING_ERRNOS | RIGHTS_ERRNOS
"""Why a read failed by which no damage is proved."""

# --------------------------------------------------------------------------- events


class DiskDone(Struct, frozen=True, gc=False):
    """The operation has happened; durable only where it was a sync."""

    now_us: int
    op: int
    data: Buffer = b""


class DiskFailed(Struct, frozen=True, gc=False):
    """The operation failed, wholly or in part."""

    now_us: int
    op: int
    errno_name: str
    """`EIO`, `ENOSPC`, …"""
    message: str = ""
    kind: str = "write"
    """What was tried: `write`, `read`, `sync`, `create` (or rename), `remove`, or `probe`."""

    @property
    def is_of_one_file(self) -> bool:
        """Whether it is about this file and says nothing of the device: the file is gone, or its
        owner or a flag of its own (`chattr +i`) keeps us from it. Where a whole directory keeps us
        out, no new file comes into it either, and that is said of the new file.
        """
        kept = self.kind in ("read", "remove") and self.errno_name in RIGHTS_ERRNOS
        return kept or (self.kind == "read" and self.errno_name == "ENOENT")


class SpaceMeasured(Struct, frozen=True, gc=False):
    """What the file system says of itself."""

    now_us: int
    bytes_total: int
    bytes_free: int
    inodes_free: int | None = None
    """None where only bytes bound how many files there may be."""


class SessionDrained(Struct, frozen=True, gc=False):
    """Every frame that was sent on this session before this event has left; its bulk is free."""

    now_us: int
    session: Session
