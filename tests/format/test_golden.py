"""Bytes that must never change: what one release wrote, every later one reads, and writes again.

The files in tests/golden were written once by `golden` below and are frozen. When a test here
fails, the format has changed: give it a new version number, keep reading the old one, and add a
file beside the old one. Documents that are packed by lz4 are compared unpacked, since its
releases may pack differently.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from ckpt.base.ids import (
    BootId,
    CatalogPosition,
    CheckpointId,
    ColumnId,
    ColumnNumber,
    Generation,
    Home,
    LaunchNumber,
    PayloadId,
    Rank,
    RunName,
    Step,
    TargetId,
)
from ckpt.base.units import KiB
from ckpt.erasure.code import Code
from ckpt.format import table, tree
from ckpt.format.checksum import crc32, xxh3_128
from ckpt.format.column import (
    HEADER_BYTES,
    ColumnHeader,
    decode_header,
    decode_trailer,
    encode_header,
    encode_trailer,
    trailer_bytes,
)
from ckpt.format.documents import cluster_map
from ckpt.format.documents.cluster_map import (
    MAP_BYTES_MAX,
    MAP_MAGIC,
    MapEntry,
    decode_map,
    encode_map,
    make_map,
)
from ckpt.format.documents.labels import Labels, decode_labels, encode_labels
from ckpt.format.documents.moves import (
    MOVES_BYTES_MAX,
    MOVES_MAGIC,
    VERSION,
    decode_moves,
    encode_moves,
)
from ckpt.format.documents.record import (
    CommitRecord,
    Tombstone,
    decode_record,
    decode_tombstone,
    encode_record,
    encode_tombstone,
)
from ckpt.format.envelope import decompress, unwrap
from ckpt.format.frame import PREFIX_BYTES, FrameReader, FrameWriter
from ckpt.format.index import pages as index_pages
from ckpt.format.index.document import Index
from ckpt.format.index.pages import IndexBox, IndexPayload, IndexTensor, Location
from ckpt.format.index.reader import decode_index
from ckpt.format.layout import Layout
from ckpt.format.manifest import RankManifest, decode_manifest, encode_manifest
from ckpt.format.messages import Message
from ckpt.format.messages.reading import Damage
from ckpt.format.messages.reading import DocumentKind as Kind
from ckpt.format.messages.saving import CommitInfo
from ckpt.format.messages.targets import PutDocument, RenewLease, Rot
from ckpt.format.messages.writing import Fragment
from ckpt.format.table import Meaning, Piece, RankTable, TensorEntry
from ckpt.format.table_decoding import decode_table
from ckpt.format.tree import DictNode, LeafNode, ListNode, ScalarNode, TupleNode
from ckpt.protocol.target.at_rest.scrub_note import (
    ScrubNote,
    decode_scrub_note,
    digest_of,
    encode_scrub_note,
    pack_readings,
    unpack_readings,
)
from ckpt.testing.indexes import encode_index
from tests.format.test_sealed_frame import Sender

DIRECTORY = Path(__file__).parent.parent / "golden"
KEY = bytes(range(32))
CHECKPOINT = CheckpointId(RunName("llm/größe 7b"), Step(1200), Generation(3, 41))
PAYLOAD = PayloadId(CHECKPOINT, Rank(5))
LAUNCH = LaunchNumber(3 << 32 | 7)
LAYOUT = Layout.plan(Code(4, 2), 3_000_000, 512 * KiB)


def golden(name: str, now: bytes) -> bytes:
    """The frozen bytes. Those of a new format are written once, looked at and committed."""
    path = DIRECTORY / name
    if not path.exists():
        path.write_bytes(now)
        raise AssertionError(
            f"{path} did not exist and was written: look at it, commit it, run again"
        )
    return path.read_bytes()


def manifest() -> RankManifest:
    count, n = LAYOUT.stripe_count, LAYOUT.code.n
    return RankManifest(
        payload=PAYLOAD,
        launch=LAUNCH,
        code=LAYOUT.code,
        matrix_id=1,
        code_version=1,
        payload_bytes=LAYOUT.payload_bytes,
        cell_bytes=LAYOUT.cell_bytes,
        fragment_crcs=np.arange(0xA0000000, 0xA0000000 + count * n, dtype=np.uint32).reshape(
            count, n
        ),
        column_crcs=np.arange(0xB0000000, 0xB0000000 + n, dtype=np.uint32),
    )


def header(document: bytes) -> ColumnHeader:
    return ColumnHeader(
        cluster="c0ffee",
        column=ColumnId(PAYLOAD, ColumnNumber(4)),
        launch=LAUNCH,
        code=LAYOUT.code,
        payload_bytes=LAYOUT.payload_bytes,
        cell_bytes=LAYOUT.cell_bytes,
        column_bytes=LAYOUT.column_bytes,
        column_crc=0xB0000004,
        trailer_bytes=trailer_bytes(LAYOUT, len(document)),
        manifest_bytes=len(document),
        manifest_digest=xxh3_128(document),
    )


INDEX = Index(
    CHECKPOINT,
    LAUNCH,
    2,
    tuple(
        IndexPayload(
            Rank(rank), Code(2, 1), 10_000, 4096, 9000, 1000, bytes(range(16)),
            (TargetId("t0"), None, TargetId("t2")), (1, 0, 0xFFFFFFFF),
        )
        for rank in range(2)
    ),
    (
        IndexTensor(
            "b", Meaning.OWN, "bfloat16", (),
            (IndexBox(Rank(1), (), (), (Location(Rank(1), 0, 64, 2),)),),
        ),
        IndexTensor(
            "w", Meaning.SHARD, "<f4", (4, 2),
            (
                IndexBox(
                    Rank(0), (0, 0), (2, 2),
                    (Location(Rank(0), 0, 0, 8), Location(Rank(0), 8, 512, 8)),
                ),
                IndexBox(Rank(1), (2, 0), (2, 2), (Location(Rank(1), 0, 128, 16).at(Generation(3, 40)),)),
            ),
        ),
    ),
)  # fmt: skip

TABLE = RankTable(
    Rank(1),
    2,
    (
        TensorEntry("b", Meaning.REPLICATED, "bfloat16", (3,), (0,), (3,), (), bytes(range(16))),
        TensorEntry("w", Meaning.SHARD, "<f4", (4, 2), (2, 0), (2, 2), (Piece(0, 64, 16),)),
    ),
)

TREE = DictNode(
    (
        ("model", DictNode((("w", LeafNode("model/w")), (3, LeafNode("model/=3"))))),
        (True, ListNode((ScalarNode(None), ScalarNode(True), ScalarNode(-1), ScalarNode(1 << 70)))),
        (
            ("k", 1 << 70),
            TupleNode((ScalarNode(-0.0), ScalarNode(float("inf")), ScalarNode(1 - 2j))),
        ),
        ("text", ListNode((ScalarNode("größe"), ScalarNode(b"\x00\xff"), ScalarNode(-(1 << 64))))),
    )
)


def test_frames_are_as_ever() -> None:
    writer = FrameWriter(KEY)
    bulk = bytes(range(256))
    sent: list[tuple[Message, bytes]] = [
        (Fragment(3, crc32(bulk)), bulk),
        (PutDocument(3, Kind.RECORD, CHECKPOINT, 256, 0, xxh3_128(bulk)), bulk),
        (RenewLease(TargetId("t0"), BootId(1 << 63), 5, 6, {"frames": 7}), b""),
    ]
    frames = [writer.encode(message, 9, data, 1 << 33) for message, data in sent]
    frozen = golden("frames_3.bin", b"".join(frames))
    assert frozen == b"".join(frames)
    # The first ones are those of neighbours who do not know `device_bytes_free`, `again` yet.
    for earlier in ("frames.bin", "frames_2.bin", "frames_3.bin"):
        _read_frames((DIRECTORY / earlier).read_bytes(), sent)


def test_sealed_frames_are_as_ever() -> None:
    sender = Sender(KEY)
    bulk = bytes(range(256))
    sent: list[tuple[Message, bytes]] = [
        (Fragment(3, crc32(bulk)), bulk),
        (RenewLease(TargetId("t0"), BootId(1 << 63), 5, 6, {"frames": 7}), b""),
    ]
    frames = b"".join(sender.say(message, data) for message, data in sent)
    frozen = golden("frames_sealed.bin", frames)
    assert frozen == frames


def _read_frames(frozen: bytes, sent: list[tuple[Message, bytes]]) -> None:
    reader = FrameReader(KEY)
    for message, data in sent:
        head = reader.prefix(frozen[:PREFIX_BYTES])
        end = PREFIX_BYTES + head.meta_bytes
        assert reader.message(head, frozen[PREFIX_BYTES:end]) == message
        reader.check_bulk(head, message, crc32(data))
        frozen = frozen[end:]
    assert frozen == b""


def test_a_manifest_is_as_ever() -> None:
    document = encode_manifest(manifest())
    frozen = golden("rank_manifest.bin", document)
    assert frozen == document
    assert decode_manifest(frozen) == manifest()


def test_a_column_header_and_trailer_are_as_ever() -> None:
    document = encode_manifest(manifest())
    crcs = np.arange(0xC0000000, 0xC0000000 + LAYOUT.block_count, dtype=np.uint32)
    now = encode_header(header(document)) + encode_trailer(crcs, document)
    frozen = golden("column_header_trailer.bin", now)
    assert frozen == now
    found = decode_header(frozen[:HEADER_BYTES])
    assert found == header(document)
    table_found, document_found = decode_trailer(found, frozen[HEADER_BYTES:])
    assert table_found.tolist() == crcs.tolist()
    assert document_found == document


def test_a_commit_record_is_as_ever() -> None:
    info = CommitInfo(
        checkpoint=CHECKPOINT,
        launch=LAUNCH,
        world_size=8,
        code="4+2",
        payload_bytes=24_000_000,
        targets_survivable=2,
        domains_survivable=1,
        domain_level="host",
        committed_at_s=1_700_000_000.25,
        commit_us=850_000,
        stall_us=12_000,
        slowest_rank=Rank(5),
        slowest_target=TargetId("t2"),
        fault_in_us=300_000,
        columns_missing=1,
    )
    record = CommitRecord(
        "c0ffee", info, bytes(range(16)), 20_480, (TargetId("t0"), TargetId("t1")), 3
    )
    assert decode_record((DIRECTORY / "commit_record.bin").read_bytes()) == record
    homes = (Home(Step(900), Generation(2, 7)), Home(Step(950), Generation(3, 1)))
    info = replace(info, homes=homes, referenced_bytes=9_000_000)
    record = replace(record, info=info)
    assert decode_record((DIRECTORY / "commit_record_2.bin").read_bytes()) == record
    record = replace(record, info=replace(info, metrics={"accuracy": 0.75, "loss/größe": -1.5}))
    frozen = golden("commit_record_3.bin", encode_record(record))
    assert frozen == encode_record(record)
    assert decode_record(frozen) == record


def test_a_tombstone_is_as_ever() -> None:
    tombstone = Tombstone("c0ffee", CHECKPOINT, 4, "deleted by hand")
    frozen = golden("tombstone.bin", encode_tombstone(tombstone))
    assert frozen == encode_tombstone(tombstone)
    assert decode_tombstone(frozen) == tombstone


def test_labels_are_as_ever() -> None:
    names = ("best", "epoch=3-val=0.25.ckpt")
    labels = Labels("c0ffee", CHECKPOINT, Generation(4, 9), names, pinned=True)
    frozen = golden("labels.bin", encode_labels(labels))
    assert frozen == encode_labels(labels)
    assert decode_labels(frozen) == labels


def test_moves_are_as_ever() -> None:
    moves = {
        (Rank(1024), ColumnNumber(0)): TargetId("node-b"),
        (Rank(1024), ColumnNumber(5)): TargetId("node-a"),
        (Rank(2047), ColumnNumber(3)): TargetId("node-b"),
    }
    now = encode_moves(1, moves)
    frozen = golden("moves.bin", now)
    assert decode_moves(1, frozen) == moves
    raw = unwrap(MOVES_MAGIC, VERSION, frozen, MOVES_BYTES_MAX)
    assert raw == unwrap(MOVES_MAGIC, VERSION, now, MOVES_BYTES_MAX)


def test_a_map_of_the_cluster_is_as_ever() -> None:
    entries = (
        MapEntry(TargetId("t0"), "pod/rack/h0/nvme0", "/data/t0", bytes(range(16)), "in"),
        MapEntry(TargetId("t1"), "pod/rack/h1/nvme0", "/data/t1", b"", "removed"),
    )
    made = make_map("c0ffee", CatalogPosition(4, 2), entries)
    frozen = golden("cluster_map.bin", encode_map(made))
    assert decode_map(frozen) == made
    assert decode_map(frozen).targets == entries
    assert decode_map(frozen).digest == made.digest
    assert decode_map(frozen).groups == {}
    groups = {TargetId("t0"): 1, TargetId("t1"): 0}
    grouped = make_map("c0ffee", CatalogPosition(4, 2), entries, groups)
    assert grouped.digest != made.digest
    frozen = golden("cluster_map_groups.bin", encode_map(grouped))
    assert decode_map(frozen) == grouped
    assert decode_map(frozen).groups == groups


class EarlierMap(Struct):
    """As versions before placement groups read it."""

    cluster: str
    version: CatalogPosition
    entries: bytes


def test_a_version_that_knows_no_groups_reads_a_map_that_has_them() -> None:
    frozen = (DIRECTORY / "cluster_map_groups.bin").read_bytes()
    raw = unwrap(MAP_MAGIC, cluster_map.VERSION, frozen, MAP_BYTES_MAX)
    entry = MapEntry(TargetId("t0"), "pod/rack/h0/nvme0", "/data/t0", bytes(range(16)), "in")
    found = msgspec.msgpack.decode(raw, type=EarlierMap)
    assert (found.cluster, found.version) == ("c0ffee", CatalogPosition(4, 2))
    assert msgspec.msgpack.decode(found.entries, type=list[MapEntry])[0] == entry


def index_parts(document: bytes) -> list[bytes]:
    """The raw directory and pages, unpacked."""
    head = index_pages.decode_header(document[: index_pages.HEADER_BYTES])
    start = head.directory_offset
    end = start + head.directory_bytes
    directory = index_pages.decode_directory(head, document[start:end])
    parts = []
    for page in index_pages.all_pages(directory):
        parts.append(decompress(document[end : end + page.packed_bytes], page.raw_bytes))
        end += page.packed_bytes
    return parts


def test_an_index_is_as_ever() -> None:
    now = encode_index(INDEX)
    frozen = golden("index.bin", now)
    assert decode_index(frozen) == INDEX
    assert index_parts(frozen) == index_parts(now)
    assert frozen[:48] == now[:48]


def test_a_tree_document_is_as_ever() -> None:
    now = raw_tree(tree.encode_tree(TREE))
    frozen = golden("tree.bin", tree.encode_tree(TREE))
    assert raw_tree(frozen) == now
    assert tree.decode_tree(frozen) == TREE


def raw_tree(document: bytes) -> bytes:
    """Its MessagePack."""
    return unwrap(tree.MAGIC, tree.VERSION, document, 1 << 20)


def test_a_rank_table_is_as_ever() -> None:
    document = table.encode_table(TABLE)
    frozen = golden("rank_table.bin", document)
    raw = unwrap(table.MAGIC, table.VERSION, frozen, 1 << 20)
    assert raw == unwrap(table.MAGIC, table.VERSION, document, 1 << 20)
    assert decode_table(frozen) == TABLE


def test_a_rank_table_that_refers_to_a_home_is_as_ever() -> None:
    pieces = (Piece(0, 4096, 64), Piece(64, 8192, 64).at(Generation(3, 40)))
    entry = TensorEntry("w", Meaning.OWN, "<f4", (32,), (0,), (32,), pieces, bytes(range(16)))
    referring = RankTable(Rank(1), 2, (entry,))
    document = table.encode_table(referring)
    frozen = golden("rank_table_2.bin", document)
    raw = unwrap(table.MAGIC, table.VERSION, frozen, 1 << 20)
    assert raw == unwrap(table.MAGIC, table.VERSION, document, 1 << 20)
    assert decode_table(frozen) == referring


def test_what_a_scrub_notes_is_as_ever() -> None:
    cells = Damage("column", "cells", 4096, 135_168, "checksum")
    copy = Damage("record", "copy 2", 8192, 8292, "EIO")
    note = ScrubNote(
        pass_began_s=1_790_000_000, pass_ended_s=1_789_000_000, is_running=True, is_asked=True,
        file="columns/a", offset=1 << 30,
        rot=(Rot(CHECKPOINT, cells, rank=3, column=1), Rot(CHECKPOINT, copy)),
        readings=pack_readings([(digest_of("columns/a"), 1_789_999_999), (bytes(8), 0)]),
        whole_since_s=1_788_000_000,
    )  # fmt: skip
    frozen = golden("scrub_note_2.bin", encode_scrub_note(note))
    assert encode_scrub_note(note) == frozen
    assert decode_scrub_note(frozen) == note
    # The first one does not know `whole_since_s` yet.
    earlier = (DIRECTORY / "scrub_note.bin").read_bytes()
    assert decode_scrub_note(earlier) == replace(note, whole_since_s=None)
    assert unpack_readings(note.readings) == {digest_of("columns/a"): 1_789_999_999, bytes(8): 0}


def test_the_documented_offsets_hold() -> None:
    page = golden("column_header_trailer.bin", b"")[:HEADER_BYTES]
    assert struct.unpack_from("<4sBBBB", page, 0) == (b"CKPC", 1, 4, 2, 14)
    assert struct.unpack_from("<QQQQQII", page, 8) == (1200, 3, 41, LAUNCH, 3_000_000, 512 << 10, 5)
    assert page[56 : 56 + 14].decode() == "llm/größe 7b"
    assert struct.unpack_from("<HHB", page, 312) == (4, 1, 6)
    assert struct.unpack_from("<QQQI", page, 320) == (753_664, 4096, 396, 0xB0000004)
    assert page[352:368] == xxh3_128(golden("rank_manifest.bin", b""))
    assert page[368:374] == b"c0ffee"
    assert struct.unpack_from("<I", page, 4092) == (zlib.crc32(page[:4092]),)
