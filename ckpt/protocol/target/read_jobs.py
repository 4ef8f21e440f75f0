"""What a target has been asked by readers, and what each of their sessions has under way."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
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


class ReadingSessions:
    """I know all sessions that read, what they hold, and whose turn it is: of those that may have a
    step to take who holds nothing comes first, each kind in the order in which they came or had
    their last turn.

    Who had a turn and nothing to do is left out until something changes for it: a target that
    thousands of ranks read from looks at those that can go on, not at all of them for each piece.
    """

    def __init__(self) -> None:
        self.held_bytes = 0
        """In memory because of all, also of those that have closed."""
        self._live: dict[Session, Reader] = {}
        #: Those of sessions that closed, while the disk still reads for them.
        self._gone: dict[Session, Reader] = {}
        #: Of the live ones those that may have a step: they hold nothing,
        self._empty: OrderedDict[Session, Reader] = OrderedDict()
        #: or something, and may hold more where there is room.
        self._holding: OrderedDict[Session, Reader] = OrderedDict()

    def get(self, session: Session) -> Reader | None:
        """The one of a session that is open, if it reads."""
        return self._live.get(session)

    def find(self, session: Session) -> Reader:
        """As `get`; or the one of a session that has closed, while the disk reads for it."""
        return self._live.get(session) or self._gone[session]

    def begin(self, session: Session) -> Reader:
        """The session asks for something."""
        return self._live.setdefault(session, Reader())

    def items(self) -> Iterable[tuple[Session, Reader]]:
        """Those of sessions that are open."""
        return self._live.items()

    def __bool__(self) -> bool:
        return bool(self._live)

    # ----------------------------------------------------------------------- what they hold

    def asked(self, reader: Reader, size: int) -> None:
        """The disk reads so much for it."""
        reader.reading_bytes += size
        self.held_bytes += size

    def came(self, session: Session, reader: Reader, size: int) -> None:
        """The disk has read so much for it, or failed to."""
        reader.reading_bytes -= size
        self.held_bytes -= size
        if not reader.reading_bytes and self._gone.get(session) is reader:
            del self._gone[session]
        self.wake(session)

    def gave(self, reader: Reader, size: int) -> None:
        """So much is in frames that have not left."""
        reader.sent_bytes += size
        self.held_bytes += size

    def left(self, session: Session, reader: Reader) -> list[int]:
        """No frame is on its way any more: whose buffers these used."""
        self.held_bytes -= reader.sent_bytes
        reader.sent_bytes = 0
        operations, reader.sent_operations = reader.sent_operations, []
        if reader.jobs or reader.reading_bytes:
            self.wake(session)
        else:
            self._live.pop(session, None)
            self._sleep(session)
        return operations

    def close(self, session: Session) -> list[int]:
        """Nothing is sent any more: whose buffers its frames used."""
        reader = self._live.pop(session, None)
        if reader is None:
            return []
        for job in reader.jobs:
            job.cancelled = True
        if reader.reading_bytes:
            self._gone[session] = reader
        operations = self.left(session, reader)
        self._sleep(session)
        return operations

    # ----------------------------------------------------------------------- turns

    def wake(self, session: Session) -> None:
        """It may have a step, or holds more or less than it did."""
        reader = self._live.get(session)
        if reader is None:
            return
        mine, other = self._empty, self._holding
        if reader.held_bytes:
            mine, other = other, mine
        other.pop(session, None)
        mine.setdefault(session, reader)

    def _sleep(self, session: Session) -> None:
        self._empty.pop(session, None)
        self._holding.pop(session, None)

    def take(self, *, room: bool) -> tuple[Session, Reader] | None:
        """The next one, which has its turn now. `room`: for one more piece of anybody; without it
        who holds nothing may have one all the same, but not beside what is read for nobody.
        """
        while self._empty and (room or not self._gone):
            session, reader = self._empty.popitem(last=False)
            if not reader.held_bytes:
                return session, reader
            # It was given something after it had been put there.
            self._holding.setdefault(session, reader)
        return self._holding.popitem(last=False) if self._holding and room else None

    def check(self) -> None:
        """Assert that what is counted is there, and that nobody is forgotten."""
        everybody = (*self._live.values(), *self._gone.values())
        assert self.held_bytes == sum(reader.held_bytes for reader in everybody)
        assert all(reader.reading_bytes >= 0 for reader in everybody)
        for session, reader in self._live.items():
            woken = session in self._empty or session in self._holding
            assert woken or reader.held_bytes or not reader.jobs, "nothing would wake it"
