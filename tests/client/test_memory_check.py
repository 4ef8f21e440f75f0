"""Any byte of a committed payload that changed in memory is found, by what the index says alone."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from ckpt.base.ids import (
    CheckpointId,
    Generation,
    LaunchNumber,
    PayloadId,
    Rank,
    RunName,
    Step,
    TargetId,
)
from ckpt.base.units import MiB
from ckpt.erasure.code import Code
from ckpt.format.checksum import crc32, xxh3_128
from ckpt.format.index.pages import IndexPayload
from ckpt.format.layout import Layout
from ckpt.format.manifest import RankManifest, encode_manifest
from ckpt_client.load.memory_check import ALONE_BYTES, CheckedMemory, is_committed

CODE = Code(4, 2)


def payload_of(data: bytes, cell_bytes: int) -> IndexPayload:
    """As its targets would seal it: each column one file of padded cells."""
    layout = Layout.plan(CODE, len(data), cell_bytes)
    padded = data.ljust(layout.padded_bytes, b"\0")
    columns = [bytearray() for _ in range(CODE.k)]
    for stripe in range(layout.stripe_count):
        for j, column in enumerate(columns):
            at = layout.cell_offset(stripe, j)
            column += padded[at : at + layout.cell_bytes_of(stripe)]
    return IndexPayload(
        rank=Rank(0),
        code=CODE,
        payload_bytes=len(data),
        cell_bytes=layout.cell_bytes,
        document_offset=0,
        document_bytes=0,
        manifest_digest=b"d" * 16,
        columns=tuple(TargetId(f"t{j}") for j in range(CODE.n)),
        column_crcs=(*(crc32(bytes(column)) for column in columns), 0, 0),
    )


def content(size: int) -> bytes:
    return np.random.default_rng(size).bytes(size)


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 16_384, 16_385, 70_000, 131_072, 200_001])
def test_what_was_committed_is_known_again_and_any_changed_byte_is_found(size: int) -> None:
    data = content(size)
    payload = payload_of(data, 8192)
    assert is_committed(memoryview(data), payload)
    for at in {0, size // 3, size // 2, size - 1} if size else ():
        harmed = bytearray(data)
        harmed[at] ^= 1
        assert not is_committed(memoryview(harmed), payload)


def test_columns_that_are_read_side_by_side_are_all_looked_at() -> None:
    data = content(ALONE_BYTES + 12_345)
    payload = payload_of(data, MiB)
    assert is_committed(memoryview(data), payload)
    for column in range(CODE.k):
        harmed = bytearray(data)
        harmed[-1 - column * MiB] ^= 1
        assert not is_committed(memoryview(harmed), payload)


def test_another_length_is_another_payload() -> None:
    data = content(10_000)
    payload = payload_of(data, 8192)
    assert not is_committed(memoryview(data + b"\0"), payload)
    assert not is_committed(memoryview(data)[:-1], payload)


def test_a_payload_that_lacks_a_data_column_cannot_be_known_again() -> None:
    data = content(50_000)
    payload = payload_of(data, 8192)
    without = replace(payload, columns=(None, *payload.columns[1:]))
    assert not is_committed(memoryview(data), without)


# --------------------------------------------------------------------------- cell by cell


def with_manifest(data: bytes, cell_bytes: int) -> tuple[IndexPayload, bytes]:
    """The payload as its index has it, and the manifest that it names."""
    payload = payload_of(data, cell_bytes)
    layout = Layout(CODE, payload.payload_bytes, payload.cell_bytes)
    padded = data.ljust(layout.padded_bytes, b"\0")
    crcs = np.zeros((layout.stripe_count, CODE.n), np.uint32)
    for stripe in range(layout.stripe_count):
        for column in range(CODE.k):
            at = layout.cell_offset(stripe, column)
            crcs[stripe, column] = crc32(padded[at : at + layout.cell_bytes_of(stripe)])
    checkpoint = CheckpointId(RunName("run"), Step(1), Generation(1, 1))
    document = encode_manifest(
        RankManifest(
            PayloadId(checkpoint, Rank(0)), LaunchNumber(1), CODE, 1, 1, len(data),
            layout.cell_bytes, crcs, np.array(payload.column_crcs, np.uint32),
        )
    )  # fmt: skip
    return replace(payload, manifest_digest=xxh3_128(document)), document


def rows(*ranges: tuple[int, int]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.array(ranges, np.int64).reshape(-1, 2)


@pytest.mark.parametrize("size", [1, 4096, 16_385, 131_072, 200_001])
def test_what_is_used_is_compared_and_a_changed_byte_is_found_in_its_own_cell(size: int) -> None:
    data = content(size)
    payload, document = with_manifest(data, 8192)
    layout = Layout(CODE, payload.payload_bytes, payload.cell_bytes)
    for at in {0, size // 3, size // 2, size - 1}:
        harmed = bytearray(data)
        harmed[at] ^= 1
        for cell in layout.cells(0, size):
            start, end = cell.payload_offset, cell.payload_offset + cell.length
            memory = CheckedMemory(memoryview(harmed), payload, document)
            assert memory.holds(rows((start, end))) == (not start <= at < end)
        assert not CheckedMemory(memoryview(harmed), payload, document).holds(rows((0, size)))
    memory = CheckedMemory(memoryview(data), payload, document)
    assert memory.holds(rows((0, size)))
    assert memory.holds(rows())


def test_a_cell_is_compared_once() -> None:
    """What a reader has mapped never changes; here it does, to show who looks."""
    data = bytearray(content(100_000))
    payload, document = with_manifest(bytes(data), 8192)
    memory = CheckedMemory(memoryview(data), payload, document)
    assert memory.holds(rows((0, 100), (50_000, 50_010)))
    data[60] ^= 1
    assert memory.holds(rows((0, 100), (40_000, 40_100)))
    assert not CheckedMemory(memoryview(data), payload, document).holds(rows((0, 100)))


@pytest.mark.parametrize("document", [b"", b"another", None])
def test_without_its_manifest_all_is_compared_at_once(document: bytes | None) -> None:
    data = content(100_000)
    payload, own = with_manifest(data, 8192)
    if document is None:
        document = own[:-1] + bytes([own[-1] ^ 1])
    harmed = bytearray(data)
    harmed[90_000] ^= 1
    assert CheckedMemory(memoryview(data), payload, document).holds(rows((0, 100)))
    assert not CheckedMemory(memoryview(harmed), payload, document).holds(rows((0, 100)))
    assert CheckedMemory(memoryview(harmed), payload, own).holds(rows((0, 100)))
    short = CheckedMemory(memoryview(data)[:-1], payload, own)
    assert not short.holds(rows((0, 100)))
