"""Encodes one payload straight over its arena: parity,
and the checksum of every cell while it is warm.

    head pass    Stripe by stripe, all m parity cells into ring slots, CRC of all n cells. Done
                 once.
    catch-up     One parity cell of one stripe again, for a column detached or begun again.

A parity column that lags holds ring slots and would stop the head pass for all others. It is
detached: its slots are given back, the pass goes on (the manifest needs every CRC), and its cells
are encoded again when it can send them. A cell that comes out different the second time means that
the arena's bytes have changed: the payload fails rather than be sealed.

Sketch, 4+2 with cells of 4 MiB: one native call reads 16 MiB, writes 8 and sums both, slice by
slice in the second-level cache: about 4 ms of CPU.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Final

import numpy as np

from ckpt.base.errors import Corrupt, Refused
from ckpt.base.ids import LaunchNumber, PayloadId
from ckpt.erasure.codec import CODE_VERSION, MATRIX_ID
from ckpt.erasure.selftest import trusted_codec
from ckpt.format.checksum import crc32_combine, xxh3_128
from ckpt.format.layout import Layout
from ckpt.format.manifest import RankManifest, encode_manifest
from ckpt.transfer.parity_ring import ParityRing

WINDOW_STRIPES: Final = 4
"""The head pass runs so far ahead of the parity columns: enough to decouple,
little enough to stay in cache.
"""


@dataclass(frozen=True, slots=True)
class Cell:
    """One fragment's bytes, ready to send."""

    view: memoryview
    crc: int
    ring: ParityRing | None
    """Where `slot` is given back once the bytes are sent; None for data cells,
    which lie in the arena.
    """
    slot: int

    def release(self) -> None:
        """Note that the bytes are sent or dropped. Exactly once."""
        if self.ring is not None:
            self.ring.give(self.slot)


@dataclass(frozen=True, slots=True)
class ManifestBytes:
    """What the seal needs of the whole payload."""

    document: bytes
    digest: bytes
    column_crcs: tuple[int, ...]


class PayloadEncoder:
    """The encode thread calls `step`; the send thread takes cells.

    I expect the arena not to change.
    """

    def __init__(
        self,
        payload: PayloadId,
        launch: LaunchNumber,
        layout: Layout,
        arena: memoryview,
        rings: tuple[ParityRing, ParityRing],
    ) -> None:
        """`arena` holds at least `layout.padded_bytes`; `rings`: of the head pass, of catch-up."""
        assert arena.nbytes >= layout.padded_bytes
        self.layout = layout
        self.head = 0
        """Stripes whose cells all have their CRC. Written by the encode thread alone."""
        self.manifest: ManifestBytes | None = None
        self.starved_since_us: int | None = None
        """Since when the head pass waits for parity columns."""
        self._payload, self._launch = payload, launch
        self._codec = trusted_codec(layout.code)
        self._arena = arena
        self._ring, self._again_ring = rings
        #: Of all cells of the stripes below `head`, by (stripe, column). The encode thread writes
        #: each once, before it moves `head`.
        self._crcs = np.zeros((layout.stripe_count, layout.code.n), np.uint32)
        #: Of each column up to `head`. The encode thread's alone.
        self._column_crcs = [0] * layout.code.n

        #: Guards what follows, which both threads use; a single load, or store of a flag, goes
        #: without it.
        self._lock = threading.Lock()
        #: Encoded parity cells that nobody has taken, by (stripe, column).
        self._cells: dict[tuple[int, int], Cell] = {}
        #: Whether the head pass keeps the column's cells; always so for a data column.
        self._attached = [True] * layout.code.n
        #: Catch-up cells that can be sent as soon as they exist, in the order of their orders.
        self._wanted: deque[tuple[int, int]] = deque()
        #: Whether no further step begins, and whether one is under way.
        self._stopped = self._stepping = False

    # ----------------------------------------------------------------------- send thread

    def take(self, stripe: int, column: int) -> Cell | None:
        """The cell, if it is encoded; it is the caller's until released.

        A detached column's is ordered.
        """
        layout = self.layout
        if stripe >= self.head:
            self._attached[column] = True  # It has caught up with the head pass.
            return None
        crc = int(self._crcs[stripe, column])
        if column < layout.code.k:
            begin = layout.cell_offset(stripe, column)
            return Cell(self._arena[begin : begin + layout.cell_bytes_of(stripe)], crc, None, 0)
        key = (stripe, column)
        with self._lock:
            cell = self._cells.pop(key, None)
            if cell is None:
                if self._attached[column]:
                    self._attached[column] = False
                    self._drop(column)
                if key not in self._wanted and not self._stopped:
                    self._wanted.append(key)
            return cell

    def put_back(self, stripe: int, column: int, cell: Cell) -> None:
        """Take back a cell that could not be sent."""
        if cell.ring is not None:
            with self._lock:
                self._cells[stripe, column] = cell

    def detach(self, column: int) -> None:
        """Give back what this parity column holds; from now on its cells are encoded on demand."""
        with self._lock:
            self._attached[column] = False
            self._drop(column)

    def holds(self, column: int) -> bool:
        """True when ring slots wait for this parity column."""
        return self._attached[column] and any(key[1] == column for key in list(self._cells))

    def stop(self) -> None:
        """No further step begins; `quiet` tells when the arena is not read any more."""
        with self._lock:
            self._stopped = True
            self._wanted.clear()
            for column in range(self.layout.code.k, self.layout.code.n):
                self._drop(column)

    @property
    def quiet(self) -> bool:
        return self._stopped and not self._stepping

    def forget_arena(self) -> None:
        """Let go of all views of the arena, so that its owner may unmap it."""
        assert self.quiet
        self._arena = memoryview(b"")

    @property
    def may_go_on(self) -> bool:
        """What the last step lacked is there: slots of a ring, for the head pass or for a catch-up
        cell.
        """
        if self._wanted and self._again_ring.free_count:
            return True
        return self.starved_since_us is not None and self._has_slots

    @property
    def _has_slots(self) -> bool:
        """The head pass may have the slots of one more stripe."""
        m = self.layout.code.m
        return len(self._cells) < WINDOW_STRIPES * max(1, m) and self._ring.free_count >= m

    def _drop(self, column: int) -> None:
        for key in [key for key in self._cells if key[1] == column]:
            self._cells.pop(key).release()

    # ----------------------------------------------------------------------- encode thread

    def step(self) -> bool:
        """Encode one stripe or one catch-up cell; False when nothing can be done now.

        Raises Corrupt.
        """
        with self._lock:
            if self._stopped:
                return False
            self._stepping = True
        try:
            return self._catch_up() or self._advance_head()
        finally:
            self._stepping = False

    def _advance_head(self) -> bool:
        stripe, layout = self.head, self.layout
        if stripe == layout.stripe_count:
            return self._finish()
        slots = self._ring.take(layout.code.m) if self._has_slots else None
        if slots is None:
            if self.starved_since_us is None:
                self.starved_since_us = time.monotonic_ns() // 1000
            return False
        self.starved_since_us = None
        size = layout.cell_bytes_of(stripe)
        data = self._data(stripe, size)
        parity = [self._ring.view(slot, size) for slot in slots]
        crcs = np.concatenate(self._codec.encode(data, parity))
        self._crcs[stripe] = crcs
        for column, crc in enumerate(crcs.tolist()):
            self._column_crcs[column] = crc32_combine(self._column_crcs[column], crc, size)
        with self._lock:
            for column, slot, view in zip(
                range(layout.code.k, layout.code.n), slots, parity, strict=True
            ):
                cell = Cell(view, int(self._crcs[stripe, column]), self._ring, slot)
                if self._attached[column] and not self._stopped:
                    self._cells[stripe, column] = cell
                else:
                    cell.release()
        self.head = stripe + 1
        return True

    def _catch_up(self) -> bool:
        """One ordered cell; the column's link can take it at once."""
        slots = self._again_ring.take(1) if self._wanted else None
        if slots is None:
            return False
        with self._lock:
            if not self._wanted:
                self._again_ring.give(slots[0])
                return False
            stripe, column = self._wanted[0]
        size = self.layout.cell_bytes_of(stripe)
        view = self._again_ring.view(slots[0], size)
        cell = Cell(view, int(self._crcs[stripe, column]), self._again_ring, slots[0])
        (crc,) = self._codec.encode_rows([column], self._data(stripe, size), [view]).tolist()
        same = crc == cell.crc
        with self._lock:
            if same and self._wanted and (stripe, column) not in self._cells:
                self._wanted.popleft()
                self._cells[stripe, column] = cell
            else:
                cell.release()
        if not same:
            raise Corrupt(
                f"{self._payload}: stripe {stripe} of the arena changed after it was checksummed"
            )
        return True

    def _finish(self) -> bool:
        if self.manifest is not None:
            return False
        layout = self.layout
        manifest = RankManifest(
            payload=self._payload,
            launch=self._launch,
            code=layout.code,
            matrix_id=MATRIX_ID,
            code_version=CODE_VERSION,
            payload_bytes=layout.payload_bytes,
            cell_bytes=layout.cell_bytes,
            fragment_crcs=self._crcs,
            column_crcs=np.array(self._column_crcs, np.uint32),
        )
        document = encode_manifest(manifest)
        self.manifest = ManifestBytes(document, xxh3_128(document), tuple(self._column_crcs))
        return True

    def _data(self, stripe: int, size: int) -> list[memoryview]:
        offsets = (self.layout.cell_offset(stripe, j) for j in range(self.layout.code.k))
        return [self._arena[begin : begin + size] for begin in offsets]


def zero_tail(layout: Layout, arena: memoryview) -> None:
    """Clear what lies between the payload and the end of its last stripe: less than k + 1 pages.

    Raises Refused when the arena is too short for it.
    """
    if arena.nbytes < layout.padded_bytes:
        raise Refused(
            f"an arena of {arena.nbytes} bytes cannot hold {layout.payload_bytes} bytes "
            f"cut by code {layout.code}: {layout.padded_bytes} are needed"
        )
    tail = layout.padded_bytes - layout.payload_bytes
    if tail:
        arena[layout.payload_bytes : layout.padded_bytes] = bytes(tail)
