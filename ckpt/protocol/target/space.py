"""Reservations: space that is held on disk, as preallocated aside files, before a byte is sent.

    Reserve --> PREPARING --allocated--> READY <--stream ended-- USED
                    |                      |  `---BeginColumn----^ |
                    v disk refused         v release, file damaged  v sealed
                   gone                   gone                     gone (the file became the column)

Invariants: a file belongs to at most one reservation and a reservation to at most one stream; a
reservation is given only when the budget holds it; no seal begins under one that was given back,
whose stream ends with it. Restarts forget all: the coordinator reserves again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from ckpt.base.ids import ReservationId
from ckpt.base.limits import PAGE_BYTES, RESERVE_FRACTION
from ckpt.base.units import format_bytes
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.targets import ReleaseReservation, Reserve, Reserved
from ckpt.protocol.events import Session
from ckpt.protocol.target.core import STAGING, Completion, Core
from ckpt.protocol.target.disk_events import (
    FULL_ERRNOS,
    DiskFailed,
    Preallocate,
    RemoveFile,
    SpaceMeasured,
)

NO_SPACE_RETRY_US = 5_000_000
INODES_KEPT: Final = 64
"""For documents, notes and tombstones: with so few left no column gets a file."""
REFUSED_FORGOTTEN_US: Final = 600_000_000
"""A refusal that nobody has met again for so long may be over."""
CONSUMED_MAX = 4096
"""Reservations that are remembered after they have become columns."""
_REMEDIES: Final = {
    "EDQUOT": "raise the quota of the user who runs the target, or remove files of that user's",
    "EFBIG": "raise the target's limit of a file's size (ulimit -f, prlimit --fsize)",
}
"""Where the device has room, as far as it says."""
_INODES_REMEDY: Final = "remove small files from its file system (df -i counts them)"


@dataclass(slots=True)
class Space:
    """The device's budget: measured free space, less what was promised since, less the reserve."""

    core: Core
    bytes_total: int = 0
    bytes_free: int = 0
    inodes_free: int | None = None
    held_bytes: int = 0
    """Bytes of aside files, whose space is reserved; they count against the capacity."""
    #: File name to bytes that its owner may still allocate, which the measurement cannot show.
    _promises: dict[str, int] = field(default_factory=dict)
    _promised_bytes: int = 0
    #: Promises that were allocated after the last measurement: the next one shows them.
    _settled: list[str] = field(default_factory=list)
    #: Aside files and their sizes.
    _held: dict[str, int] = field(default_factory=dict)
    #: The last space that was promised and that the disk refused, and when; 0: it gave the next.
    _refused_bytes: int = 0
    _refused_us: int = 0

    def measured(self, event: SpaceMeasured) -> None:
        for file in self._settled:
            self._promised_bytes -= self._promises.pop(file, 0)
        self._settled.clear()
        self.bytes_total, self.bytes_free = event.bytes_total, event.bytes_free
        self.inodes_free = event.inodes_free
        self.count()

    def count(self) -> None:
        """Into the counters, for whoever is about to see them beside what is `available`."""
        levels = self.core.counters
        levels.usable_bytes = self._total - self._reserve
        levels.reserved_bytes = self.held_bytes
        levels.device_used_bytes = self.bytes_total - self.bytes_free
        levels.inodes_out = int(self.is_out_of_inodes)
        levels.room_refused = int(self._refuses_room)

    @property
    def is_out_of_inodes(self) -> bool:
        return self.inodes_free is not None and self.inodes_free <= INODES_KEPT

    @property
    def _refuses_room(self) -> bool:
        """What is full by its own figures needs no other reason."""
        is_fresh = self.core.now_us - self._refused_us < REFUSED_FORGOTTEN_US
        full = self.is_out_of_inodes or self.available < self._refused_bytes
        return self._refused_bytes > 0 and is_fresh and not full

    @property
    def available(self) -> int:
        """Bytes that may still be promised: what the device has, and what this target's own
        capacity leaves."""
        capacity = self.core.limits.capacity_bytes
        if capacity is None:
            return self.device_available
        own = capacity - self.core.bytes_used - self.held_bytes - self._reserve
        return min(self.device_available, own)

    @property
    def device_available(self) -> int:
        """What this target and the others of its device may still promise together."""
        return self.bytes_free - self._promised_bytes - self._reserve

    @property
    def _reserve(self) -> int:
        return int(self._total * RESERVE_FRACTION)

    @property
    def _total(self) -> int:
        capacity = self.core.limits.capacity_bytes
        return self.bytes_total if capacity is None else min(self.bytes_total, capacity)

    def promise(self, file: str, bytes_count: int) -> bool:
        """Hold space for a file; False, and nothing changed, when there is not enough."""
        if bytes_count > self.available:
            return False
        self.forget(file)
        self._promises[file] = self._held[file] = bytes_count
        self._promised_bytes += bytes_count
        self.held_bytes += bytes_count
        return True

    def settle(self, file: str) -> None:
        """Note that the file's space is allocated now."""
        self._refused_bytes = 0
        self._settled.append(file)

    def refused(self, bytes_count: int) -> None:
        """Note that the disk had no room for what was promised."""
        self._refused_bytes, self._refused_us = bytes_count, self.core.now_us

    def forget(self, file: str) -> None:
        """Note that the file is gone, or became a column or document that counts by itself."""
        self._promised_bytes -= self._promises.pop(file, 0)
        self.held_bytes -= self._held.pop(file, 0)


class ReservationState(Enum):
    PREPARING = "preparing"
    READY = "ready"
    USED = "used"


@dataclass(slots=True)
class Reservation:
    """One column's space."""

    id: ReservationId
    file: str
    file_bytes: int
    state: ReservationState = ReservationState.PREPARING
    askers: list[tuple[Session, int]] = field(default_factory=list)
    """Requests that are answered when the space is held."""
    released: bool = False
    """Given back while in use: freed when its stream has ended."""


class Reservations:
    """I hand out aside files and take them back."""

    def __init__(self, core: Core, space: Space) -> None:
        self._core = core
        self._space = space

        #: Every reservation whose file was neither consumed nor discarded.
        self._held: dict[ReservationId, Reservation] = {}
        #: Those that became columns since boot, the latest CONSUMED_MAX: a Reserve that comes again
        #: after its column holds no space.
        self._consumed: dict[ReservationId, None] = {}
        self._file_count = 0

        self.on_ready: Callable[[Reservation], None] = lambda _reservation: None
        """Called when a file was allocated. Columns, which owns the streams, sets it."""
        self.on_lost: Callable[[Reservation], None] = lambda _reservation: None
        """Called when that failed, or the file was given back before it. Columns sets it."""
        self.on_released: Callable[[Reservation], None] = lambda _reservation: None
        """Called when one that is in use was given back. Columns sets it."""

    def __len__(self) -> int:
        return len(self._held)

    @property
    def standing(self) -> tuple[ReservationId, ...]:
        """What is held or will be, ascending. The coordinator gives back what it knows not: also
        what it asked for on a session that ended before the space was there.
        """
        return tuple(sorted(id for id, each in self._held.items() if not each.released))

    def get(self, id: ReservationId) -> Reservation | None:
        return self._held.get(id)

    # ----------------------------------------------------------------------- commands

    def reserve(self, session: Session, request: int, message: Reserve) -> None:
        """Idempotent by reservation id."""
        known = self._held.get(message.reservation)
        if known is not None and not known.released:
            self._repeat(known, session, request, message)
            return
        if message.reservation in self._consumed:
            self._core.fail(session, request, "refused", "the reservation has become a column")
            return
        if message.file_bytes < PAGE_BYTES or message.file_bytes % PAGE_BYTES:
            text = f"a reservation of {message.file_bytes} bytes is not a number of pages"
            self._core.fail(session, request, "refused", text)
            return
        if known is not None:
            self._core.fail(session, request, "busy", "the reservation is being released")
            return
        if self._space.is_out_of_inodes:
            text = f"target {self._core.identity.target} has no inodes left for more files"
            self._core.fail(session, request, "no_space", text, _INODES_REMEDY, NO_SPACE_RETRY_US)
            return
        file = self.new_file(f"reservation-{message.reservation:x}")
        if not self._space.promise(file, message.file_bytes):
            text = (
                f"target {self._core.identity.target} can hold "
                f"{format_bytes(max(0, self._space.available))} more, "
                f"{format_bytes(message.file_bytes)} are asked for"
            )
            self._core.fail(session, request, "no_space", text, retry_after_us=NO_SPACE_RETRY_US)
            return
        reservation = Reservation(message.reservation, file, message.file_bytes)
        reservation.askers.append((session, request))
        self._held[reservation.id] = reservation
        self._count()
        op = self._core.expect(lambda event: self._prepared(reservation, event))
        self._core.out.append(Preallocate(op, file, message.file_bytes))

    def release(self, message: ReleaseReservation) -> None:
        """Free the space. A stream that uses it ends, unless its seal is on the disk's way."""
        reservation = self._held.get(message.reservation)
        if reservation is None:
            return
        if reservation.state is ReservationState.READY:
            self.discard(reservation)
            return
        reservation.released = True
        if reservation.state is ReservationState.USED:
            self.on_released(reservation)

    # ----------------------------------------------------------------------- for streams

    def take(self, reservation: Reservation) -> None:
        """Note that a stream owns the file from now on."""
        assert reservation.state is ReservationState.READY
        reservation.state = ReservationState.USED

    def put_back(self, reservation: Reservation) -> None:
        """Note that the stream ended and the file is as good as new."""
        assert reservation.state is ReservationState.USED
        reservation.state = ReservationState.READY

    def consume(self, reservation: Reservation) -> None:
        """Note that the file is a sealed column now and counts as such."""
        assert reservation.state is ReservationState.USED
        self._consumed[reservation.id] = None
        if len(self._consumed) > CONSUMED_MAX:
            del self._consumed[next(iter(self._consumed))]
        del self._held[reservation.id]
        self._count()
        self._space.forget(reservation.file)

    def discard(self, reservation: Reservation) -> None:
        """Remove the file; its bytes count as held until it is gone."""
        self._held.pop(reservation.id, None)
        self._count()

        def removed(event: Completion) -> None:
            if isinstance(event, DiskFailed):
                self._core.report(
                    "error", "aside file not removed", file=reservation.file, error=event.errno_name
                )
            self._space.forget(reservation.file)

        op = self._core.expect(removed)
        self._core.out.append(RemoveFile(op, reservation.file))

    def begin_behind(self, leftovers: Iterable[str]) -> None:
        """Aside files of an earlier process are still being removed: none of their names is used
        again, or the removal would take what is written now.
        """
        numbers = (file.rpartition("-")[2] for file in leftovers)
        self._file_count = max((int(each) for each in numbers if each.isdecimal()), default=0)

    def new_file(self, stem: str) -> str:
        """An aside name that this process never used before."""
        self._file_count += 1
        return f"{STAGING}/{stem}-{self._file_count}"

    # ----------------------------------------------------------------------- inside

    def _count(self) -> None:
        self._core.counters.reservations = len(self._held)

    def _repeat(self, known: Reservation, session: Session, request: int, message: Reserve) -> None:
        if known.file_bytes != message.file_bytes:
            text = f"reservation {known.id} stands with {known.file_bytes} bytes"
            self._core.fail(session, request, "refused", text)
        elif known.state is ReservationState.PREPARING:
            known.askers.append((session, request))
        else:
            self._core.send(session, request, Reserved(known.id))

    def _prepared(self, reservation: Reservation, event: Completion) -> None:
        askers, reservation.askers = reservation.askers, []
        if isinstance(event, DiskFailed):
            if event.errno_name in FULL_ERRNOS:
                self._space.refused(reservation.file_bytes)
            self.discard(reservation)
            self._core.report(
                "warning", "reservation failed", file=reservation.file, error=event.errno_name
            )
            for session, request in askers:
                self._core.send(session, request, disk_failure("reserve space", event))
            self.on_lost(reservation)
            return
        self._space.settle(reservation.file)
        reservation.state = ReservationState.READY
        for session, request in askers:
            self._core.send(session, request, Reserved(reservation.id))
        if reservation.released:
            self.discard(reservation)
            self.on_lost(reservation)
        else:
            self.on_ready(reservation)


def disk_failure(doing: str, event: DiskFailed) -> Failed:
    """The answer that a disk's refusal becomes: full is its own kind, all else may not be repeated
    here.
    """
    return Failed(
        "no_space" if event.errno_name in FULL_ERRNOS else "failed",
        f"cannot {doing}: {event.errno_name}: {event.message}".rstrip(": "),
        _REMEDIES.get(event.errno_name, ""),
    )
