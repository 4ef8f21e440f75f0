"""Any byte of a committed payload that changed in memory is found, by what the index says alone."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from ckpt.base.ids import Rank, TargetId
from ckpt.base.units import MiB
from ckpt.erasure.code import Code
from ckpt.format.checksum import crc32
from ckpt.format.index.pages import IndexPayload
from ckpt.format.layout import Layout
from ckpt_client.load.memory_check import ALONE_BYTES, is_committed

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
