"""P5 from outside: what a process holds and has promised to take, against the limits it was given.

Counted by what a process is told and by what it does, never by a machine's own books. A counter
belongs to one incarnation of a process: a crash takes the memory, and the counter with it.
"""

from __future__ import annotations

from collections.abc import Callable

from ckpt.base.ids import ColumnNumber
from ckpt.format.layout import Layout
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.writing import ColumnAccepted, ColumnSealed, CreditGranted
from ckpt.protocol.events import Send, Session
from ckpt.protocol.reader.events import AskRanges, ReadLimits
from ckpt.protocol.runs.run_sets import total
from ckpt.protocol.target.core import TargetLimits
from ckpt.protocol.target.credit import DORMANT_US
from ckpt.protocol.target.disk_events import ReadAt, WriteAt
from ckpt.transfer.assembly import Bytes, CellPool
from tests.sim.oracles import Violation

GIVES_CREDIT = frozenset({ColumnAccepted, CreditGranted})
ENDS_STREAM = frozenset({ColumnSealed, Failed})
ABOUT_CREDIT = GIVES_CREDIT | ENDS_STREAM
"""What a target says that changes how much it may be sent."""
Stream = tuple[Session, int]


class TargetMemory:
    """I count one boot of a target: what senders may still send, what came and is not on its way to
    the disk, what was read and not sent.
    """

    __slots__ = ("_asleep", "_credit", "_credit_bytes", "_limits", "_name", "_now_us", "_of", "_piece",
                 "_read", "_readers_most", "_reads", "_touched_us", "_unsent", "_windows", "_writes")  # fmt: skip

    def __init__(self, name: str, limits: TargetLimits, now_us: Callable[[], int]) -> None:
        self._name, self._limits, self._now_us = name, limits, now_us

        #: When a stream's credit was given or used last.
        self._touched_us: dict[Stream, int] = {}
        #: Of a stream's credit: so long untouched that the target may have lent it to others.
        self._asleep: dict[Stream, int] = {}
        #: Granted and not received, of streams that have not ended.
        self._credit: dict[Stream, int] = {}
        #: Disk operation -> the stream whose fragment it writes, and its bytes.
        self._of: dict[int, tuple[Stream, int]] = {}
        #: The bytes of all in `_of`, and of all in `_credit`.
        self._writes = self._credit_bytes = 0
        #: Of each stream: received and not written.
        self._windows: dict[Stream, int] = {}

        #: Disk operation -> bytes of a buffer that is not released.
        self._reads: dict[int, int] = {}
        #: The bytes of all in `_reads`.
        self._read = 0
        #: The most readers at once, since it last read nothing.
        self._readers_most = 0
        #: The largest that was read at once; a trailer or a small document may be longer.
        self._piece = limits.read_piece_bytes
        #: Bulk bytes that were sent on a session and have not left.
        self._unsent: dict[Session, int] = {}

    @property
    def held_bytes(self) -> int:
        """Promised or held for anybody; 0 when nobody wants anything."""
        return self._credit_bytes + self._writes + self._read

    @property
    def read_bytes(self) -> int:
        """In buffers that reads have filled, or will."""
        return self._read

    # ----------------------------------------------------------------------- columns

    def fragment_came(self, stream: Stream, size: int) -> None:
        """It uses credit; what comes on a stream that has ended is thrown away at once."""
        used = min(size, self._credit.get(stream, 0))
        if used:
            self._credit[stream] -= used
            self._credit_bytes -= used
            self._touched_us[stream] = self._now_us()
            self._asleep[stream] = max(0, self._asleep.get(stream, 0) - used)

    def writes(self, stream: Stream, action: WriteAt) -> None:
        """A fragment is on its way to the disk, and its buffer taken until that is released."""
        size = len(action.data)
        self._of[action.op] = stream, size
        self._writes += size
        self._windows[stream] = self._windows.get(stream, 0) + size
        self._check_stream(stream)

    def says(self, action: Send) -> None:
        """One of ABOUT_CREDIT."""
        stream, message = (action.session, action.request), action.message
        if isinstance(message, ColumnAccepted | CreditGranted):
            if message.credit_bytes:
                self._credit[stream] = self._credit.get(stream, 0) + message.credit_bytes
                self._credit_bytes += message.credit_bytes
                self._touched_us[stream] = self._now_us()
                self._check_pool()
                self._check_stream(stream)
        else:
            self.stream_ended(stream)

    def stream_ended(self, stream: Stream) -> None:
        """What it was promised is void."""
        self._credit_bytes -= self._credit.pop(stream, 0)
        self._touched_us.pop(stream, None)
        self._asleep.pop(stream, None)

    def _check_pool(self) -> None:
        """Whenever more is promised. What sleeps may be promised once more."""
        now_us = self._now_us()
        for stream, credit in self._credit.items():
            if now_us - self._touched_us[stream] >= DORMANT_US:
                self._asleep[stream] = credit
        taken = self._credit_bytes - sum(self._asleep.values()) + self._writes
        if taken > self._limits.credit_pool_bytes:
            raise Violation(
                f"P5: {self._name} has promised or holds {taken} bytes of fragments, "
                f"its pool is {self._limits.credit_pool_bytes}"
            )

    def _check_stream(self, stream: Stream) -> None:
        mine = self._credit.get(stream, 0) + self._windows.get(stream, 0)
        if mine > self._limits.stream_credit_bytes:
            raise Violation(f"P5: {self._name} lets one stream have {mine} bytes under way")

    # ----------------------------------------------------------------------- reads

    def reads(self, action: ReadAt) -> None:
        """A buffer is taken until it is released."""
        if not self._read:
            self._readers_most = 0
        self._reads[action.op] = action.length
        self._read += action.length
        self._piece = max(self._piece, action.length)

    def sends(self, session: Session, size: int) -> None:
        """Bulk bytes wait to leave."""
        unsent = self._unsent[session] = self._unsent.get(session, 0) + size
        window = self._limits.read_window_bytes + self._piece
        if unsent > window:
            raise Violation(f"P5: {self._name} holds {unsent} unsent bytes for one reader")

    def drained(self, session: Session) -> None:
        """All that was sent on it has left."""
        self._unsent.pop(session, None)

    def check_reads(self, readers: int) -> None:
        """Each reader may have one piece beyond the pool, all together the share of crowds, and
        what is kept for others. What is read for one that has gone meanwhile stays until it is
        here, so that those count who were there since nothing was read. The last one may be longer
        than a piece.
        """
        limits = self._limits
        self._readers_most = max(readers, self._readers_most)
        crowd = min(self._readers_most * self._piece, limits.read_crowd_bytes + self._piece)
        limit = limits.read_pool_bytes + limits.read_keep_bytes + crowd
        if self._read > limit:
            raise Violation(f"P5: {self._name} holds {self._read} bytes for readers, not {limit}")

    # ----------------------------------------------------------------------- ends

    def released(self, operation: int) -> None:
        """Its buffer may be used again."""
        written = self._of.pop(operation, None)
        if written is not None:
            stream, size = written
            self._writes -= size
            self._windows[stream] -= size
        else:
            self._read -= self._reads.pop(operation, 0)

    def session_closed(self, session: Session) -> None:
        """Nothing comes or goes on it any more."""
        for stream in [each for each in self._credit if each[0] == session]:
            self.stream_ended(stream)
        self.drained(session)


class ScratchCells(CellPool):
    """The cells of one read that have no place in the destination."""

    def __init__(self, name: str, layout: Layout, limits: ReadLimits) -> None:
        super().__init__()
        self._name = name
        # The oldest stripe may pass the bound, so that it always comes to its end.
        self._limit = limits.scratch_bytes + layout.code.n * layout.cell_bytes
        self._held = 0

    def take(self, size: int) -> Bytes:
        self._held += size
        if self._held > self._limit:
            raise Violation(f"P5: {self._name} holds {self._held} bytes of scratch cells")
        return super().take(size)

    def give_back(self, cell: Bytes) -> None:
        self._held -= len(cell)
        super().give_back(cell)


class AskedBytes:
    """What one read has asked of its columns and what has not come, column by column."""

    __slots__ = ("_asks", "_limit", "_name", "_of_column")

    def __init__(self, name: str, layout: Layout, limits: ReadLimits, *, parts: bool) -> None:
        """`parts`: not the whole payload; then a question ends with the run that reaches its bytes,
        at most the rest of a cell too late."""
        self._name = name
        self._limit = max(limits.window_bytes, layout.cell_bytes) + parts * layout.cell_bytes
        #: Request -> its column, and bytes that it still owes.
        self._asks: dict[int, tuple[ColumnNumber, int]] = {}
        #: Bytes that each column still owes.
        self._of_column: dict[ColumnNumber, int] = {}

    def asks(self, action: AskRanges) -> None:
        """A question leaves; its bytes may come from now on."""
        size, column = total(action.runs), action.column
        owed = self._of_column[column] = self._of_column.get(column, 0) + size
        self._asks[action.request] = column, size
        if owed > self._limit:
            raise Violation(f"P5: {self._name} has asked {owed} bytes of column {column} at once")

    def came(self, request: int, size: int) -> None:
        """Bytes are here, or will never be; what comes twice was asked once."""
        column, owed = self._asks.get(request, (None, 0))
        if column is not None:
            size = min(size, owed)
            self._asks[request] = column, owed - size
            self._of_column[column] -= size

    def ended(self, request: int) -> None:
        """The question is answered or void."""
        column, owed = self._asks.pop(request, (None, 0))
        if column is not None:
            self._of_column[column] -= owed

    def left(self, column: ColumnNumber) -> None:
        """Its target is gone, and with it whatever was asked."""
        for request in [r for r, (asked, _) in self._asks.items() if asked == column]:
            self.ended(request)
