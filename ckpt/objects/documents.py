"""The JSON documents of a stored checkpoint: plan, manifest, receipts and the commit marker.

The manifest is authoritative: it lists every tensor, every array and every object with its length
and CRC-32. The marker names the manifest by length, CRC-32 and xxh3-128; a checkpoint without a
marker does not exist. `docs/drain_format.md` explains each field.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Final, TypeVar

import msgspec

from ckpt.base.errors import Corrupt, Refused
from ckpt.base.ids import Generation, RunName, Step, check_run_name, check_step
from ckpt.format.checksum import Buffer, crc32, xxh3_128
from ckpt.format.table import Meaning, box_problem, tensor_problem
from ckpt.objects.elements import Element
from ckpt.objects.grid import Extent, Grid
from ckpt.objects.names import generation_prefix

FORMAT: Final = "ckpt-drain"
VERSION: Final = "1.0"
"""Of what is written. Every 1.x is read; what was written before 1.0 has the number 1."""
MAJOR: Final = "1"
MANIFEST_BYTES_MAX: Final = 1 << 30
OBJECTS_CACHED: Final = 256


class Header(msgspec.Struct, frozen=True):
    """Whose checkpoint it is."""

    run: str
    step: int
    generation: str
    """TERM.COUNTER"""
    cluster: str
    """The id of the cluster that committed it; empty for an import."""
    launch: int
    world_size: int
    committed_at_s: float
    """When it was committed in the tier, Unix time."""
    source: str
    """What it was made from: `tier`, or the format of an import and xxh3-128 of its arrays."""

    @property
    def key(self) -> tuple[RunName, Step, Generation]:
        """(run, step, generation); raises Refused when they cannot be."""
        return check_run_name(self.run), check_step(self.step), Generation.parse(self.generation)

    def __str__(self) -> str:
        return f"{self.run}@{self.step}#{self.generation}"


def check_same(found: Header, ours: Header, where: str) -> None:
    """The same generation of the same cluster, or an import of the same bytes; raises Refused
    naming both.
    """
    if (found.cluster, *found.key) != (ours.cluster, *ours.key):
        raise Refused(
            f"{where} is of {found} of cluster {found.cluster or '-'}, "
            f"not of {ours} of cluster {ours.cluster or '-'}",
            hint="give each cluster a place of its own",
        )
    if not ours.cluster and found.source.split()[-1:] != ours.source.split()[-1:]:
        prefix = generation_prefix(*ours.key)
        folder = where.partition(prefix)[0] + prefix
        raise Refused(
            f"{where} is of an import of other bytes: nothing was written",
            hint=f"name another step or store, or delete {folder} first",
        )


class ArrayPlan(msgspec.Struct, frozen=True):
    """One Zarr array, or an archive of small ones, and how its bytes are cut and packed."""

    path: str
    """Of an archive: its only object."""
    dtype: str
    """Ours; see ckpt.format.dtypes."""
    data_type: str
    """Zarr's."""
    endian: str
    item_bytes: int
    shape: tuple[int, ...]
    """As stored in Zarr."""
    chunk_shape: tuple[int, ...]
    shard_shape: tuple[int, ...]
    logical_dtype: str = ""
    compressed: bool = False
    """Chunks are blosc (lz4 after a bit-shuffle)."""
    archive: bool = False
    """It is the bytes of one object, nothing else between or after them: a ZIP file of small
    arrays. Before 1.0 small tensors were bytes of a Zarr array, one after the other."""

    @classmethod
    def of(
        cls, path: str, dtype: str, element: Element, shape: Extent, chunk: Extent, shard: Extent
    ) -> ArrayPlan:
        """An array of our `dtype`, stored as `element` has it. shape, chunk, shard: as stored."""
        return cls(
            path=path,
            dtype=dtype,
            data_type=element.data_type,
            endian=element.endian,
            item_bytes=element.item_bytes,
            shape=shape,
            chunk_shape=chunk,
            shard_shape=shard,
            logical_dtype=element.logical_dtype,
        )

    @property
    def grid(self) -> Grid:
        return Grid(self.shape, self.chunk_shape, self.shard_shape, self.item_bytes)


class DocumentPlace(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the bytes of a tensor, or of one rank's box of it, are."""

    array: int
    """Its number in `arrays`."""
    start: int = -1
    """In an archive: the first byte. Not there for an array of its own; before 1.0 it was -1."""
    length: int = -1
    """In an archive: bytes, of which an empty tensor has none."""
    path: str = ""
    """In an archive: of its Zarr array; before 1.0 it was none. Rows of one array, which ranks have
    of their own, say it once: the first."""

    @property
    def is_whole(self) -> bool:
        """An array of its own."""
        return self.start < 0


class BoxPlan(msgspec.Struct, frozen=True):
    """A box that a rank declared."""

    rank: int
    offset: tuple[int, ...]
    shape: tuple[int, ...]


class TensorPlan(msgspec.Struct, frozen=True):
    """One form of one name."""

    name: str
    meaning: Meaning
    dtype: str
    shape: tuple[int, ...]
    boxes: tuple[BoxPlan, ...]
    places: tuple[DocumentPlace, ...]
    """One of the whole tensor, or one for each box when it is each rank's own."""


class Plan(msgspec.Struct, frozen=True):
    """How a checkpoint is written: fixed before its first byte, so that all workers write alike."""

    format: str
    version: int | str
    header: Header
    encoder: str
    """Versions of the libraries whose output is stored."""
    portable: bool
    arrays: tuple[ArrayPlan, ...]
    tensors: tuple[TensorPlan, ...]
    items: tuple[tuple[tuple[int, int, int], ...], ...]
    """Units of work: runs of (array, first shard, shards)."""


class StoredObject(msgspec.Struct, frozen=True):
    """One shard as it lies in the store."""

    bytes: int
    crc32: int
    chunk_crcs: str
    """Base64 of little-endian u32: CRC-32 of each stored chunk, 0 for those outside of the
    array."""
    chunk_lengths: str
    """In the same way: bytes of each stored chunk. They lie one after the other."""

    @classmethod
    def of(cls, size: int, crc: int, chunks: Sequence[tuple[int, int]]) -> StoredObject:
        """chunks: (CRC-32, bytes) of each."""
        crcs, lengths = zip(*chunks, strict=True)
        return cls(size, crc, _pack(crcs), _pack(lengths))

    def chunks(self) -> tuple[tuple[int, int, int], ...]:
        """(CRC-32, first byte, byte after the last) of each. Raises Corrupt."""
        return _chunks(self)


class Receipt(msgspec.Struct, frozen=True):
    """An item is written and was read back."""

    plan: str
    """xxh3-128 of the plan, in hex."""
    objects: tuple[tuple[int, int, StoredObject], ...]
    """(array, shard, what lies there)."""


class SmallFile(msgspec.Struct, frozen=True):
    """A document of the checkpoint: all of it is in one object."""

    key: str
    bytes: int
    crc32: int


class Manifest(msgspec.Struct, frozen=True):
    """Everything that a stored checkpoint holds."""

    format: str
    version: int | str
    header: Header
    encoder: str
    portable: bool
    arrays: tuple[ArrayPlan, ...]
    tensors: tuple[TensorPlan, ...]
    objects: tuple[tuple[StoredObject, ...], ...]
    """For each array its shards in C order."""
    files: tuple[SmallFile, ...]

    @property
    def stored_bytes(self) -> int:
        """Of all objects and files."""
        shards = sum(one.bytes for shards in self.objects for one in shards)
        return shards + sum(file.bytes for file in self.files)


class Marker(msgspec.Struct, frozen=True, omit_defaults=True):
    """The checkpoint is whole; nothing of it changes any more."""

    format: str
    version: int | str
    header: Header
    manifest: SmallFile
    xxh3_128: str
    """Of the manifest, in hex."""
    metrics: dict[str, float] = {}
    """What its save was given to say of the step. Not in the plan or the manifest: workers of one
    drain write those alike, and one of an earlier version knows of none."""


Document = TypeVar("Document", Plan, Manifest, Marker, Receipt)


def encode(document: Plan | Manifest | Marker | Receipt) -> bytes:
    """Compact JSON, the same bytes for the same document."""
    return msgspec.json.encode(document)


def decode(kind: type[Document], raw: Buffer, where: str) -> Document:
    """The inverse. Raises Corrupt naming `where`, Refused for a format or version not ours."""
    try:
        head = msgspec.json.decode(raw, type=_Head)
        found = msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Corrupt(f"{where} does not parse: {error}") from None
    if kind is not Receipt and head.format != FORMAT:
        raise Refused(f"{where} is of format {head.format!r}, not {FORMAT}")
    if kind is not Receipt and str(head.version).partition(".")[0] != MAJOR:
        raise Refused(
            f"{where} is of version {head.version}, this program reads {MAJOR}.x",
            hint="a newer ckpt reads it",
        )
    if isinstance(found, Manifest):
        _check(found, where)
    return found


def file_of(key: str, content: Buffer) -> SmallFile:
    """The entry of a document."""
    return SmallFile(key, len(content), crc32(content))


def digest_of(content: Buffer) -> str:
    """xxh3-128 in hex."""
    return xxh3_128(content).hex()


def _pack(numbers: Sequence[int]) -> str:
    return base64.b64encode(struct.pack(f"<{len(numbers)}I", *numbers)).decode()


def _unpack(text: str) -> tuple[int, ...]:
    try:
        raw = base64.b64decode(text, validate=True)
        return struct.unpack(f"<{len(raw) // 4}I", raw)
    except (ValueError, struct.error) as error:
        raise Corrupt(f"manifest: numbers of chunks do not parse: {error}") from None


@lru_cache(OBJECTS_CACHED)
def _chunks(stored: StoredObject) -> tuple[tuple[int, int, int], ...]:
    crcs, ends = _unpack(stored.chunk_crcs), tuple(accumulate(_unpack(stored.chunk_lengths)))
    if len(crcs) != len(ends) or ends[-1:] > (stored.bytes,):
        raise Corrupt("manifest: checksums and lengths of an object's chunks do not fit")
    return tuple(zip(crcs, (0, *ends[:-1]), ends, strict=True))


class _Head(msgspec.Struct):
    format: str = ""
    version: int | str = 0


def _check(manifest: Manifest, where: str) -> None:
    """What a reader relies on; raises Corrupt."""
    if len(manifest.objects) != len(manifest.arrays):
        raise Corrupt(f"{where}: {len(manifest.arrays)} arrays, {len(manifest.objects)} of objects")
    for array, objects in zip(manifest.arrays, manifest.objects, strict=True):
        problem = _array_problem(array)
        if problem or len(objects) != array.grid.shard_count:
            raise Corrupt(f"{where}: array {array.path}: {problem or 'its objects do not fit'}")
    for tensor in manifest.tensors:
        faults = (box_problem(tensor.shape, box.offset, box.shape) for box in tensor.boxes)
        problem = tensor_problem(tensor.name, tensor.dtype, tensor.shape)
        problem = problem or next((f"{tensor.name}: {fault}" for fault in faults if fault), "")
        count = len(tensor.boxes) if tensor.meaning is Meaning.OWN else 1
        if not problem and len(tensor.places) != count:
            problem = f"{tensor.name}: {len(tensor.places)} places, {count} are needed"
        if not problem and not all(_is_there(place, manifest.arrays) for place in tensor.places):
            problem = f"{tensor.name}: it lies in an array that is not there"
        if problem:
            raise Corrupt(f"{where}: {problem}")


def _is_there(place: DocumentPlace, arrays: Sequence[ArrayPlan]) -> bool:
    if not 0 <= place.array < len(arrays):
        return False
    shape = arrays[place.array].shape
    return place.is_whole or (len(shape) == 1 and 0 <= place.length <= shape[0] - place.start)


def _array_problem(array: ArrayPlan) -> str:
    shapes = (array.shape, array.chunk_shape, array.shard_shape)
    if len({len(shape) for shape in shapes}) != 1 or any(n < 1 for s in shapes for n in s):
        return "its shapes cannot be"
    if any(s % c for s, c in zip(array.shard_shape, array.chunk_shape, strict=True)):
        return "its shards are not of whole chunks"
    if not 1 <= array.item_bytes <= 16:
        return f"elements of {array.item_bytes} bytes"
    return ""
