"""Whose turn is it to be read for, and how much is in memory because of whom?

A crowd that restores costs a target no more than a few readers do:

- windows, the second and later pieces of sessions, stay within the pool;
- first pieces, of sessions that hold nothing, may go beyond it by the crowd's share. Those who hold
  nothing come first, in the order in which they came or had their last turn: nobody is starved;
- who does not take what it was sent for a second is slow until it takes something within one. It
  has one piece at a time, and all slow ones together have a quarter of the pool, so that those that
  read do not wait for those that do not. Where several become slow at once, with more than that,
  and others wait for memory, those that are slow for longest are cut off, before the others give
  this target up;
- a slow one that takes too long for what it holds, while other slow ones wait, is cut off.

A turn waits for nothing but memory here: who holds some has it in frames to a reader that asked for
them, and gives it back when they leave, or is cut off. So no circle of readers and targets that
wait for each other can stand.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from ckpt.base.limits import HEDGE_US
from ckpt.base.units import US_PER_S
from ckpt.protocol.events import Session
from ckpt.protocol.target.core import TargetLimits
from ckpt.protocol.target.reading.read_jobs import Job, StreamJob

SLOW_US: Final = US_PER_S
"""Who takes nothing of what it was sent for so long is slow."""
CROWDED_US: Final = 3 * US_PER_S // 2
"""So long it may keep others from their turn."""
PATIENCE_US: Final = 10 * US_PER_S
"""So long it may take for each piece while other slow ones wait for theirs."""

assert SLOW_US < CROWDED_US < HEDGE_US, "who waits for a turn must not give the column up"


@dataclass(slots=True, eq=False)
class Reader:
    """What one session has under way."""

    session: Session
    jobs: deque[Job] = field(default_factory=deque)
    reading_bytes: int = 0
    """Asked of the disk."""
    sent_bytes: int = 0
    """Sent and not yet drained."""
    sent_operations: list[int] = field(default_factory=list)
    """Reads whose buffers the unsent frames use."""
    copied_bytes: int = 0
    """In unsent frames, in memory of their own."""
    kept_bytes: int = 0
    """Of an answer that is in memory and not in frames yet."""
    loans: set[int] = field(default_factory=set)
    """Requests whose columns it reads by itself."""
    since_us: int = 0
    """When something was sent while nothing was unsent."""
    is_slow: bool = False

    @property
    def held_bytes(self) -> int:
        """In memory because of the session."""
        return self.reading_bytes + self.sent_bytes

    @property
    def is_reading(self) -> bool:
        """It has asked for something that is not sent, or reads a column by itself."""
        return bool(self.jobs or self.held_bytes or self.loans)


class ReadMemory:
    """I count what is in memory for readers: each buffer once, whoever shares it."""

    def __init__(self) -> None:
        self.bytes = 0
        #: By operation: how many sessions have unsent frames that use its buffer, and its size.
        self._users: Counter[int] = Counter()
        self._sizes: dict[int, int] = {}

    def take(self, size: int) -> None:
        """The disk reads so much, or so much was copied."""
        self.bytes += size

    def give_back(self, size: int) -> None:
        """The opposite of `take`."""
        self.bytes -= size
        assert self.bytes >= 0

    def use(self, operation: int, size: int) -> None:
        """One more session's frames use what it has read."""
        if not self._users[operation]:
            self._sizes[operation] = size
            self.bytes += size
        self._users[operation] += 1

    def let_go(self, operations: Sequence[int]) -> None:
        """One session less uses each."""
        for operation in operations:
            self._users[operation] -= 1
            if not self._users[operation]:
                del self._users[operation]
                self.give_back(self._sizes.pop(operation))


class ReadingSessions:
    """I know all sessions that read, what they hold, and whose turn it is; see the module.

    Who had a turn and nothing to do is left out until something changes for it: a target that
    thousands of ranks read from looks at those that can go on, not at all of them for each piece.
    """

    def __init__(self, limits: TargetLimits) -> None:
        self.held_bytes = 0
        """What sessions hold, also those that have closed; what some share counts for each."""
        self.memory = ReadMemory()
        self._limits = limits
        self._slow_bytes_max = max(limits.read_piece_bytes, limits.read_pool_bytes // 4)
        #: Of `held_bytes` what slow ones hold.
        self._slow_bytes = 0
        self._live: dict[Session, Reader] = {}
        #: Those of sessions that closed, while the disk still reads for them.
        self._gone: dict[Session, Reader] = {}
        #: Those with unsent frames, whose first were sent longest ago first.
        self._sending: dict[Reader, None] = {}
        #: Of the live ones those that may have a step: their answer is in memory already,
        self._ready: OrderedDict[Session, Reader] = OrderedDict()
        #: or they hold nothing, and are slow
        self._slow: OrderedDict[Session, Reader] = OrderedDict()
        #: or not,
        self._empty: OrderedDict[Session, Reader] = OrderedDict()
        #: or they hold something, and may hold more where there is room.
        self._holding: OrderedDict[Session, Reader] = OrderedDict()

    def get(self, session: Session) -> Reader | None:
        """The one of a session that is open, if it reads."""
        return self._live.get(session)

    def find(self, session: Session) -> Reader:
        """As `get`; or the one of a session that has closed, while the disk reads for it."""
        return self._live.get(session) or self._gone[session]

    def begin(self, session: Session) -> Reader:
        """The session asks for something."""
        reader = self._live.get(session)
        if reader is None:
            reader = self._live[session] = Reader(session)
        return reader

    def items(self) -> Iterable[tuple[Session, Reader]]:
        """Those of sessions that are open."""
        return self._live.items()

    def __bool__(self) -> bool:
        return bool(self._live)

    # ----------------------------------------------------------------------- what they hold

    def asked(self, reader: Reader, size: int) -> None:
        """The disk reads so much for it."""
        reader.reading_bytes += size
        self._count(reader, size)

    def came(self, session: Session, reader: Reader, size: int) -> None:
        """The disk has read so much for it, or failed to."""
        reader.reading_bytes -= size
        self._count(reader, -size)
        if not reader.reading_bytes and self._gone.get(session) is reader:
            del self._gone[session]
        self.wake(session)

    def gave(self, reader: Reader, size: int, now_us: int) -> None:
        """So much is in frames that have not left."""
        if size and reader not in self._sending:
            reader.since_us = now_us
            self._sending[reader] = None
        reader.sent_bytes += size
        self._count(reader, size)

    def gave_copy(self, reader: Reader, size: int, now_us: int) -> None:
        """The same, in memory of its own."""
        self.memory.take(size)
        reader.copied_bytes += size
        self.gave(reader, size, now_us)

    def gave_buffer(self, reader: Reader, operation: int, size: int, now_us: int) -> None:
        """The same, of what an operation has read, so much in all."""
        self.memory.use(operation, size)
        reader.sent_operations.append(operation)
        self.gave(reader, size, now_us)

    def keep(self, reader: Reader, size: int) -> None:
        """So much more, or less, of an answer is in memory and not in frames."""
        reader.kept_bytes += size
        self.memory.take(size)
        self.wake(reader.session)

    def left(self, session: Session, reader: Reader, now_us: int) -> list[int]:
        """No frame is on its way any more: whose buffers these used."""
        if reader in self._sending:
            del self._sending[reader]
            self._count(reader, -reader.sent_bytes)
            reader.sent_bytes = 0
            self._mark(reader, now_us - reader.since_us >= SLOW_US)
        operations, reader.sent_operations = reader.sent_operations, []
        self.memory.let_go(operations)
        self.memory.give_back(reader.copied_bytes)
        reader.copied_bytes = 0
        if reader.jobs or reader.reading_bytes or reader.loans:
            self.wake(session)
        else:
            self._live.pop(session, None)
            self._sleep(session)
        return operations

    def returned(self, reader: Reader, request: int) -> bool:
        """It reads that column no more; False where it was not lent."""
        if request not in reader.loans:
            return False
        reader.loans.remove(request)
        if not reader.is_reading:
            del self._live[reader.session]
            self._sleep(reader.session)
        return True

    def close(self, session: Session, now_us: int) -> list[int]:
        """Nothing is sent any more: whose buffers its frames used."""
        reader = self._live.pop(session, None)
        if reader is None:
            return []
        for job in reader.jobs:
            job.cancelled = True
        self.keep(reader, -reader.kept_bytes)
        if reader.reading_bytes:
            self._gone[session] = reader
        operations = self.left(session, reader, now_us)
        self._sleep(session)
        return operations

    def cancel(self, reader: Reader, job: Job) -> None:
        """Nobody wants its answer any more."""
        job.cancelled = True
        reader.jobs.remove(job)
        if isinstance(job, StreamJob):
            self.keep(reader, -job.kept_bytes)
        self.wake(reader.session)

    def _count(self, reader: Reader, size: int) -> None:
        self.held_bytes += size
        if reader.is_slow:
            self._slow_bytes += size

    def _mark(self, reader: Reader, is_slow: bool) -> None:
        if reader.is_slow != is_slow:
            reader.is_slow = is_slow
            self._slow_bytes += reader.held_bytes if is_slow else -reader.held_bytes

    # ----------------------------------------------------------------------- turns

    def wake(self, session: Session) -> None:
        """It may have a step, or holds more or less than it did."""
        reader = self._live.get(session)
        if reader is None:
            return
        mine = self._queue_of(reader)
        for queue in (self._ready, self._slow, self._empty, self._holding):
            if queue is not mine:
                queue.pop(session, None)
        if mine is not None:
            mine.setdefault(session, reader)

    def _queue_of(self, reader: Reader) -> OrderedDict[Session, Reader] | None:
        if reader.kept_bytes:
            return self._ready
        if reader.held_bytes:
            return None if reader.is_slow else self._holding
        return self._slow if reader.is_slow else self._empty

    def _sleep(self, session: Session) -> None:
        for queue in (self._ready, self._slow, self._empty, self._holding):
            queue.pop(session, None)

    def take(self) -> tuple[Session, Reader] | None:
        """The next one, which has its turn now."""
        if self._ready:
            return self._ready.popitem(last=False)
        piece, pool = self._limits.read_piece_bytes, self._limits.read_pool_bytes
        in_pool = self.held_bytes + piece <= pool
        # Beyond the pool not beside what is read for nobody.
        if not self._has_room or (self._gone and not in_pool):
            return None
        for queue in (self._slow, self._empty) if self._slow_have_room else (self._empty,):
            while queue:
                session, reader = queue.popitem(last=False)
                if self._queue_of(reader) is queue:
                    return session, reader
                # It was given something after it had been put there.
                self.wake(session)
        return self._holding.popitem(last=False) if self._holding and in_pool else None

    @property
    def _has_room(self) -> bool:
        """For one more piece of somebody who holds nothing."""
        limits = self._limits
        most = limits.read_pool_bytes + limits.read_crowd_bytes
        return self.memory.bytes + limits.read_piece_bytes <= most

    @property
    def _slow_have_room(self) -> bool:
        return self._slow_bytes + self._limits.read_piece_bytes <= self._slow_bytes_max

    def find_slow(self, now_us: int) -> list[Session]:
        """Note who is slow by now; who has to be cut off, since others wait for what it holds."""
        slow: list[Reader] = []
        for reader in self._sending:
            if now_us - reader.since_us < SLOW_US:
                break
            if not reader.is_slow:
                self._mark(reader, True)
                self.wake(reader.session)
            slow.append(reader)
        if self._empty and not self._has_room:
            return self._beyond_share(slow, now_us)
        waiting = len(self._slow) if not self._slow_have_room else 0
        piece = self._limits.read_piece_bytes
        return [
            reader.session
            for reader in slow[:waiting]
            if (now_us - reader.since_us) * piece >= PATIENCE_US * reader.sent_bytes
        ]

    def _beyond_share(self, slow: Sequence[Reader], now_us: int) -> list[Session]:
        """Of the slow ones those that are it for longest, and have to go."""
        found: list[Session] = []
        excess = self._slow_bytes - self._slow_bytes_max
        for reader in slow:
            if excess <= 0 or now_us - reader.since_us < CROWDED_US:
                break
            found.append(reader.session)
            excess -= reader.held_bytes
        return found

    def check(self) -> None:
        """Assert that what is counted is there, and that nobody is forgotten."""
        everybody = (*self._live.values(), *self._gone.values())
        assert self.held_bytes == sum(reader.held_bytes for reader in everybody)
        slow = sum(reader.held_bytes for reader in everybody if reader.is_slow)
        assert self._slow_bytes == slow
        assert all(reader.reading_bytes >= 0 for reader in everybody)
        for session, reader in self._live.items():
            assert bool(reader.sent_bytes) == (reader in self._sending)
            queue = self._queue_of(reader)
            woken = queue is not None and session in queue
            assert woken or reader.held_bytes or not reader.jobs, "nothing would wake it"
