"""Bulks that are not sent: a peer on this host reads them where they lie.

    lender                                         borrower
    LendMemory, a descriptor goes along      ->    keeps it
    a frame whose bulk lies there            ->    uses it in place
                                             <-    MemoryReturned: done with these bulks
    TakeBackMemory                           ->    forgets it

On a Unix socket a bulk is copied into the kernel and out of it again. What lies in sealed memory
(memfd) need not be: the frame names region and offset, and the bulk stays the borrower's until it
is returned. So `sent` comes later than on a socket, and no order is promised among bulks.

Trust: only who proved the cluster's secret may lend. A region must be sealed against shrinking, and
be no hugetlbfs, or a lender could end a borrower that has it mapped (SIGBUS); its bytes may change
under the borrower's hands, which its checksums find when the bytes are read again. What is borrowed
is read only.

Sketch, CPU s/GB on this class of machine: through a Unix socket 0.45 with the checksum, in place
0.12 (0.08 more when the pages are mapped for the first time).
"""

from __future__ import annotations

import array
import ctypes
import fcntl
import mmap
import os
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ckpt.aio.net.send_queue import Sent
from ckpt.aio.sealed_memory import mapped
from ckpt.base.errors import PeerError, Unavailable
from ckpt.base.units import KiB, MiB
from ckpt.format.frame import LentPlace
from ckpt.format.messages.lending import LendMemory

LEND_BYTES_MIN: Final = 64 * KiB
"""Smaller bulks are cheaper to send than to give back."""
LENT_BYTES_MAX: Final = 8 * MiB
"""Bytes lent on one link before it counts as full: one cell is written while the next waits."""
REGIONS_MAX: Final = 16
"""Regions that one peer may lend at once."""
_DESCRIPTOR_BYTES: Final = array.array("i").itemsize
_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(REGIONS_MAX * _DESCRIPTOR_BYTES)


def address_of(view: memoryview) -> int:
    """Where the buffer lies in memory; 0 for an empty one."""
    if not len(view):
        return 0
    if view.readonly:
        import numpy as np  # Lazily: who only asks the coordinator has nothing like it.

        return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


# --------------------------------------------------------------------------- lending


@dataclass(frozen=True, slots=True, eq=False)
class Lendable:
    """Sealed memory of this process that its peers may borrow."""

    descriptor: int
    """Its owner's, and open as long as this is offered."""
    address: int
    size: int

    @classmethod
    def of(cls, descriptor: int, memory: memoryview) -> Lendable:
        """`memory` is the descriptor's mapping, from its first byte on."""
        return cls(descriptor, address_of(memory), memory.nbytes)


class Lendables:
    """What may be lent, shared by all channels of one loop."""

    def __init__(self) -> None:
        self._all: tuple[Lendable, ...] = ()

    def add(self, lendable: Lendable) -> None:
        """From now on bulks that lie in it are lent; idempotent."""
        if lendable not in self._all:
            self._all = (*self._all, lendable)

    def remove(self, lendable: Lendable) -> None:
        """No more; those that borrowed it hear so by their channels."""
        self._all = tuple(each for each in self._all if each is not lendable)

    def find(self, view: memoryview) -> tuple[Lendable, int] | None:
        """The memory that these bytes lie in, and where in it."""
        if len(view) < LEND_BYTES_MIN or not self._all:
            return None
        start = address_of(view)
        for each in self._all:
            if each.address <= start and start + len(view) <= each.address + each.size:
                return each, start - each.address
        return None


class Lender:
    """What one peer has of ours: regions by number, and bulks that it did not give back."""

    def __init__(self, lendables: Lendables) -> None:
        self.bytes = self.returned_bytes = 0
        """Of the bulks that are out, and of those that came back."""
        self.fresh: tuple[LendMemory, int] | None = None
        """What the peer must hear, with its descriptor, before it hears of the last `place`."""
        self._lendables = lendables
        self._numbers: dict[Lendable, int] = {}
        self._regions = self._bulks = 0
        self._out: dict[int, tuple[int, Sent | None]] = {}

    def place(self, view: memoryview) -> LentPlace | None:
        """Where these bytes lie in a region of the peer, which may be `fresh`; None: send them."""
        found = self._lendables.find(view)
        if found is None:
            return None
        lendable, offset = found
        region = self._numbers.get(lendable)
        if region is None:
            region = self._lend(lendable)
        return None if region is None else LentPlace(region, offset)

    def _lend(self, lendable: Lendable) -> int | None:
        """Its number from now on; None when the peer has enough, or no descriptor is free."""
        if len(self._numbers) >= REGIONS_MAX:
            return None
        try:
            descriptor = os.dup(lendable.descriptor)  # Its owner may close it before it has left.
        except OSError:
            return None
        number = self._numbers[lendable] = self._regions
        self._regions += 1
        self.fresh = LendMemory(number, lendable.size), descriptor
        return number

    def take_back(self, lendable: Lendable) -> int | None:
        """The number that it had, if the peer has it."""
        return self._numbers.pop(lendable, None)

    def went(self, size: int, sent: Sent | None) -> None:
        """One more bulk is out."""
        self._out[self._bulks] = size, sent
        self._bulks += 1
        self.bytes += size

    def returned(self, bulks: tuple[int, ...]) -> list[Sent]:
        """Whom to tell that their bulks came back. Raises PeerError for what is not out; then none
        of them counts as returned: `close` gives them back.
        """
        if len(set(bulks)) < len(bulks) or not self._out.keys() >= set(bulks):
            raise PeerError(f"bulks {bulks[:9]} were returned, which are not all lent")
        done: list[Sent] = []
        for bulk in bulks:
            size, sent = self._out.pop(bulk)
            self.bytes -= size
            self.returned_bytes += size
            if sent is not None:
                done.append(sent)
        return done

    def close(self) -> list[Sent]:
        """The connection is gone: whom to tell that their bulks are free."""
        out, self._out, self.bytes = self._out, {}, 0
        self._numbers.clear()
        return [sent for _, sent in out.values() if sent is not None]


# --------------------------------------------------------------------------- borrowing


class ReceivedFile:
    """A descriptor that a peer sent along; closed with the last reference to it."""

    __slots__ = ("descriptor",)

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)


class Loan:
    """A lent bulk that is used in place."""

    __slots__ = ("_give_back", "_number")

    def __init__(self, give_back: Callable[[int], None], number: int) -> None:
        self._give_back = give_back
        self._number = number

    def release(self) -> None:
        """Say that it is not needed any more; on the thread of its connection."""
        self._give_back(self._number)


@dataclass(slots=True)
class _Region:
    file: ReceivedFile
    size: int
    view: memoryview | None = None
    """All of it, while it is mapped."""


class Borrower:
    """What one peer has lent us: memory, where we take that, and files."""

    def __init__(self, *, takes_memory: bool = True) -> None:
        self.returned: list[int] = []
        """Bulks that we are done with and have not said so yet."""

        self._takes_memory = takes_memory
        #: Descriptors whose messages are still to come.
        self._arrived: deque[ReceivedFile] = deque()
        #: How many bulks were ever borrowed: by now, and at the last `rest`.
        self._bulks = self._bulks_at_rest = 0
        #: What is lent, by the lender's number; at most REGIONS_MAX.
        self._regions: dict[int, _Region] = {}

    def receive(self, sock: socket.socket, view: memoryview) -> int:
        """`recv_into` that keeps the descriptors that come along. Raises OSError, PeerError."""
        count, ancillary, flags, _ = sock.recvmsg_into(
            [view], _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
        )
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                whole = len(data) - len(data) % _DESCRIPTOR_BYTES
                self._arrived.extend(map(ReceivedFile, array.array("i", data[:whole])))
        lacks = self._takes_memory and flags & socket.MSG_CTRUNC
        if lacks or len(self._arrived) > REGIONS_MAX:
            raise PeerError("more descriptors than anybody lends")
        return count

    def take_file(self) -> ReceivedFile | None:
        """The oldest descriptor that came along; None where none did, as where this process has no
        more room for one.
        """
        return self._arrived.popleft() if self._arrived else None

    def take(self, message: LendMemory) -> None:
        """A region is lent. Raises PeerError unless its descriptor came and is as it must be."""
        if not self._takes_memory:
            raise PeerError("memory was lent to us, who did not offer to borrow")
        if message.region in self._regions or len(self._regions) >= REGIONS_MAX:
            raise PeerError(f"region {message.region} is one too many")
        file = self.take_file()
        if file is None:
            raise PeerError("memory was lent without a descriptor")
        descriptor = file.descriptor
        try:
            sealed = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
        except OSError:
            sealed = 0  # No memfd: a file or a pipe could keep its reader waiting for ever.
        if not sealed or os.fstat(descriptor).st_size < message.size_bytes:
            raise PeerError("memory was lent that is too short or may shrink")
        if os.fstatvfs(descriptor).f_bsize != mmap.PAGESIZE:
            # Of hugetlbfs: where it has a hole and no page is left, a look at it ends the process.
            raise PeerError("memory was lent that is of huge pages alone")
        self._regions[message.region] = _Region(file, message.size_bytes)

    def forget(self, number: int) -> None:
        """Its lender takes it back; a mapping goes with the last view of it."""
        if self._regions.pop(number, None) is None:
            raise PeerError(f"region {number} was taken back and is not lent")

    def view(self, place: LentPlace, size: int) -> memoryview:
        """The bytes where they lie, read only."""
        region = self._find(place, size)
        if region.view is None:
            try:
                region.view = mapped(region.file.descriptor, region.size, writable=False)
            except (OSError, ValueError, OverflowError) as error:
                raise Unavailable(f"lent memory cannot be mapped: {error}") from None
        return region.view[place.offset : place.offset + size]

    def rest(self) -> None:
        """Called every few seconds: unmap what nothing was borrowed of since the last time.

        The pages are their lender's, but who has them mapped looks as large as all of them.
        """
        bulks, self._bulks_at_rest = self._bulks_at_rest, self._bulks
        if bulks == self._bulks:
            for region in self._regions.values():
                region.view = None

    def borrowed(self) -> int:
        """One more bulk is ours: its number."""
        number, self._bulks = self._bulks, self._bulks + 1
        return number

    def close(self) -> None:
        """The connection is gone. Views stay good while somebody holds them."""
        self._regions.clear()
        self._arrived.clear()

    def _find(self, place: LentPlace, size: int) -> _Region:
        region = self._regions.get(place.region)
        if region is None or place.offset + size > region.size:
            raise PeerError(f"{size} bytes at {place.offset} of region {place.region} are not lent")
        return region
