"""The parts of an index document: header page, directory and pages, each by itself.

    header page, offset  size  type  field
                      0     4  bytes magic `CKPX`
                      4     1  u8    version, 1, or 2: some boxes are in rows
                      5     1  u8    run_bytes
                      6     2  u16   zero
                      8     8  u64   step
                     16     8  u64   generation term
                     24     8  u64   generation counter
                     32     8  u64   launch
                     40     4  u32   world_size
                     44     4  u32   zero
                     48     8  u64   index_bytes: of the whole document
                     56     8  u64   directory_offset
                     64     8  u64   directory_bytes, one copy
                     72     8  u64   directory_again_offset
                     80   256  bytes run, UTF-8, then zeros
                    336  3756  bytes zero
                   4092     4  u32   CRC-32 of the 4092 bytes before

The directory is an envelope (`CKPY`, version 1, lz4) around MessagePack arrays:

    directory  [[target, ...], [payload page, ...], [tensor page, ...]]
    page       [first, packed_bytes, raw_bytes, crc]     first: the first rank, or the first name

A page is one lz4 block of at most 64 KiB raw, its CRC-32 (of the packed bytes) in the directory:

    payload page  [[rank, k, m, payload_bytes, cell_bytes, document_offset, document_bytes,
                    manifest_digest, [target number or nil, ...], [column_crc, ...]], ...]
    tensor page   [[name, meaning, dtype, [global dims], [box, ...], repeats], ...]
    box           [rank, [offset], [dims], [location, ...], continued]
    location      [rank, start, payload_offset, length, term or nil, counter or nil]
    repeats       absent: each box stands for itself; else [[repeat, ...] of each box, ...]
    repeat        [count, rank_step, [step of each offset], holder_step, payload_step]

Pages lie back to back between the two copies of the directory, payload pages first. A tensor that
does not fit a page goes on in the next with the same name and type; `continued` boxes go on with
the locations of the box before. A location whose term is nil lies in the index's own generation.
What repeats are is in `ckpt.format.index.rows`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from ckpt.base.errors import Corrupt, Refused
from ckpt.base.ids import (
    CheckpointId,
    Generation,
    LaunchNumber,
    Rank,
    TargetId,
    check_run_name,
    check_step,
)
from ckpt.base.limits import (
    INDEX_BYTES_MAX,
    INDEX_PAGE_BYTES_MAX,
    PAGE_BYTES,
    WORLD_SIZE_MAX,
)
from ckpt.base.units import MiB
from ckpt.erasure.code import Code
from ckpt.format.checksum import Buffer, crc32
from ckpt.format.envelope import (
    ENVELOPE_BYTES,
    Packing,
    compress,
    decode_body,
    decompress,
    unwrap,
    wrap,
)
from ckpt.format.table import Meaning

HEADER_MAGIC: Final = b"CKPX"
DIRECTORY_MAGIC: Final = b"CKPY"
VERSION: Final = 1
ROWS_VERSION: Final = 2
"""Of a header: some tensor has its boxes in rows, which readers before did not know."""
HEADER_BYTES: Final = PAGE_BYTES
DIRECTORY_RAW_BYTES_MAX: Final = 256 * MiB
PAGE_PACKED_BYTES_MAX: Final = INDEX_PAGE_BYTES_MAX + INDEX_PAGE_BYTES_MAX // 255 + 64
"""lz4's own bound for what does not compress, and a little."""

_HEAD = struct.Struct("<4sBBHQQQQIIQQQQ256s")
_CRC = struct.Struct("<I")
_CRC_OFFSET: Final = HEADER_BYTES - _CRC.size

assert _HEAD.size == 336


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """What the first page says, and the second again."""

    checkpoint: CheckpointId
    launch: LaunchNumber
    world_size: int
    index_bytes: int
    directory_offset: int
    directory_bytes: int
    directory_again_offset: int
    version: int = VERSION


def encode_header(header: IndexHeader) -> bytes:
    """The page of PAGE_BYTES."""
    checkpoint = header.checkpoint
    run = checkpoint.run.encode()
    page = _HEAD.pack(
        HEADER_MAGIC,
        header.version,
        len(run),
        0,
        checkpoint.step,
        checkpoint.generation.term,
        checkpoint.generation.counter,
        header.launch,
        header.world_size,
        0,
        header.index_bytes,
        header.directory_offset,
        header.directory_bytes,
        header.directory_again_offset,
        run,
    ).ljust(_CRC_OFFSET, b"\0")
    return page + _CRC.pack(crc32(page))


def decode_header(page: Buffer) -> IndexHeader:
    """From one page; raises Corrupt."""
    view = memoryview(page).cast("B")
    if len(view) != HEADER_BYTES:
        raise Corrupt(f"an index header of {len(view)} bytes cannot be")
    if _CRC.unpack_from(view, _CRC_OFFSET)[0] != crc32(view[:_CRC_OFFSET]):
        raise Corrupt("index header fails its checksum")
    (
        magic, version, run_bytes, _, step, term, counter, launch, world_size, _, index_bytes,
        offset, size, again, run,
    ) = _HEAD.unpack_from(view)  # fmt: skip
    if magic != HEADER_MAGIC or version not in (VERSION, ROWS_VERSION):
        known = f"{VERSION} or {ROWS_VERSION}"
        raise Corrupt(f"not an index of version {known}: it begins with {magic!r}, {version}")
    if index_bytes > INDEX_BYTES_MAX or world_size > WORLD_SIZE_MAX:
        raise Corrupt(f"index of {index_bytes} bytes for {world_size} ranks is out of bounds")
    if not (
        ENVELOPE_BYTES <= size <= DIRECTORY_RAW_BYTES_MAX + MiB
        and offset >= 2 * HEADER_BYTES
        and offset + size <= again
        and again + size <= index_bytes
    ):
        raise Corrupt(f"index directory of {size} bytes at {offset} and {again} cannot be")
    try:
        checkpoint = CheckpointId(
            check_run_name(run[:run_bytes].decode()), check_step(step), Generation(term, counter)
        )
    except (Refused, UnicodeDecodeError) as error:
        raise Corrupt(f"index header: {error}") from None
    return IndexHeader(
        checkpoint, LaunchNumber(launch), world_size, index_bytes, offset, size, again, version
    )


# --------------------------------------------------------------------------- the directory


class PayloadPage(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """How to find and check a page of payloads."""

    first: int
    packed_bytes: int
    raw_bytes: int
    crc: int


class TensorPage(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """How to find and check a page of tensors."""

    first: str
    packed_bytes: int
    raw_bytes: int
    crc: int


class Directory(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Every page, in file order, and the targets that payloads name by number."""

    targets: tuple[str, ...]
    payload_pages: tuple[PayloadPage, ...]
    tensor_pages: tuple[TensorPage, ...]


_DIRECTORY: Final = msgspec.msgpack.Decoder(Directory)


def encode_directory(directory: Directory) -> bytes:
    """One copy; raises Refused when there are too many pages."""
    raw = msgspec.msgpack.encode(directory)
    if len(raw) > DIRECTORY_RAW_BYTES_MAX:
        raise Refused(f"an index directory of {len(raw)} bytes: too many tensors or boxes")
    return wrap(DIRECTORY_MAGIC, VERSION, raw, Packing.LZ4)


def decode_directory(header: IndexHeader, document: Buffer) -> Directory:
    """From one copy; the pages that it names fill the space between the copies. Raises Corrupt."""
    raw = unwrap(DIRECTORY_MAGIC, VERSION, document, DIRECTORY_RAW_BYTES_MAX)
    directory = decode_body(_DIRECTORY, raw)
    end = header.directory_offset + header.directory_bytes
    for page in all_pages(directory):
        if not (
            0 < page.packed_bytes <= PAGE_PACKED_BYTES_MAX
            and 0 < page.raw_bytes <= INDEX_PAGE_BYTES_MAX
        ):
            raise Corrupt(f"index directory: a page of {page.packed_bytes}, {page.raw_bytes} bytes")
        end += page.packed_bytes
    if end != header.directory_again_offset:
        raise Corrupt(f"index directory: the pages end at {end}")
    firsts = [page.first for page in directory.tensor_pages]
    ranks = [page.first for page in directory.payload_pages]
    if firsts != sorted(firsts) or ranks != sorted(ranks):
        raise Corrupt("index directory: its pages do not ascend")
    return directory


def all_pages(directory: Directory) -> tuple[PayloadPage | TensorPage, ...]:
    """Every page in file order."""
    return directory.payload_pages + directory.tensor_pages


# --------------------------------------------------------------------------- pages


class IndexPayload(msgspec.Struct, frozen=True):
    """One rank's payload: how it was cut, and the one accepted target of each column."""

    rank: Rank
    code: Code
    payload_bytes: int
    cell_bytes: int
    document_offset: int
    """Where the rank's tree document lies in the payload."""
    document_bytes: int
    manifest_digest: bytes
    """xxh3-128 of the rank's manifest."""
    columns: tuple[TargetId | None, ...]
    """n entries; None for a column that was missing at commit."""
    column_crcs: tuple[int, ...]
    """n entries; 0 for a column that was missing at commit."""


class WirePayload(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """IndexPayload as it is stored."""

    rank: int
    k: int
    m: int
    payload_bytes: int
    cell_bytes: int
    document_offset: int
    document_bytes: int
    manifest_digest: bytes
    columns: tuple[int | None, ...]
    column_crcs: tuple[int, ...]


class Location(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Bytes [start, start + length) of a box's C-order bytes in a rank's payload; as stored."""

    rank: Rank
    start: int
    payload_offset: int
    length: int
    term: int | None = None
    counter: int | None = None

    @property
    def generation(self) -> Generation | None:
        """Whose payload; None is the index's own generation."""
        if self.term is None or self.counter is None:
            return None
        return Generation(self.term, self.counter)

    def at(self, home: Generation | None) -> Location:
        """The same bytes in that generation's payload; None is the index's own."""
        if home is None:
            return self
        return Location(
            self.rank, self.start, self.payload_offset, self.length, home.term, home.counter
        )


class IndexBox(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A part of a tensor as one rank declared it, and where its bytes are; as it is stored."""

    rank: Rank
    """Who declared it; the bytes may lie in other ranks' payloads (replicas)."""
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    locations: tuple[Location, ...]
    """Ascending by start; together they cover the box's bytes."""
    continued: bool = False
    """Only in pages: the locations go on from those of the box before."""


class IndexTensor(msgspec.Struct, frozen=True, gc=False):
    """One form of one name: boxes that share meaning, dtype and global shape.

    An OWN tensor has one box for each rank that has it. Ranks whose own tensors of one name
    differ in dtype or shape give several forms of that name.
    """

    name: str
    meaning: Meaning
    dtype: str
    global_shape: tuple[int, ...]
    boxes: Sequence[IndexBox]
    """A tuple, or `ckpt.format.index.rows.BoxRows`."""


class Repeat(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """How a box, or a row of them, is repeated: as often, in steps of as much; as stored."""

    count: int
    rank_step: int
    offset_step: tuple[int, ...]
    """Along each axis of the tensor."""
    holder_step: int
    """Of the ranks in whose payloads the bytes lie."""
    payload_step: int
    """Of the offsets there."""


class WireTensor(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """IndexTensor as it is stored, or a part of it, whose boxes stand for themselves."""

    name: str
    meaning: Meaning
    dtype: str
    global_shape: tuple[int, ...]
    boxes: tuple[IndexBox, ...]


class FoldedTensor(WireTensor, array_like=True, frozen=True, gc=False):
    """The same whose boxes are the first of rows."""

    repeats: tuple[tuple[Repeat, ...], ...] = ()
    """One entry for each box; none at all when no box is repeated."""


class RawTensors(msgspec.Struct, frozen=True, gc=False):
    """Tensors that follow one another, as WireTensors are stored."""

    name: str
    """Of the first one."""
    count: int
    raw: bytes


_PAYLOADS: Final = msgspec.msgpack.Decoder(tuple[WirePayload, ...])
_TENSORS: Final = msgspec.msgpack.Decoder(tuple[FoldedTensor, ...])


def pack_page(
    wires: Sequence[WirePayload] | Sequence[WireTensor | RawTensors],
) -> tuple[bytes, int, int]:
    """(packed bytes, raw size, CRC-32) of one page."""
    has_raw = any(type(wire) is RawTensors for wire in wires)
    raw = _joined(wires) if has_raw else msgspec.msgpack.encode(wires)
    assert 0 < len(raw) <= INDEX_PAGE_BYTES_MAX, "the builder's cost is an upper bound"
    packed = compress(raw)
    return packed, len(raw), crc32(packed)


def _joined(wires: Iterable[WirePayload | WireTensor | RawTensors]) -> bytes:
    """What the encoder would write if each tensor were one of its own."""
    count, parts = 0, []
    for wire in wires:
        count += wire.count if isinstance(wire, RawTensors) else 1
        parts.append(wire.raw if isinstance(wire, RawTensors) else msgspec.msgpack.encode(wire))
    head = bytes((_SHORT_ARRAY + count,)) if count <= _SHORT_MAX else b""
    return b"".join((head or _ARRAY_16 + count.to_bytes(2, "big"), *parts))


_SHORT_ARRAY: Final = 0x90
_SHORT_MAX: Final = 15
_ARRAY_16: Final = b"\xdc"
"""Heads of arrays in MessagePack; no page has room for more tensors than 16 bits count."""


def decode_payload_page(page: PayloadPage, packed: Buffer) -> tuple[WirePayload, ...]:
    """Raises Corrupt."""
    payloads = decode_body(_PAYLOADS, _raw_page(page, packed))
    if not payloads or payloads[0].rank != page.first:
        raise Corrupt("index: a payload page does not begin as its directory says")
    return payloads


def decode_tensor_page(page: TensorPage, packed: Buffer) -> tuple[FoldedTensor, ...]:
    """Raises Corrupt."""
    tensors = decode_body(_TENSORS, _raw_page(page, packed))
    if not tensors or tensors[0].name != page.first:
        raise Corrupt("index: a tensor page does not begin as its directory says")
    if any(tensor.repeats and len(tensor.repeats) != len(tensor.boxes) for tensor in tensors):
        raise Corrupt(f"index: the page of {page.first!r} has not one entry of repeats for a box")
    return tensors


def _raw_page(page: PayloadPage | TensorPage, packed: Buffer) -> bytes:
    if len(packed) != page.packed_bytes or crc32(packed) != page.crc:
        raise Corrupt(f"index: the page of {page.first!r} fails its checksum")
    return decompress(packed, page.raw_bytes)
