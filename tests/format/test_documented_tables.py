"""Each byte table of docs/format.md holds: its rows cover what the code writes, each with its
value.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib
import zlib
from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from ckpt.base.limits import PAGE_BYTES
from ckpt.format.checksum import crc32, xxh3_128
from ckpt.format.column import encode_header, encode_trailer
from ckpt.format.documents.file import DocumentHeader, document_name, encode_document_header
from ckpt.format.envelope import Packing, compress, wrap
from ckpt.format.frame import FrameWriter
from ckpt.format.index import pages as index_pages
from ckpt.format.manifest import encode_manifest
from ckpt.format.messages import MESSAGE_TYPES
from ckpt.format.messages.reading import DocumentKind
from ckpt.format.messages.targets import PutDocument
from ckpt.protocol.target.core import column_name
from ckpt.testing.indexes import encode_index
from tests.format import test_golden as golden
from tests.format.doctables import PAGE, Value, cut, tables
from tests.protocol import target_world as target

RUN = golden.CHECKPOINT.run.encode()
IDENTITY = [
    1, 4, 2, len(RUN), 1200, 3, 41, golden.LAUNCH, 3_000_000, 512 << 10, 5, RUN.ljust(256, b"\0"),
]  # fmt: skip
TABLES = tables()
Case = tuple[bytes, list[Value], dict[str, int]]
"""What the code writes, the value of each row, and the sizes that the table only names."""


def crc_of(page: bytes) -> int:
    return zlib.crc32(page[:-4])


def frame() -> Case:
    bulk = bytes(range(256))
    message = PutDocument(3, DocumentKind.RECORD, golden.CHECKPOINT, 256, 0, xxh3_128(bulk))
    writer = FrameWriter(golden.KEY)
    writer.encode(message, 8, bulk)
    frame = writer.encode(message, 9, bulk, 1 << 33) + bulk
    (number,) = (number for number, kind in MESSAGE_TYPES.items() if kind is PutDocument)
    meta = msgspec.msgpack.encode(message) + zlib.crc32(bulk).to_bytes(4, "little")
    signed = (1).to_bytes(8, "little") + frame[:32] + bytes(16) + meta
    mac = hmac.digest(golden.KEY, signed, hashlib.sha256)[:16]
    values = [b"CKPF", 1, number, 0, len(meta), 256, 9, 1 << 33, mac, meta, bulk]
    return frame, values, {"meta_bytes": len(meta), "bulk_bytes": 256}


def column_file() -> Case:
    world, column = target.TargetWorld(), target.Column(300_000)
    target.store(world, column)
    file = world.disk.durable(f"columns/{column_name(column.id)}")
    assert file is not None
    page = file[:PAGE_BYTES]
    trailer_bytes = int.from_bytes(page[328:336], "little")
    trailer = file[PAGE_BYTES + len(column.data) :][:trailer_bytes]
    values = [page, column.data, trailer, trailer, page]
    return file, values, {"column_bytes": len(column.data), "trailer_bytes": trailer_bytes}


def identity_block() -> Case:
    page = encode_header(golden.header(b""))
    return page[:312], [b"CKPC", *IDENTITY], {}


def column_header() -> Case:
    header = golden.header(encode_manifest(golden.manifest()))
    page = encode_header(header)
    values = [
        page[:312], 4, 1, len("c0ffee"), bytes(3), header.column_bytes, header.trailer_bytes,
        header.manifest_bytes, 0xB0000004, 0, header.manifest_digest, b"c0ffee".ljust(64, b"\0"),
        bytes(3660), crc_of(page),
    ]  # fmt: skip
    return page, values, {}


def trailer() -> Case:
    crcs = range(0xC0000000, 0xC0000000 + golden.LAYOUT.block_count)
    manifest = encode_manifest(golden.manifest())
    trailer = encode_trailer(np.array(crcs, np.uint32), manifest)
    whole = 4 * len(crcs) + len(manifest)
    padding = bytes(len(trailer) - whole - 4)
    values = [tuple(crcs), manifest, zlib.crc32(trailer[:whole]), padding]
    assert len(trailer) % PAGE_BYTES == 0
    return trailer, values, {"block_count": len(crcs), "manifest_bytes": len(manifest)}


def manifest() -> Case:
    manifest = golden.manifest()
    document = encode_manifest(manifest)
    columns = tuple(manifest.column_crcs.tolist())
    fragments = tuple(manifest.fragment_crcs.ravel().tolist())
    assert document[:4] == b"CKPM"
    values = [document[:312], 1, 1, 1, 0, columns, fragments, crc_of(document)]
    return document, values, {"n": 6, "stripe_count": golden.LAYOUT.stripe_count}


def envelope() -> Case:
    raw = b"a body of MessagePack" * 40
    document, body = wrap(b"CKPT", 1, raw, Packing.LZ4), compress(raw)
    checksum = zlib.crc32(document[:28] + body)
    values = [b"CKPT", 1, 1, 0, len(raw), len(body), 0, checksum, body]
    return document, values, {"body_bytes": len(body)}


def index_header() -> Case:
    document = encode_index(golden.INDEX)
    page = document[:PAGE_BYTES]
    assert document[PAGE_BYTES : 2 * PAGE_BYTES] == page
    header = index_pages.decode_header(page)
    values = [
        b"CKPX", 1, len(RUN), 0, 1200, 3, 41, golden.LAUNCH, 2, 0, len(document), 2 * PAGE_BYTES,
        header.directory_bytes, len(document) - header.directory_bytes, RUN.ljust(256, b"\0"),
        bytes(3756), crc_of(page),
    ]  # fmt: skip
    return page, values, {}


def document_file() -> Case:
    data = b"a commit record" * 300
    world = target.TargetWorld()
    target.put_document(world, DocumentKind.RECORD, data)
    file = world.disk.durable(f"documents/{document_name('record', target.CHECKPOINT)}")
    assert file is not None
    padded = data.ljust(2 * PAGE_BYTES, b"\0")
    page = file[:PAGE_BYTES]
    names = {"padded": len(padded), "file size": len(file)}
    return file, [page, padded, padded, page], names


def document_header() -> Case:
    digest = bytes(range(16))
    header = DocumentHeader("c0ffee", "index", golden.CHECKPOINT, 70_000, digest)
    page = encode_document_header(header)
    fields = ["c0ffee", "index", golden.CHECKPOINT.run, 1200, 3, 41, 70_000, digest]
    meta = msgspec.msgpack.encode(fields)
    zeros = bytes(PAGE_BYTES - 4 - 12 - len(meta))
    values = [b"CKPD", 1, 1, 0, len(meta), meta, zeros, crc32(page[:-4])]
    return page, values, {"meta_bytes": len(meta)}


CASES: dict[str, Callable[[], Case]] = {
    "Frame": frame,
    "Column file": column_file,
    "Column file: identity block": identity_block,
    "Column file: header page": column_header,
    "Column file: trailer": trailer,
    "Rank manifest": manifest,
    "Envelope of MessagePack documents": envelope,
    "Checkpoint index: header page": index_header,
    "Document file on a target": document_file,
    "Document file on a target: header page": document_header,
}


@pytest.mark.parametrize("caption", sorted(TABLES))
def test_the_rows_of_a_table_are_what_the_code_writes(caption: str) -> None:
    document, values, names = CASES[caption]()
    assert [value for _, value in cut(TABLES[caption], document, names)] == values


def test_no_table_has_gone() -> None:
    assert TABLES.keys() == CASES.keys()


def test_every_magic_is_that_of_the_module_that_the_page_names() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| `CKP")]
    assert len(lines) == 12
    for line in lines:
        magics, _, file = (cell.strip(" `") for cell in line.strip("|").split("|"))
        module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
        for magic in magics.split("`, `"):
            assert magic.encode() in vars(module).values(), f"{magic} in {file}"
