"""Who may send how much: the memory for fragments, parted among the streams of all columns.

A stream has *taken* what it may still send and what came and is not written. Taken bytes of all
streams never exceed the pool. Freed bytes go to those that wait:

    - generations in turn, so that a small save does not wait for the end of a large one;
    - within a generation most bytes left first, so that its ranks finish together;
    - each up to its share, the pool divided by the streams that want some of it, at least one cell;
    - for the one whose turn it is, while less than its cell is free, what comes free is saved up:
      else streams with smaller cells would take it each time.

So every stream of a crowd moves all the time, and none waits for another's end. Who waits hears
from us at least each BEAT_US: how long the device takes, and how many wait; who asks hears it at
once. Silence then means that this process hangs, never that it is busy.

Credit that nobody uses for DORMANT_US while others wait is lent on: its sender is stopped, or
starved itself. It stays good; when it is used after all, others wait until as much is free again.
Memory holds: fragments land in slots, and a socket is not read while there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

from ckpt.base.ids import CheckpointId
from ckpt.base.limits import BEAT_US
from ckpt.base.units import US_PER_S, align_down, align_up
from ckpt.format.messages.writing import ColumnAccepted, CreditGranted, TargetPace
from ckpt.protocol.events import Session
from ckpt.protocol.target.core import Core
from ckpt.protocol.target.stream import Stream, StreamState

DORMANT_US: Final = US_PER_S
"""Credit that was not used for this long is lent to streams that wait."""


class Waiting:
    """Streams of one generation that could send and may not: most bytes left first, of equals the
    one that came first. What is left of a stream stays the same while it waits.
    """

    def __init__(self) -> None:
        #: Also of some that wait no more.
        self._heap: list[tuple[int, int, Stream]] = []
        #: The entry that counts for each that waits, by its session and request.
        self._numbers: dict[tuple[Session, int], int] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, stream: Stream) -> None:
        """It waits; perhaps it did before."""
        if stream.key in self._numbers:
            return
        self._count += 1
        self._numbers[stream.key] = self._count
        heappush(self._heap, (-stream.left_bytes, self._count, stream))

    def discard(self, stream: Stream) -> None:
        """It waits no more, if it did."""
        self._numbers.pop(stream.key, None)

    def first(self, may: Callable[[Stream], bool]) -> Stream | None:
        """Of those that may have some; it goes on waiting."""
        passed_by = []
        found = None
        while self._heap and found is None:
            _, number, stream = entry = self._heap[0]
            if self._numbers.get(stream.key) != number:
                heappop(self._heap)
            elif may(stream):
                found = stream
            else:
                passed_by.append(heappop(self._heap))
        for entry in passed_by:
            heappush(self._heap, entry)
        return found


class Credit:
    """I hold the pool. `Columns` tells me what its streams do; only I change their credit."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._limits = core.limits

        #: What nobody has taken. Below 0 while lent credit was used by those that it was lent from.
        self._free_bytes = core.limits.credit_pool_bytes
        #: Streams that take part, by their session and request.
        self._streams: dict[tuple[Session, int], Stream] = {}
        #: Those among them whose fragments have not all come: they part the pool.
        self._arriving: dict[tuple[Session, int], Stream] = {}
        #: Of each generation, those that could send and have nothing to send with.
        self._thirsty: dict[CheckpointId, Waiting] = {}

    # ----------------------------------------------------------------------- what streams do

    def join(self, stream: Stream) -> None:
        """Accept a column that is open, with some credit, unless it is saved up."""
        self._streams[stream.key] = self._arriving[stream.key] = stream
        amount = self._amount(stream, self._free_bytes // 2) if self._next() is None else 0
        self._take(stream, amount)
        self._say(stream, ColumnAccepted(amount, self._told(), answers=True))
        self._note_thirst(stream)

    def used(self, stream: Stream, size: int) -> None:
        """Note that a fragment came: credit turned into bytes that wait for the disk."""
        woken = min(stream.dormant_bytes, size)
        stream.dormant_bytes -= woken
        self._free_bytes -= woken
        stream.credit_bytes -= size
        stream.writing_bytes += size
        stream.moved_us = self._core.now_us

    def freed(self, stream: Stream, size: int) -> None:
        """Note that a fragment is written, or was not wanted."""
        stream.writing_bytes -= size
        self._free_bytes += size
        if stream.is_whole:
            self._arriving.pop(stream.key, None)
            self._give_back_credit(stream)
        self._refill(stream)
        self.water()

    def leave(self, stream: Stream) -> None:
        """Note that the column has ended; others get what it had."""
        if self._streams.pop(stream.key, None) is None:
            return
        self._arriving.pop(stream.key, None)
        self._give_back_credit(stream)
        self._free_bytes += stream.writing_bytes
        stream.writing_bytes = 0
        self._quench(stream)

    def water(self) -> None:
        """Distribute free credit to streams that wait, generation by generation."""
        while self._free_bytes > 0 and (stream := self._next()) is not None:
            amount = self._amount(stream, self._free_bytes)
            if not amount:
                return  # It comes next, when as much as its cell is free.
            self._quench(stream)
            checkpoint = stream.column.payload.checkpoint
            if checkpoint in self._thirsty:
                # Its others come after those of the next generation.
                self._thirsty[checkpoint] = self._thirsty.pop(checkpoint)
            self._grant(stream, amount)

    def _next(self) -> Stream | None:
        """Whose turn it is, however little is free."""
        for waiting in self._thirsty.values():
            found = waiting.first(self._may_have_some)
            if found is not None:
                return found
        return None

    def _may_have_some(self, stream: Stream) -> bool:
        """Whether its share and the pool have room for a cell of it."""
        cell = stream.layout.cell_bytes
        return self._room(stream) >= cell and cell <= self._limits.credit_pool_bytes

    def forget(self, stream: Stream) -> None:
        """Note that its session is gone: it gets nothing more, though its last writes are not
        answered.
        """
        self._quench(stream)

    def answer(self, session: Session, request: int) -> None:
        """Answer a sender that asks, at once, even if its column is sealed: this target lives."""
        stream = self._streams.get((session, request))
        if stream is not None:
            stream.told_us = self._core.now_us
        self._core.send(session, request, CreditGranted(0, self._told()))

    # ----------------------------------------------------------------------- time

    def ticked(self) -> None:
        """Lend on credit that nobody uses, and let streams that wait know that this target
        lives.
        """
        now = self._core.now_us
        self._core.pace.ticked(now)
        if self._thirsty:
            self._lend_dormant(now)
            self.water()
        for stream in self._streams.values():
            if stream.waits_for_target and now - stream.told_us >= BEAT_US:
                self._say(stream, CreditGranted(0, self._told()))

    def _lend_dormant(self, now_us: int) -> None:
        for stream in self._streams.values():
            idle = stream.credit_bytes - stream.dormant_bytes
            if idle and not stream.writing_bytes and now_us - stream.moved_us >= DORMANT_US:
                stream.dormant_bytes += idle
                self._free_bytes += idle

    # ----------------------------------------------------------------------- inside

    def _amount(self, stream: Stream, at_most: int) -> int:
        """What it would get now: whole cells, up to its share; 0 when that is less than one."""
        cell, left = stream.layout.cell_bytes, align_up(stream.left_bytes, stream.layout.cell_bytes)
        want = min(self._room(stream), left, max(cell, at_most), self._free_bytes)
        return max(0, align_down(want, cell))

    def _room(self, stream: Stream) -> int:
        """What it lacks of its share."""
        share = self._limits.credit_pool_bytes // max(1, len(self._arriving))
        share = min(share, self._limits.stream_credit_bytes)
        return max(stream.layout.cell_bytes, share) - stream.taken_bytes

    def _refill(self, stream: Stream) -> None:
        """Return freed credit in parts of half a share, so that grants stay few."""
        cell = stream.layout.cell_bytes
        if not stream.left_bytes or stream.state is not StreamState.OPEN:
            return
        amount = self._amount(stream, self._free_bytes) if not self._thirsty else 0
        if amount and (amount >= stream.taken_bytes or stream.credit_bytes < cell):
            self._grant(stream, amount)
        else:
            self._note_thirst(stream)

    def _note_thirst(self, stream: Stream) -> None:
        if stream.credit_bytes < stream.layout.cell_bytes and stream.left_bytes:
            self._thirsty.setdefault(stream.column.payload.checkpoint, Waiting()).add(stream)

    def _quench(self, stream: Stream) -> None:
        checkpoint = stream.column.payload.checkpoint
        waiting = self._thirsty.get(checkpoint)
        if waiting is not None:
            waiting.discard(stream)
            if not waiting:
                del self._thirsty[checkpoint]

    def _grant(self, stream: Stream, amount: int) -> None:
        self._take(stream, amount)
        self._say(stream, CreditGranted(amount, self._told()))

    def _take(self, stream: Stream, amount: int) -> None:
        stream.credit_bytes += amount
        stream.moved_us = self._core.now_us
        self._free_bytes -= amount

    def _give_back_credit(self, stream: Stream) -> None:
        self._free_bytes += stream.credit_bytes - stream.dormant_bytes
        stream.credit_bytes = stream.dormant_bytes = 0

    def _say(self, stream: Stream, message: ColumnAccepted | CreditGranted) -> None:
        stream.told_us = self._core.now_us
        self._core.send(stream.session, stream.request, message)

    def _told(self) -> TargetPace | None:
        return self._core.pace.told(self._core.now_us, self.waiting_count)

    @property
    def waiting_count(self) -> int:
        """Streams that could send and may not."""
        return sum(map(len, self._thirsty.values()))

    def check(self) -> None:
        """Assert that nothing is lost or given twice."""
        taken = 0
        for stream in self._streams.values():
            taken += stream.taken_bytes
            assert 0 <= stream.dormant_bytes <= stream.credit_bytes
        assert taken + self._free_bytes == self._limits.credit_pool_bytes
