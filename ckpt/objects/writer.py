"""Writing a checkpoint to a store: exactly once, by one worker or by many, resumed after a crash.

    begin    plan.json, created once: who comes later follows the plan that is there
    items    shards are written, read back and compared; a receipt says so
    finish   zarr.json of all nodes, trees, manifest; COMMITTED.json, created once; drain/ goes

Invariants
- A shard's bytes follow from the plan and the source alone: writing it twice changes nothing.
- Nothing is written before one has the plan and has seen that there is no marker: a plan that was
  created after a commit had removed its own is taken back.
- The marker comes after everything else was read back. Without it the checkpoint does not exist.

    take an item: (wait, write a shard, wait, read it back) ... receipt
                         `threads` at once    as many again

So a store takes the next shards while it gives back the last ones.

Memory: of each of `threads` an arena for a batch of chunks, and as much again for compression; a
sink's parts, and reading back beside them (SINK_BYTES). What a sink gathers comes on top.

Sketch, CPU s/GB beside the tier's own: receive and verify 0.5, CRC-32C and CRC-32 0.15 of what is
sent, the sink's copy 0.1, O_DIRECT 0.03, reading back 0.1. All of it is warm: an arena, a sink's
block and the receiver's connections are used again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

from ckpt.base.errors import Corrupt, NotFound, Refused
from ckpt.base.units import MiB
from ckpt.format.checksum import crc32, crc32_concat
from ckpt.objects import names
from ckpt.objects.arena import Arena, Arenas
from ckpt.objects.chunks import encode_chunk, encode_index, encoder_versions
from ckpt.objects.content import ArrayContent, Draft
from ckpt.objects.documents import (
    FORMAT,
    ArrayPlan,
    Header,
    Manifest,
    Marker,
    Plan,
    Receipt,
    SmallFile,
    StoredObject,
    check_same,
    decode,
    digest_of,
    encode,
    file_of,
)
from ckpt.objects.pace import WritePace
from ckpt.objects.planning import WriteOptions, make_plan
from ckpt.objects.sampling import sampled
from ckpt.objects.sinks.sink import PIECE_BYTES, PendingUpload, Sink, Upload, create_once
from ckpt.objects.source import Source
from ckpt.objects.trees import encode_trees
from ckpt.objects.zarr_layout import group_documents, shard_key

SINK_BYTES: Final = 32 * MiB + 2 * PIECE_BYTES
"""Memory of each thread for a sink's parts, and for reading back beside them."""
ARENA_BYTES_MAX: Final = 32 * MiB
"""A few stripes: enough for all targets to be busy."""
FILES_AT_ONCE: Final = 8
OTHERS_MAX: Final = 2
"""Writers without shared parts that may begin the same checkpoint while a shard is written."""


@dataclass(frozen=True, slots=True)
class WriteLimits:
    """What writing may use: threads, memory, bandwidth, time."""

    threads: int = 2
    """Shards written at once; as many again are read back meanwhile."""
    memory_bytes: int = 256 * MiB
    """Of all threads together, what the sink gathers apart."""
    pace: WritePace = field(default_factory=WritePace)
    arenas: Arenas = field(default_factory=Arenas)
    """Kept from checkpoint to checkpoint."""

    def __post_init__(self) -> None:
        if self.threads < 1 or self.arena_bytes < 8 * MiB:
            raise Refused(
                f"{self.threads} threads with {self.memory_bytes} bytes of memory",
                hint="64 MiB for each thread are the least",
            )

    @property
    def slots(self) -> int:
        """Items in hand at once, each in a thread of its own."""
        return 2 * self.threads

    @property
    def arena_bytes(self) -> int:
        """Chunks that one thread reads at once; as much again may be compressed chunks."""
        return min(ARENA_BYTES_MAX, (self.memory_bytes // self.threads - SINK_BYTES) // 2)


Progress = Callable[[int], None]
"""Called with raw bytes that were written and read back since the last call; by any thread."""


class Parts(Protocol):
    """Shares a checkpoint's items out. Threads of one or of several workers ask."""

    def begin(self, count: int, done: Collection[int]) -> None:
        """There are so many; these have receipts."""

    def take(self, slot: int, done: int | None) -> int | None:
        """The next item of a thread, which has finished `done`; None when all have receipts and
        this worker is to commit. Waits for others at the last items; raises Fenced when this
        worker has no part in it any more."""

    def stop(self) -> None:
        """Something failed: who waits in `take` raises Aborted."""


class OwnParts:
    """All items are this worker's."""

    def __init__(self) -> None:
        self._left: deque[int] = deque()

    def begin(self, count: int, done: Collection[int]) -> None:
        self._left.extend(number for number in range(count) if number not in done)

    def take(self, slot: int, done: int | None) -> int | None:
        try:
            return self._left.popleft()
        except IndexError:
            return None

    def stop(self) -> None:
        self._left.clear()


def write_checkpoint(
    sink: Sink,
    source: Source,
    options: WriteOptions,
    limits: WriteLimits,
    progress: Progress | None = None,
    parts: Parts | None = None,
) -> Marker:
    """Write all of it, or what an earlier attempt left undone. Idempotent.

    parts: who writes which item; without it everything is written here.
    Raises Refused when something else has its place, Corrupt when the store does not give back
    what it was given, and the errors of sink, source and parts.
    """
    prefix = names.generation_prefix(*source.header.key)
    found = read_marker(sink, prefix, source.header)
    if found is not None:
        clear_drain(sink, prefix)
        return found
    job = WriteJob.begin(sink, source, options, limits)
    if job is None:
        marker = read_marker(sink, prefix, source.header)
        assert marker is not None, "begin gives no job only after a marker"
        return marker
    try:
        return _written(job, parts or OwnParts(), limits, progress)
    except NotFound:
        # Another writer, who was faster, has cleared what was under way here.
        found = read_marker(sink, prefix, source.header)
        if found is None:
            raise
        return found


def _written(job: WriteJob, shared: Parts, limits: WriteLimits, told: Progress | None) -> Marker:
    shared.begin(len(job.plan.items), job.receipts())
    with ThreadPoolExecutor(limits.slots, thread_name_prefix="ckpt-drain") as pool:
        futures = [pool.submit(job.write_items, shared, slot, told) for slot in range(limits.slots)]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            job.stop()
            shared.stop()
            raise
    return job.finish()


def read_marker(sink: Sink, prefix: str, header: Header) -> Marker | None:
    """The marker of this very checkpoint, which stays, or None. Raises Refused when it is
    another's."""
    key = prefix + names.COMMITTED
    try:
        raw = sink.get(key)
    except NotFound:
        return None
    marker = decode(Marker, raw, f"{sink.url}/{key}")
    check_same(marker.header, header, f"{sink.url}/{key}")
    sink.settle(key)
    return marker


def clear_drain(sink: Sink, prefix: str) -> None:
    """What was needed only while writing; a commit that was interrupted after its marker left
    it, and uploads of workers that died."""
    abort_uploads(sink, sink.pending_uploads(prefix))
    folder = prefix + names.DRAIN
    receipts = [folder + name for name in sink.children(folder)]
    # The plan last: while it is there, nobody makes another.
    sink.delete([key for key in receipts if key != prefix + names.PLAN])
    sink.delete([key for key in receipts if key == prefix + names.PLAN])


class WriteJob:
    """I write parts of one checkpoint under the plan that all its workers share.

    `write_item` may run in several threads, and in several processes for different items.
    """

    def __init__(
        self, sink: Sink, source: Source, plan: Plan, raw_plan: bytes, limits: WriteLimits
    ) -> None:
        self.plan = plan
        self._sink = sink
        self._source = source
        self._limits = limits
        self._prefix = names.generation_prefix(*plan.header.key)
        self._digest = digest_of(raw_plan)
        self._content = ArrayContent(plan, source.tensors())
        #: Bounds of what is held in memory: see the module's words on it.
        self._writing = threading.Semaphore(limits.threads)
        self._proving = threading.Semaphore(limits.threads)
        self._reading = threading.Lock()
        self._stopped = False
        #: Uploads that were there before me: of workers that died.
        self._strays = sink.pending_uploads(self._prefix)

    @classmethod
    def begin(
        cls, sink: Sink, source: Source, options: WriteOptions, limits: WriteLimits
    ) -> WriteJob | None:
        """Follow the plan that is there, or make one; None when the checkpoint is committed."""
        header = source.header
        prefix = names.generation_prefix(*header.key)
        key = prefix + names.PLAN
        try:
            raw = sink.get(key)
        except NotFound:
            plan = make_plan(
                header, source.tensors(), options, lambda arrays: sampled(source, arrays)
            )
            raw = encode(plan)
            raw = create_once(sink, key, raw) or raw
        if read_marker(sink, prefix, header) is not None:
            clear_drain(sink, prefix)
            return None
        plan = decode(Plan, raw, f"{sink.url}/{key}")
        check_same(plan.header, header, f"{sink.url}/{key}")
        if plan.encoder != encoder_versions() and any(array.compressed for array in plan.arrays):
            raise Refused(
                f"{sink.url}/{key} was begun with {plan.encoder}, here is {encoder_versions()}",
                hint="finish it with the same versions, or delete its folder",
            )
        return cls(sink, source, plan, raw, limits)

    def stop(self) -> None:
        """Items under way end with Refused at once; what they began is aborted."""
        self._stopped = True

    # ----------------------------------------------------------------------- items

    def receipts(self) -> dict[int, Receipt]:
        """Finished items, by number: of this plan only."""
        folder = self._prefix + names.DRAIN
        present = {folder + name for name in self._sink.children(folder)}
        found: dict[int, Receipt] = {}
        for number in range(len(self.plan.items)):
            if self._prefix + names.receipt_key(number) in present:
                receipt = self._receipt(number)
                if receipt is not None:
                    found[number] = receipt
        return found

    def _receipt(self, number: int) -> Receipt | None:
        key = self._prefix + names.receipt_key(number)
        try:
            receipt = decode(Receipt, self._sink.get(key), f"{self._sink.url}/{key}")
        except NotFound:
            return None
        return receipt if receipt.plan == self._digest else None

    def write_items(self, parts: Parts, slot: int, progress: Progress | None = None) -> None:
        """Write what falls to one thread, until nothing is left."""
        number = parts.take(slot, None)
        while number is not None:
            self.write_item(number, progress)
            number = parts.take(slot, number)

    def write_item(self, number: int, progress: Progress | None = None) -> None:
        """Write, read back and acknowledge the shards of an item, unless another worker did."""
        if self._receipt(number) is not None:
            return
        objects: list[tuple[int, int, StoredObject]] = []
        for array, first, count in self.plan.items[number]:
            for shard in range(first, first + count):
                with self._writing:
                    stored = self._written_shard(array, shard)
                with self._proving:
                    self._read_back(array, shard, stored)
                objects.append((array, shard, stored))
                if progress is not None:
                    progress(_raw_bytes(self.plan.arrays[array], shard))
        receipt, key = encode(Receipt(self._digest, tuple(objects))), names.receipt_key(number)
        self._sink.put(self._prefix + key, receipt)
        if self._sink.head(self._prefix + names.PLAN) is None:
            # Another worker has committed it, or it was deleted: nobody clears this any more.
            self._sink.delete([self._prefix + key])

    def _written_shard(self, array: int, shard: int) -> StoredObject:
        """Another writer that begins meanwhile ends what is under way, once, as a dead one's."""
        for _ in range(OTHERS_MAX):
            with suppress(NotFound):
                return self._write_shard(array, shard)
        return self._write_shard(array, shard)

    def _write_shard(self, array: int, shard: int) -> StoredObject:
        self._go_on()
        key = self._prefix + shard_key(self.plan.arrays[array], shard)
        self._abort_strays(key)
        limits = self._limits
        with limits.arenas.lent(limits.arena_bytes) as arena, self._sink.upload(key) as upload:
            stored = self._send_chunks(upload, array, shard, arena)
            upload.complete()
        return stored

    def _send_chunks(self, upload: Upload, array: int, shard: int, arena: Arena) -> StoredObject:
        plan = self.plan.arrays[array]
        entries: list[tuple[int, int] | None] = []
        chunks: list[tuple[int, int]] = []
        at = 0
        for draft in self._drafts(array, shard, arena):
            if draft is None:
                entries.append(None)
                chunks.append((0, 0))
                continue
            parts = encode_chunk(draft.content(), plan)
            length = sum(len(part) for part in parts)
            self._limits.pace.wait_turn(length)
            for part in parts:
                upload.part(part)
            crc = crc32_concat([(crc32(part), len(part)) for part in parts])
            entries.append((at, length))
            chunks.append((crc, length))
            at += length
        index = encode_index(entries, plan)
        if index:
            upload.part(index)
        whole = crc32_concat([*chunks, (crc32(index), len(index))])
        return StoredObject.of(at + len(index), whole, chunks)

    def _drafts(self, array: int, shard: int, arena: Arena) -> Iterator[Draft | None]:
        """A shard's chunks in order, filled; as many at once as memory allows."""
        plan = self.plan.arrays[array]
        at_once = max(1, self._limits.arena_bytes // plan.grid.chunk_bytes)
        regions = list(plan.grid.chunks(plan.grid.shard_at(shard)))
        shelf = self._content.drafts(array)
        for low in range(0, len(regions), at_once):
            self._go_on()
            arena.reset()
            drafts = [
                None if region is None else shelf.draft(region, arena)
                for region in regions[low : low + at_once]
            ]
            wishes = [wish for draft in drafts if draft is not None for wish in draft.wishes]
            with self._reading:
                self._source.read(wishes, self._go_on)
            yield from drafts

    def _go_on(self) -> None:
        """Raises Refused or Aborted when writing is to end."""
        if self._stopped:
            raise Refused(f"writing {self.plan.header} was stopped")
        self._limits.pace.check_stopped()

    def _read_back(self, array: int, shard: int, stored: StoredObject) -> None:
        """Does the store hold what it was given? Its own word (an ETag) is no proof."""
        self._go_on()
        key = self._prefix + shard_key(self.plan.arrays[array], shard)
        try:
            found = self._sink.checksum(key, lambda: self._limits.pace.wait_turn(0))
        except NotFound:
            found = None
        if found != (stored.bytes, stored.crc32):
            raise Corrupt(f"{self._sink.url}/{key} does not hold what was written to it")

    def _abort_strays(self, key: str) -> None:
        for stray in self._strays:
            if stray.key == key:
                self._sink.abort_upload(stray)

    # ----------------------------------------------------------------------- the end

    def finish(self) -> Marker:
        """Commit; every item must have its receipt. Idempotent, also beside another worker's.

        Raises Refused naming what is missing.
        """
        receipts = self.receipts()
        missing = [number for number in range(len(self.plan.items)) if number not in receipts]
        if missing:
            return self._committed_by_another(f"{len(missing)} items are not written yet")
        files = self._write_files()
        manifest = self._manifest(receipts, files)
        raw = encode(manifest)
        key = self._prefix + names.MANIFEST
        self._sink.put(key, raw)
        if self._sink.get(key) != raw:
            raise Corrupt(f"{self._sink.url}/{key} does not hold what was written to it")
        if self._sink.head(self._prefix + names.PLAN) is None:
            return self._committed_by_another("its plan was deleted, so parts of it may be gone")
        marker = Marker(
            FORMAT,
            self.plan.version,
            self.plan.header,
            file_of(names.MANIFEST, raw),
            digest_of(raw),
            dict(self._source.metrics),
        )
        other = create_once(self._sink, self._prefix + names.COMMITTED, encode(marker))
        if other is not None:
            where = f"{self._sink.url}/{self._prefix}{names.COMMITTED}"
            raise Refused(f"{where} was created by another writer with another content")
        clear_drain(self._sink, self._prefix)
        return marker

    def _committed_by_another(self, problem: str) -> Marker:
        """Another worker was faster, and has cleared plan and receipts. Raises Refused if none."""
        committed = read_marker(self._sink, self._prefix, self.plan.header)
        if committed is None:
            raise Refused(f"{self.plan.header}: {problem}")
        return committed

    def _write_files(self) -> tuple[SmallFile, ...]:
        """The small documents; read back as well."""
        contents = group_documents(self.plan.header, self.plan.arrays)
        contents[names.TREES] = encode_trees(self._source.trees())

        def write(key: str) -> SmallFile:
            self._sink.put(self._prefix + key, contents[key])
            if self._sink.get(self._prefix + key) != contents[key]:
                raise Corrupt(f"{self._sink.url}/{self._prefix}{key} is not what was written")
            return file_of(key, contents[key])

        with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="ckpt-drain") as pool:
            return tuple(pool.map(write, sorted(contents)))

    def _manifest(self, receipts: dict[int, Receipt], files: tuple[SmallFile, ...]) -> Manifest:
        by_place = {
            (array, shard): stored
            for receipt in receipts.values()
            for array, shard, stored in receipt.objects
        }
        plan = self.plan
        objects = tuple(
            tuple(by_place[number, shard] for shard in range(array.grid.shard_count))
            for number, array in enumerate(plan.arrays)
        )
        return Manifest(
            FORMAT, plan.version, plan.header, plan.encoder, plan.portable,
            plan.arrays, plan.tensors, objects, files,
        )  # fmt: skip


def abort_uploads(sink: Sink, uploads: Sequence[PendingUpload]) -> None:
    """End all of them."""
    for upload in uploads:
        sink.abort_upload(upload)


def _raw_bytes(array: ArrayPlan, shard: int) -> int:
    grid = array.grid
    regions = grid.chunks(grid.shard_at(shard))
    return sum(grid.chunk_bytes for region in regions if region is not None)
