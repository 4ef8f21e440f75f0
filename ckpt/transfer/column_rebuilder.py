"""Makes columns of a payload again: k of the others are read, what is lost follows from them.

    reader's thread    PayloadReceiver: window w + 1 of the payload, verified, mended from parity
    caller's thread    window w: parity of each stripe, every cell against the manifest, sent

A data column that only goes elsewhere is read alone, with its cells in place of whole stripes.

A window is a few whole stripes, so that memory does not grow with the payload. It and the
connections to all targets stay for the next payload: to touch fresh memory costs a worker more CPU
than all that it does to the bytes. All lost columns of a payload are made in one pass. What is sent
was compared with the manifest, whose digest the index has; the targets compare it again as they
seal. The files are those that were lost, byte by byte.

Sketch, 1 GB of payload at 4+2, one column lost: receive 0.14 CPU s, checksums 0.04, parity and its
checksums 0.06, send 0.25 GB 0.05. Memory: two windows, and the parity of one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ckpt.base.errors import Corrupt
from ckpt.base.ids import ColumnId, ColumnNumber, LaunchNumber
from ckpt.base.units import MiB
from ckpt.erasure.codec import CODE_VERSION, MATRIX_ID
from ckpt.erasure.selftest import trusted_codec
from ckpt.format.checksum import crc32, xxh3_128
from ckpt.format.layout import Layout
from ckpt.format.manifest import RankManifest, decode_manifest, encode_manifest
from ckpt.format.messages.saving import Place
from ckpt.format.messages.writing import ColumnProof
from ckpt.format.runs import Offsets
from ckpt.transfer.column_sender import ColumnLinks, ColumnSender
from ckpt.transfer.landings import Landings
from ckpt.transfer.payload_receiver import PayloadReceiver
from ckpt.transfer.read_job import ReadJob, ReceiverOptions
from ckpt.transfer.target_links import SenderOptions

WINDOW_BYTES: Final = 16 * MiB
"""Bytes of payload in a window; at least one stripe."""
TAIL_SHARE: Final = 4
"""A last stripe of at most this part of a window is read with the window before it."""
WINDOWS: Final = 2
"""One window is read while the other is sent."""

Bytes = NDArray[np.uint8]
Turn = Callable[[int], None]
"""Called before so many bytes are read; returns when they may be, raises what ends the work."""
Check = Callable[[], None]
"""Called again and again while a target is waited for; raises what ends the work."""


@dataclass(frozen=True, slots=True)
class LostColumns:
    """What is to be made again."""

    source: ReadJob
    """The payload and who holds it; its landings are not looked at."""
    launch: LaunchNumber
    places: Mapping[ColumnNumber, Place]
    """Where each lost column goes: space that is reserved there."""
    moves: ColumnNumber | None = None
    """The only one, a data column, is whole where it is, and goes elsewhere."""

    @property
    def read_alone(self) -> ColumnNumber | None:
        """The one that moves, unless all of it is padding: then nothing would be read, and the
        manifest lies beside what is.
        """
        layout = self.source.layout
        if self.moves is None or self.moves * layout.cell_bytes_of(0) >= layout.payload_bytes:
            return None
        return self.moves

    @property
    def reading(self) -> ReadJob:
        """The payload; who should have a lost column is asked only where the others do not
        suffice. It is away, or has nothing, or what is damaged.
        """
        if self.read_alone is not None:
            return self.source
        return replace(self.source, spared=self.source.spared.union(self.places))


class RebuildRoom:
    """I keep what payloads that are made again one after the other can share: connections to their
    sources and to where columns go, windows, parity. One payload uses me at a time. A context
    manager; close me.
    """

    def __init__(self, reading: ReceiverOptions) -> None:
        self.manifests: Mapping[bytes, bytes] = {}
        """By digest: those that reads of this payload have brought."""
        self._reading = reading
        self._receiver: PayloadReceiver | None = None
        self._sending: ColumnLinks | None = None
        #: Empty until they are needed; they grow with what is asked for.
        self._windows = [np.empty(0, np.uint8) for _ in range(WINDOWS)]
        self._parity = np.empty(0, np.uint8)

    @staticmethod
    def bytes_for(lost: LostColumns) -> int:
        """What I grow to: windows, parity that is made, and as much as is read of it in the place
        of data columns that are gone. What goes while they are read may add to that.
        """
        source = lost.source
        layout, k = source.layout, source.layout.code.k
        data = enumerate(source.columns[:k])
        gone = sum(j in lost.places or id not in source.addresses for j, id in data)
        columns = WINDOWS * k + gone + sum(j >= k for j in lost.places)
        return columns * max(_padded_bytes(layout, one) for one in _windows_of(layout))

    def __enter__(self) -> RebuildRoom:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """All is given back; it comes again when it is needed."""
        self._leave_targets()
        self._windows = [np.empty(0, np.uint8) for _ in range(WINDOWS)]
        self._parity = np.empty(0, np.uint8)

    def begin(self) -> None:
        """With another payload: who did not give what he was asked for may give that."""
        if self._receiver is not None:
            self._receiver.forgive()
            self._receiver.manifests.clear()

    def read(self, job: ReadJob) -> None:
        """As PayloadReceiver."""
        if self._receiver is None:
            self._receiver = PayloadReceiver(self._reading)
            self.manifests = self._receiver.manifests
        try:
            self._receiver.read([job])
        except BaseException:
            self._receiver = None  # It has closed itself.
            raise

    def window(self, number: int, size: int) -> Bytes:
        """The same memory for each second number."""
        if len(self._windows[number % WINDOWS]) < size:
            # What is too small goes before what takes its place comes.
            self._windows[number % WINDOWS] = np.empty(0, np.uint8)
            self._windows[number % WINDOWS] = np.empty(size, np.uint8)
        return self._windows[number % WINDOWS][:size]

    def parity(self, layout: Layout) -> Bytes:
        """Cells of each stripe of a window: stripe, row, bytes. What is not used is not touched."""
        stripes = max(map(len, _windows_of(layout)))
        shape = stripes, layout.code.m, layout.cell_bytes
        size = shape[0] * shape[1] * shape[2]
        if len(self._parity) < size:
            self._parity = np.empty(size, np.uint8)
        return self._parity[:size].reshape(shape)

    def links(self, sending: SenderOptions) -> ColumnLinks:
        """To where columns go; the first one says as whom."""
        if self._sending is None:
            self._sending = ColumnLinks(sending)
        return self._sending

    def _leave_targets(self) -> None:
        for one in (self._receiver, self._sending):
            if one is not None:
                one.close()
        self._receiver, self._sending, self.manifests = None, None, {}


def rebuild_columns(
    lost: LostColumns, room: RebuildRoom, sending: SenderOptions, turn: Turn, check: Check
) -> tuple[ColumnProof, ...]:
    """Make them, each on its target, durable; the proofs of the targets, by column.

    Raises PayloadDamaged, Unavailable, Corrupt where what was read is not what the manifest says,
    what targets refuse, and what `turn` and `check` raise: then some may be sealed and the others
    are not.
    """
    source = lost.source
    with ExitStack() as held:
        senders = {
            number: held.enter_context(
                ColumnSender(
                    ColumnId(source.payload, number),
                    lost.launch,
                    source.layout,
                    place,
                    room.links(sending),
                    check,
                )
            )
            for number, place in sorted(lost.places.items())
        }
        windows = held.enter_context(SourceWindows(lost, room, turn))
        made = _cells_of(lost, room)
        for first, memory in windows:
            manifest = windows.manifest
            for stripe, cells in made.of_window(first, memory):
                for number, sender in senders.items():
                    view, crc = cells[number]
                    if crc != int(manifest.fragment_crcs[stripe, number]):
                        text = f"{source.payload} column {number}, stripe {stripe}"
                        raise Corrupt(f"{text}: what was made is not what the manifest says")
                    sender.send(stripe, view, crc)
            for sender in senders.values():
                sender.flush()
        return tuple(sender.seal(windows.document) for sender in senders.values())


class SourceWindows:
    """I read the sources, ahead by one window, in a thread of my own. A context manager."""

    def __init__(self, lost: LostColumns, room: RebuildRoom, turn: Turn) -> None:
        self._source = source = lost.reading
        self._launch = lost.launch
        self._turn = turn
        self._room = room
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ckpt-rebuild")
        self._alone = lost.read_alone
        #: Stripes of each.
        self._windows = [stripes for stripes in _windows_of(source.layout) if stripes]
        #: Decoded once: of the digest that the index has there is one.
        self._manifest: RankManifest | None = None
        room.begin()

    def __enter__(self) -> SourceWindows:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

    @property
    def document(self) -> bytes:
        """The manifest, once a window was read; of an empty payload at once."""
        if not self._source.layout.stripe_count:
            return _manifest_of_nothing(self._source, self._launch)
        return self._room.manifests[self._source.manifest_digest]

    @property
    def manifest(self) -> RankManifest:
        if self._manifest is None:
            self._manifest = decode_manifest(self.document)
        return self._manifest

    def __iter__(self) -> Iterator[tuple[int, Bytes]]:
        """First stripe and padded bytes of each window, of one column where it moves; they stay
        until the next is asked for.
        """
        ahead: Future[Bytes] | None = None
        for number, stripes in enumerate(self._windows):
            memory = self._read(number) if ahead is None else ahead.result()
            is_last = number + 1 == len(self._windows)
            ahead = None if is_last else self._thread.submit(self._read, number + 1)
            yield stripes.start, memory

    def _read(self, number: int) -> Bytes:
        layout, stripes = self._source.layout, self._windows[number]
        columns = layout.code.k if self._alone is None else 1
        memory = self._room.window(number, columns * _padded_bytes(layout, stripes))
        runs = _runs_of(layout, self._alone, stripes)
        size = int(runs.lengths.sum())
        memory[size:] = 0
        landings = Landings()
        landings.add(memory, *runs)
        if size:
            self._turn(size)
            self._room.read(replace(self._source, landings=landings))
        return memory


class _Runs(NamedTuple):
    """Payload bytes, and where they go."""

    starts: Offsets
    lengths: Offsets
    destinations: Offsets


def _padded_bytes(layout: Layout, stripes: range) -> int:
    """Of one column in these stripes."""
    return sum(layout.cell_bytes_of(stripe) for stripe in stripes)


def _runs_of(layout: Layout, column: ColumnNumber | None, stripes: range) -> _Runs:
    """All bytes of these stripes; or those of a data column, its cells one after the other. What is
    padding has no bytes: it comes last.
    """
    if column is None:
        start = stripes.start * layout.stripe_bytes
        end = min(stripes.stop * layout.stripe_bytes, layout.payload_bytes)
        return _Runs(*(np.array([one], np.int64) for one in (start, end - start, 0)))
    sizes = np.array([layout.cell_bytes_of(stripe) for stripe in stripes], np.int64)
    starts = np.arange(stripes.start, stripes.stop) * layout.stripe_bytes + column * sizes
    lengths = np.clip(layout.payload_bytes - starts, 0, sizes)
    destinations = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    real = lengths > 0
    return _Runs(starts[real], lengths[real], destinations[real])


def _windows_of(layout: Layout) -> list[range]:
    """Their stripes, in order; of an empty payload one without any."""
    count, step = layout.stripe_count, max(1, WINDOW_BYTES // layout.stripe_bytes)
    starts = list(range(0, max(1, count), step))
    tail_bytes = layout.code.k * layout.tail_cell_bytes
    if len(starts) > 1 and starts[-1] == count - 1 and tail_bytes <= WINDOW_BYTES // TAIL_SHARE:
        starts.pop()
    return [range(first, end) for first, end in itertools.pairwise((*starts, count))]


class _Cells(Protocol):
    """Cells of lost columns, window by window."""

    def of_window(
        self, first: int, memory: Bytes
    ) -> Iterator[tuple[int, dict[ColumnNumber, tuple[memoryview, int]]]]:
        """Of each stripe its number, and bytes and CRC-32 of each wanted cell. They stay as they
        are until the next window is asked for."""


def _cells_of(lost: LostColumns, room: RebuildRoom) -> _Cells:
    layout = lost.source.layout
    if lost.read_alone is not None:
        return _ReadCells(layout, [lost.read_alone], [lost.read_alone])
    if max(lost.places) < layout.code.k:
        data = [ColumnNumber(j) for j in range(layout.code.k)]
        return _ReadCells(layout, data, list(lost.places))
    return _MadeCells(layout, tuple(lost.places), room)


class _ReadCells:
    """I have the cells of some data columns as they were read: in stripes of the columns that were
    read, all k or one alone.
    """

    def __init__(
        self, layout: Layout, read: Sequence[ColumnNumber], wanted: Sequence[ColumnNumber]
    ) -> None:
        self._layout = layout
        self._columns_read = len(read)
        #: By column, which of those that were read it is.
        self._places = {j: read.index(j) for j in wanted}

    def of_window(
        self, first: int, memory: Bytes
    ) -> Iterator[tuple[int, dict[ColumnNumber, tuple[memoryview, int]]]]:
        """As of _Cells."""
        offset = 0
        for stripe in range(first, self._layout.stripe_count):
            if offset >= len(memory):
                return
            size = self._layout.cell_bytes_of(stripe)
            cells = {
                j: memory[offset + at * size : offset + (at + 1) * size].data
                for j, at in self._places.items()
            }
            yield stripe, {j: (cell, crc32(cell)) for j, cell in cells.items()}
            offset += self._columns_read * size


class _MadeCells:
    """I make the cells of some columns, parity among them, out of whole stripes of the payload."""

    def __init__(self, layout: Layout, wanted: tuple[ColumnNumber, ...], room: RebuildRoom) -> None:
        self._layout = layout
        self._codec = trusted_codec(layout.code)
        self._wanted = wanted
        self._parity = room.parity(layout)

    def of_window(
        self, first: int, memory: Bytes
    ) -> Iterator[tuple[int, dict[ColumnNumber, tuple[memoryview, int]]]]:
        """As of _Cells."""
        layout, k = self._layout, self._layout.code.k
        made = [j for j in self._wanted if j >= k]
        offset = 0
        for number, stripe in enumerate(range(first, layout.stripe_count)):
            if offset >= len(memory):
                return
            size = layout.cell_bytes_of(stripe)
            data = [memory[offset + j * size : offset + (j + 1) * size].data for j in range(k)]
            parity = [row[:size].data for row in self._parity[number, : len(made)]]
            crcs = self._codec.encode_rows(made, data, parity)
            cells = {j: (data[j], crc32(data[j])) for j in self._wanted if j < k}
            found = zip(made, parity, crcs, strict=True)
            yield stripe, cells | {j: (cell, int(crc)) for j, cell, crc in found}
            offset += k * size


def _manifest_of_nothing(source: ReadJob, launch: LaunchNumber) -> bytes:
    """Of a payload without bytes there is nothing to read."""
    layout = source.layout
    no_crcs = np.zeros((0, layout.code.n), np.uint32)
    manifest = RankManifest(
        source.payload, launch, layout.code, MATRIX_ID, CODE_VERSION,
        layout.payload_bytes, layout.cell_bytes, no_crcs, np.zeros(layout.code.n, np.uint32),
    )  # fmt: skip
    document = encode_manifest(manifest)
    if xxh3_128(document) != source.manifest_digest:
        raise Corrupt(f"{source.payload} is empty, and its manifest is another's")
    return document
