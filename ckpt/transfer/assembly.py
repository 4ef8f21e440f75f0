"""The memory and the checks of one payload's read; without sockets and threads, so that the
simulator runs it too.

A received range is compared with its fresh checksum (`range_is_whole`), a cell that came whole
with the
manifest (`fragment_is_right`: stale or misplaced bytes), a decoded cell too (`decoded_is_right`).
The
manifest itself is the one that the index names (`manifest_is_named`). Nothing is handed out before.

A byte is read once for its checksum: the cell's comes from those of its ranges.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ckpt.aio.first_touch import FRESH_BYTES_MIN, FirstTouch, TouchedMemory
from ckpt.base.errors import Corrupt
from ckpt.erasure.codec import CODE_VERSION, MATRIX_ID
from ckpt.erasure.selftest import trusted_codec
from ckpt.format.checksum import crc32, crc32_concat, xxh3_128
from ckpt.format.combs import ranges_of
from ckpt.format.layout import Layout
from ckpt.format.manifest import RankManifest, decode_manifest
from ckpt.format.runs import Bytes, Offsets, SpareBuffers, copy_runs
from ckpt.protocol.reader.events import DecodePart, FinishStripe
from ckpt.protocol.runs.run_sets import RunSet
from ckpt.transfer.landings import Landings

Mask = slice | npt.NDArray[np.bool_]

CELLS_KEPT_MAX: Final = 64
"""Free scratch cells that are kept for the next stripe."""


class Checks:
    """What stands between the wire and the caller's memory. The simulator plants bugs by
    overriding one."""

    def range_is_whole(self, crc: int, wanted: int) -> bool:
        """A received range against the checksum that its target made for it."""
        return crc == wanted

    def manifest_is_named(self, document: bytes | bytearray | memoryview, digest: bytes) -> bool:
        """A received manifest against the digest in the index."""
        return xxh3_128(document) == digest

    def fragment_is_right(self, crc: int, manifest: RankManifest, stripe: int, column: int) -> bool:
        """A received cell against the manifest."""
        return crc == int(manifest.fragment_crcs[stripe, column])

    def decoded_is_right(self, crc: int, manifest: RankManifest, stripe: int, column: int) -> bool:
        """A cell of which something was decoded, against the manifest."""
        return crc == int(manifest.fragment_crcs[stripe, column])


class CellPool:
    """Scratch cells that are used again, since first touch costs more than all the rest. Thread
    safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Cells that no stripe holds, by size; at most CELLS_KEPT_MAX of each. Under the lock.
        self._free: dict[int, list[Bytes]] = {}
        #: Touches those that were made ahead.
        self._touching = FirstTouch()
        self._touched = TouchedMemory()

    def make_ahead(self, size: int, count: int) -> None:
        """Have so many cells; a thread of its own touches them, in the order in which they are
        taken, until `close`. Once.
        """
        cells = [self._touching.array((size,), np.dtype(np.uint8)) for _ in range(count)]
        for cell in reversed(cells):
            self.give_back(cell.view(np.uint8))
        self._touching.__enter__()

    def close(self) -> None:
        """Touch no more. Idempotent."""
        self._touching.__exit__(None, None, None)

    def take(self, size: int) -> Bytes:
        """A cell with whatever it held before."""
        with self._lock:
            free = self._free.get(size)
            if free:
                return free.pop()
        if size < FRESH_BYTES_MIN:
            return np.empty(size, np.uint8)
        # numpy's would be in huge pages, whatever these cost now.
        return np.frombuffer(self._touched.make(size), np.uint8)

    def give_back(self, cell: Bytes) -> None:
        """Give a cell back; nobody may touch it afterwards."""
        with self._lock:
            free = self._free.setdefault(len(cell), [])
            if len(free) < CELLS_KEPT_MAX:
                free.append(cell)


@dataclass(frozen=True, slots=True, eq=False)
class _Frame:
    """Short ranges of one cell as they came, one after the other."""

    column: int
    starts: Offsets
    """In the cell; ascending."""
    lengths: Offsets
    view: memoryview


class Assembly:
    """I keep what came of one payload until its stripe is finished.

    Ranges that came alone lie in their cell. Short ones stay as they came, and are copied once, to
    their places in the destination; into their cells only where these are checked or decoded.

    One thread receives and checks; another one may `finish` stripes. PayloadReader promises that
    no range of a stripe is landing while that stripe is finished.
    """

    def __init__(
        self,
        layout: Layout,
        landings: Landings,
        manifest_digest: bytes,
        checks: Checks | None = None,
        pool: CellPool | None = None,
        apart: SpareBuffers | None = None,
    ) -> None:
        """apart: gets back the memory of what `store_apart` was given."""
        self.layout = layout
        self.landings = landings
        self.manifest: RankManifest | None = None
        self._digest = manifest_digest
        self._checks = Checks() if checks is None else checks
        self._pool = CellPool() if pool is None else pool
        self._apart = SpareBuffers() if apart is None else apart

        #: (stripe, column) -> where the cell is put together; direct cells are views of the
        #: destination.
        self._homes: dict[tuple[int, int], memoryview] = {}
        #: Those of `_homes` that are not direct: they go back to the pool.
        self._scratch: dict[tuple[int, int], Bytes] = {}
        #: Short ranges by stripe, in the order in which they came, until they are copied.
        self._frames: dict[int, list[_Frame]] = {}
        #: (stripe, column) -> start of a range in the cell -> (end, checksum), received or decoded.
        self._crcs: dict[tuple[int, int], dict[int, tuple[int, int]]] = {}

    def is_direct(self, stripe: int, column: int) -> bool:
        """Whether the whole cell has one place in the destination."""
        return self._place(stripe, column) is not None

    def land(self, column: int, start: int, size: int) -> memoryview:
        """Where fragment bytes [start, start + size) of a column, which lie in one cell, are to
        be written."""
        stripe = start // self.layout.cell_bytes
        at = start - self.layout.fragment_offset(stripe)
        return self._home(stripe, column)[at : at + size]

    def store(self, column: int, start: int, size: int, crc: int, wanted: int) -> bool:
        """Bytes that landed in their place count now. False, and they do not, when their checksum
        is not the one that is wanted."""
        if not self._checks.range_is_whole(crc, wanted):
            return False
        stripe = start // self.layout.cell_bytes
        at = start - self.layout.fragment_offset(stripe)
        self._crcs.setdefault((stripe, column), {})[at] = at + size, crc
        return True

    def store_apart(
        self, column: int, runs: RunSet, view: memoryview, crc: int, wanted: int
    ) -> bool:
        """As `store`, of several runs whose bytes came one after the other. The view is mine until
        they are where they belong."""
        if not self._checks.range_is_whole(crc, wanted):
            self._apart.give_back(view)
            return False
        starts, ends = ranges_of(runs).T
        stripe = int(starts[0]) // self.layout.cell_bytes
        base = self.layout.fragment_offset(stripe)
        frame = _Frame(column, starts - base, ends - starts, view)
        in_one_cell = int(ends[-1]) <= base + self.layout.cell_bytes_of(stripe)
        if in_one_cell and bool((starts[1:] >= ends[:-1]).all()):
            self._frames.setdefault(stripe, []).append(frame)
        else:
            self._put_apart(frame, starts)
        return True

    def take_manifest(self, document: bytes | bytearray | memoryview) -> None:
        """Keep it. Raises Corrupt when it is not the one that the index names, or of another
        code."""
        if not self._checks.manifest_is_named(document, self._digest):
            raise Corrupt("not the one that the index names")
        manifest = decode_manifest(document)
        if manifest.layout != self.layout:
            raise Corrupt(f"it is of a payload cut otherwise: {manifest.layout}")
        if (manifest.matrix_id, manifest.code_version) != (MATRIX_ID, CODE_VERSION):
            raise Corrupt(f"parity of matrix {manifest.matrix_id}, version {manifest.code_version}")
        self.manifest = manifest

    def has_work(self, action: FinishStripe) -> bool:
        """Whether finishing it decodes or copies bytes."""
        if action.parts:
            return True
        if action.stripe in self._frames:
            return True
        keys = ((action.stripe, column) for column in range(self.layout.code.n))
        return any(key in self._scratch for key in keys)

    def finish(self, action: FinishStripe) -> tuple[int, ...]:
        """Check, decode, check, hand out: the columns whose cells are wrong, and then nothing was
        handed out."""
        stripe = action.stripe
        if action.parts or action.checked:
            self._put_in_cells(stripe)
        wrong = [j for j in action.checked if not self._received_right(stripe, j)]
        if wrong:
            self._forget(stripe, wrong)
            return tuple(wrong)
        self.decode(stripe, action.parts)
        wrong = [j for j in action.rebuilt if not self._decoded_right(stripe, j)]
        if wrong:
            self._forget(stripe, wrong)
            return tuple(wrong)
        self._hand_out(stripe)
        return ()

    def decode(self, stripe: int, parts: tuple[DecodePart, ...]) -> None:
        """Fill the holes of this stripe's cells."""
        codec = trusted_codec(self.layout.code)
        for part in parts:
            present = {j: self._home(stripe, j)[part.start : part.end] for j in part.sources}
            wanted = {j: self._home(stripe, j)[part.start : part.end] for j in part.wanted}
            for column, crc in codec.reconstruct(present, wanted).items():
                self._crcs.setdefault((stripe, column), {})[part.start] = part.end, crc

    # ----------------------------------------------------------------------- inside

    def _put_in_cells(self, stripe: int) -> None:
        """Copy frames of the stripe into their cells."""
        for frame in self._frames.pop(stripe, ()):
            self._copy_into_cell(stripe, frame.column, frame.starts, frame, slice(None))
            self._apart.give_back(frame.view)

    def _put_apart(self, frame: _Frame, starts: Offsets) -> None:
        """Copy ranges of several cells, or in no order, into these. starts: in the fragment."""
        stripes = starts // self.layout.cell_bytes
        for stripe in sorted(set(stripes.tolist())):
            to = starts - self.layout.fragment_offset(stripe)
            self._copy_into_cell(stripe, frame.column, to, frame, stripes == stripe)
        self._apart.give_back(frame.view)

    def _copy_into_cell(
        self, stripe: int, column: int, to: Offsets, frame: _Frame, which: Mask
    ) -> None:
        home = np.frombuffer(self._home(stripe, column), np.uint8)
        source, at = np.frombuffer(frame.view, np.uint8), np.cumsum(frame.lengths) - frame.lengths
        copy_runs(home, to[which], source, at[which], frame.lengths[which])

    def _received_right(self, stripe: int, column: int) -> bool:
        assert self.manifest is not None, "PayloadReader waits for it"
        crc = self._crc_of(stripe, column)
        return self._checks.fragment_is_right(crc, self.manifest, stripe, column)

    def _decoded_right(self, stripe: int, column: int) -> bool:
        assert self.manifest is not None, "PayloadReader waits for it"
        crc = self._crc_of(stripe, column)
        return self._checks.decoded_is_right(crc, self.manifest, stripe, column)

    def _crc_of(self, stripe: int, column: int) -> int:
        """From its ranges when they tile the cell, else from its bytes."""
        ranges = sorted(self._crcs.get((stripe, column), {}).items())
        at = 0
        for start, (end, _) in ranges:
            if start != at:
                return crc32(self._home(stripe, column))
            at = end
        if at != self.layout.cell_bytes_of(stripe):
            return crc32(self._home(stripe, column))
        return crc32_concat((crc, end - start) for start, (end, crc) in ranges)

    def _forget(self, stripe: int, columns: list[int]) -> None:
        for column in columns:
            self._crcs.pop((stripe, column), None)

    def _hand_out(self, stripe: int) -> None:
        """Copy scratch cells to their places and let everything of the stripe go."""
        for column in range(self.layout.code.n):
            key = stripe, column
            self._crcs.pop(key, None)
            home = self._homes.pop(key, None)
            scratch = self._scratch.pop(key, None)
            if home is None or scratch is None:
                continue
            if column < self.layout.code.k:
                start = self.layout.cell_offset(stripe, column)
                end = min(start + len(scratch), self.layout.payload_bytes)
                if start < end:
                    self.landings.scatter(start, scratch[: end - start])
            self._pool.give_back(scratch)
        for frame in self._frames.pop(stripe, ()):
            if frame.column < self.layout.code.k:
                first = self.layout.cell_offset(stripe, frame.column)
                source = np.frombuffer(frame.view, np.uint8)
                self.landings.scatter_runs(first + frame.starts, frame.lengths, source)
            self._apart.give_back(frame.view)

    def _home(self, stripe: int, column: int) -> memoryview:
        key = stripe, column
        home = self._homes.get(key)
        if home is None:
            home = self._place(stripe, column)
            if home is None:
                scratch = self._scratch[key] = self._pool.take(self.layout.cell_bytes_of(stripe))
                home = scratch.data
            self._homes[key] = home
        return home

    def _place(self, stripe: int, column: int) -> memoryview | None:
        if column >= self.layout.code.k:
            return None
        start = self.layout.cell_offset(stripe, column)
        end = start + self.layout.cell_bytes_of(stripe)
        return None if end > self.layout.payload_bytes else self.landings.place(start, end)
