"""Reading a stored checkpoint: only the chunks that are asked for, each once, each verified.

    COMMITTED.json -> manifest.json (length, CRC-32, xxh3-128) -> chunks

Where chunks lie the manifest says: the index of a shard, which Zarr's readers need, is not read. A
chunk is compared with the manifest's CRC-32 of it, and its own CRC-32C, whether it comes from the
store or from another rank (`Together`). What has no marker is no checkpoint; what is damaged,
partial or another's is refused by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from threading import Lock
from typing import Final, Protocol, TypeVar

import numpy as np

from ckpt.aio.threads import thread_found
from ckpt.base.errors import Corrupt, NotFound, Refused
from ckpt.base.ids import Generation, Rank, RunName, Step
from ckpt.format.checksum import Buffer, crc32
from ckpt.format.index.pages import IndexBox, IndexTensor
from ckpt.format.table import Meaning
from ckpt.format.tree import Node
from ckpt.objects import names
from ckpt.objects.chunks import decode_chunk
from ckpt.objects.documents import (
    MANIFEST_BYTES_MAX,
    DocumentPlace,
    Header,
    Manifest,
    Marker,
    SmallFile,
    decode,
    digest_of,
)
from ckpt.objects.elements import native_dtype
from ckpt.objects.grid import Region
from ckpt.objects.sinks.sink import Sink, at_once
from ckpt.objects.source import Array, Wish
from ckpt.objects.stored_chunk import StoredChunk
from ckpt.objects.stored_steps import newest_generation, stored_steps
from ckpt.objects.trees import decode_trees
from ckpt.objects.zarr_layout import shard_key
from ckpt.plan.boxes import intersect

THREADS: Final = 8
DAMAGED: Final = "put that object back from a copy of the store, or take another step of the run"

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """What one reading of a stored checkpoint moved, in bytes as they are stored."""

    wanted_bytes: int
    """Of all chunks that hold something of what was asked for, each once."""
    fetched_bytes: int
    """From the store."""
    peer_bytes: int
    """Of chunks that came from ranks that read the same at the same time."""


class Together(Protocol):
    """Reads what other ranks read at the same time, as well."""

    def read(self, stored: StoredCheckpoint, chunks: Sequence[StoredChunk]) -> None:
        """Fill all of them, from the store or from another rank. Raises as StoredCheckpoint.read
        does."""


@contextmanager
def _says_what_to_do() -> Iterator[None]:
    """What is damaged in a store has parity nowhere: its error says what is left to do."""
    try:
        yield
    except Corrupt as error:
        raise Corrupt(error.message, hint=error.hint or DAMAGED) from None


def open_stored(sink: Sink, run: RunName, step: Step | None = None) -> StoredCheckpoint:
    """A committed checkpoint; without a step the newest. Raises NotFound, Corrupt, Refused."""
    if step is None:
        steps = stored_steps(sink, run)
        if not steps:
            raise NotFound(f"{sink.url} has no committed checkpoint of {run}")
        step, generation = steps[-1]
    else:
        newest = newest_generation(sink, names.step_prefix(run, step))
        if newest is None:
            raise NotFound(
                f"{sink.url} has no committed checkpoint {run}@{step}",
                hint="without COMMITTED.json it was never finished",
            )
        generation = newest
    return StoredCheckpoint.open(sink, run, step, generation)


class StoredCheckpoint:
    """One committed generation in a store; a Source. Used by one thread at a time. Close me."""

    def __init__(self, sink: Sink, prefix: str, manifest: Manifest, marker: Marker) -> None:
        self.manifest = manifest
        self.metrics: Mapping[str, float] = marker.metrics
        self.digest = marker.xxh3_128
        """Of the manifest, in hex: who reads the same manifest reads the same objects."""
        self._wanted_bytes = self._fetched_bytes = self._peer_bytes = 0
        self._sink = sink
        self._prefix = prefix
        self._tensors = [
            _source_tensor(manifest, number) for number in range(len(manifest.tensors))
        ]
        self._places = {
            (tensor.name, tensor.meaning, tensor.dtype, tensor.shape): tensor
            for tensor in manifest.tensors
        }
        #: The number of each array's first object; all objects are numbered, array by array.
        self._first_objects = [0, *accumulate(map(len, manifest.objects))]
        self._lock = Lock()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="ckpt-store")

    @classmethod
    @_says_what_to_do()
    def open(cls, sink: Sink, run: RunName, step: Step, generation: Generation) -> StoredCheckpoint:
        """Read marker and manifest. Raises NotFound, Corrupt, Refused."""
        prefix = names.generation_prefix(run, step, generation)
        where = f"{sink.url}/{prefix}{names.COMMITTED}"
        marker = decode(Marker, sink.get(prefix + names.COMMITTED), where)
        if marker.header.key != (run, step, generation):
            header, meant = marker.header, names.store_above(sink.url, run, marker.header.run)
            if meant is not None and header.key[1:] == (step, generation):
                url = f"{meant}//{header.run}@{step}"
                raise Refused(f"{where} is of run {header.run!r}", hint=f"name it after //: {url}")
            place = f"{sink.url}/{names.generation_prefix(*header.key)}"
            raise Refused(
                f"{where} is the marker of {header}: it was put in a wrong place",
                hint=f"move it to {place}, or take another step of the run",
            )
        if marker.manifest.bytes > MANIFEST_BYTES_MAX:
            raise Corrupt(f"{where}: a manifest of {marker.manifest.bytes} bytes")
        raw = read_file(sink, prefix, marker.manifest)
        where = f"{sink.url}/{prefix}{marker.manifest.key}"
        if digest_of(raw) != marker.xxh3_128:
            raise Corrupt(f"{where} is not the manifest that was committed")
        manifest = decode(Manifest, raw, where)
        if manifest.header != marker.header:
            raise Corrupt(f"{where} is of {manifest.header}, its marker of {marker.header}")
        return cls(sink, prefix, manifest, marker)

    @property
    def header(self) -> Header:
        return self.manifest.header

    @property
    def url(self) -> str:
        """The Zarr group."""
        return f"{self._sink.url}/{self._prefix}".rstrip("/")

    def tensors(self) -> Sequence[IndexTensor]:
        return self._tensors

    def trees(self) -> Mapping[Rank, Node]:
        files = {file.key: file for file in self.manifest.files}
        if names.TREES not in files:
            raise Corrupt(f"{self.url}: the manifest names no {names.TREES}")
        return decode_trees(read_file(self._sink, self._prefix, files[names.TREES]))

    def close(self) -> None:
        self._pool.shutdown()

    # ----------------------------------------------------------------------- reading

    def read(
        self,
        wishes: Sequence[Wish],
        go_on: Callable[[], None] = at_once,
        *,
        together: Together | None = None,
    ) -> None:
        """Fill all memories; a chunk that several want is fetched once.

        together: reads what other ranks may want too; without it everything is fetched.

        Raises Corrupt naming the object, Unavailable.
        """

        def fetch(chunk: StoredChunk) -> None:
            go_on()
            self.fetch(chunk)

        chunks: dict[tuple[int, int, int], StoredChunk] = {}
        late: list[tuple[Array, Wish]] = []
        for wish in wishes:
            if wish.memory.size:
                self._add(wish, chunks, late)
        alone = list(chunks.values())
        if together is not None:
            together.read(self, [chunk for chunk in alone if chunk.is_shared])
            alone = [chunk for chunk in alone if not chunk.is_shared]
        self.each(fetch, alone)
        for whole, wish in late:
            part = tuple(
                slice(o, o + n) for o, n in zip(wish.offset, wish.memory.shape, strict=True)
            )
            wish.memory[...] = whole[part]

    def statistics(self) -> StoreStatistics:
        """Since it was opened."""
        with self._lock:
            return StoreStatistics(self._wanted_bytes, self._fetched_bytes, self._peer_bytes)

    def each(self, work: Callable[[Item], object], items: Iterable[Item]) -> None:
        """Do it for all of them, several at a time; raises what one of them raised, Scarce."""
        with thread_found("ckpt-store"):
            results = self._pool.map(work, items)
        for _ in results:
            continue

    @_says_what_to_do()
    def verify(self) -> int:
        """Read every byte and compare; how many there were. Raises Corrupt naming the object."""
        for file in self.manifest.files:
            read_file(self._sink, self._prefix, file)
        shards = [
            (shard_key(array, number), stored.bytes, stored.crc32)
            for array, objects in zip(self.manifest.arrays, self.manifest.objects, strict=True)
            for number, stored in enumerate(objects)
        ]
        self.each(lambda shard: self._verify(*shard), shards)
        return self.manifest.stored_bytes

    @_says_what_to_do()
    def _verify(self, key: str, size: int, expected: int) -> None:
        try:
            found = self._sink.checksum(self._prefix + key)
        except NotFound:
            raise Corrupt(f"{self.url}/{key} is gone, the manifest names it") from None
        if found != (size, expected):
            raise Corrupt(f"{self.url}/{key} is not what was committed")

    def _add(
        self,
        wish: Wish,
        chunks: dict[tuple[int, int, int], StoredChunk],
        late: list[tuple[Array, Wish]],
    ) -> None:
        place = self._place(wish)
        array = self.manifest.arrays[place.array]
        if place.is_whole:
            # An axis that carries bytes is the memory's elements themselves.
            carried = array.shape[wish.memory.ndim :]
            region = Region((*wish.offset, *(0 for _ in carried)), (*wish.memory.shape, *carried))
            flat = wish.memory.reshape(-1).view(np.uint8)
            memory = flat.reshape(*region.shape, array.item_bytes)
            self._add_region(place.array, region, memory, chunks, shared=wish.shared)
            return
        dtype, whole_shape = native_dtype(wish.tensor.dtype), wish.tensor.global_shape
        whole = wish.memory
        if wish.memory.shape != whole_shape:
            whole = np.empty(whole_shape, dtype)
            late.append((whole, wish))
        flat = whole.reshape(-1).view(np.uint8)
        if len(flat) != place.length:
            raise Corrupt(f"{self.url}: {wish.tensor.name} has {place.length} bytes of its own")
        region = Region((place.start,), (place.length,))
        # Of small tensors that lie together, some are everybody's.
        self._add_region(place.array, region, flat.reshape(-1, 1), chunks, shared=True)

    def _add_region(
        self,
        number: int,
        region: Region,
        memory: Array,
        chunks: dict[tuple[int, int, int], StoredChunk],
        *,
        shared: bool,
    ) -> None:
        """`memory` has the region's shape and, last, the bytes of an element."""
        array = self.manifest.arrays[number]
        grid = array.grid
        for coordinates in grid.shards_of(region):
            shard = grid.shard_number(coordinates)
            for position, inside in enumerate(grid.chunks(coordinates)):
                if inside is None:
                    continue
                common = intersect(region.offset, region.shape, inside.offset, inside.shape)
                if common is None:
                    continue
                key = (number, shard, position)
                chunk = chunks.setdefault(key, StoredChunk(array, *key, inside))
                chunk.parts.append((region, Region(*common), memory))
                chunk.is_shared |= shared

    # ----------------------------------------------------------------------- chunks

    def object_number(self, chunk: StoredChunk) -> int:
        """Of the object that holds it, among all of the checkpoint."""
        return self._first_objects[chunk.number] + chunk.shard

    def locate(self, chunk: StoredChunk) -> tuple[int, int]:
        """The bytes [start, end) of its object that are the chunk. Raises Corrupt."""
        _, start, end = self._stored(chunk)
        return start, end

    def fetch(self, chunk: StoredChunk) -> Buffer:
        """Its stored bytes, from the store; it is filled by them. Raises Corrupt, Unavailable."""
        raw = self._get(shard_key(chunk.array, chunk.shard), *self.locate(chunk))
        self._fill(chunk, raw)
        with self._lock:
            self._wanted_bytes += len(raw)
        return raw

    def take(self, chunk: StoredChunk, raw: Buffer) -> None:
        """Fill it by stored bytes that another rank gave. Raises Corrupt when they are not those
        of the manifest; nothing was filled then."""
        self._fill(chunk, raw)
        with self._lock:
            self._wanted_bytes += len(raw)
            self._peer_bytes += len(raw)

    @_says_what_to_do()
    def _fill(self, chunk: StoredChunk, raw: Buffer) -> None:
        where = self._where(chunk)
        if crc32(raw) != self._stored(chunk)[0]:
            raise Corrupt(f"{where}: chunk {chunk.position} is not what was committed")
        content = decode_chunk(memoryview(raw), chunk.array, chunk.raw_bytes, where)
        chunk.fill(content)

    def _where(self, chunk: StoredChunk) -> str:
        return f"{self.url}/{shard_key(chunk.array, chunk.shard)}"

    @_says_what_to_do()
    def _stored(self, chunk: StoredChunk) -> tuple[int, int, int]:
        """(CRC-32, first byte, byte after the last) in its object."""
        chunks = self.manifest.objects[chunk.number][chunk.shard].chunks()
        if chunk.position >= len(chunks) or chunks[chunk.position][1] == chunks[chunk.position][2]:
            raise Corrupt(f"{self._where(chunk)}: chunk {chunk.position} is missing")
        return chunks[chunk.position]

    @_says_what_to_do()
    def _get(self, key: str, start: int, end: int) -> Buffer:
        try:
            raw = self._sink.get_range(self._prefix + key, start, end)
        except NotFound:
            raise Corrupt(f"{self.url}/{key} is gone, the manifest names it") from None
        if len(raw) != end - start:
            raise Corrupt(f"{self.url}/{key} ends before byte {end}")
        with self._lock:
            self._fetched_bytes += len(raw)
        return raw

    def _place(self, wish: Wish) -> DocumentPlace:
        tensor = wish.tensor
        key = (tensor.name, tensor.meaning, tensor.dtype, tensor.global_shape)
        planned = self._places[key]
        if tensor.meaning is not Meaning.OWN:
            return planned.places[0]
        for box, place in zip(planned.boxes, planned.places, strict=True):
            if box.rank == wish.rank:
                return place
        raise NotFound(f"{self.url} has no {tensor.name} of rank {wish.rank}")


@_says_what_to_do()
def read_file(sink: Sink, prefix: str, file: SmallFile) -> bytes:
    """A small document, whole and verified. Raises Corrupt naming it."""
    where = f"{sink.url}/{prefix}{file.key}"
    try:
        raw = sink.get(prefix + file.key)
    except NotFound:
        raise Corrupt(f"{where} is gone although the checkpoint was committed") from None
    if (len(raw), crc32(raw)) != (file.bytes, file.crc32):
        raise Corrupt(f"{where} is not what was committed")
    return raw


def _source_tensor(manifest: Manifest, number: int) -> IndexTensor:
    tensor = manifest.tensors[number]
    boxes = tuple(IndexBox(Rank(box.rank), box.offset, box.shape, ()) for box in tensor.boxes)
    return IndexTensor(tensor.name, tensor.meaning, tensor.dtype, tensor.shape, boxes)
