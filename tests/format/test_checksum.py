"""Checksums agree with zlib, combine, and copy nothing."""

from __future__ import annotations

import importlib.util
import sys
import zlib

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from ckpt.format.checksum import (
    Xxh3,
    crc32,
    crc32_combine,
    crc32_combine_pure,
    crc32_concat,
    xxh3_128,
)


def test_the_crc_of_the_check_string_is_the_standard_one() -> None:
    assert crc32(b"123456789") == 0xCBF43926


@given(st.binary(max_size=5000), st.binary(max_size=5000))
def test_combining_gives_the_crc_of_the_concatenation(a: bytes, b: bytes) -> None:
    whole = zlib.crc32(a + b)
    assert crc32(b, crc32(a)) == whole
    assert crc32_combine(crc32(a), crc32(b), len(b)) == whole
    assert crc32_combine_pure(crc32(a), crc32(b), len(b)) == whole


@given(st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 32) - 1), st.integers(0, 1 << 45))
def test_the_pure_combine_agrees_with_the_native_one_at_any_length(a: int, b: int, n: int) -> None:
    assert crc32_combine_pure(a, b, n) == crc32_combine(a, b, n)


@given(st.lists(st.binary(max_size=300)))
def test_parts_concatenate_in_order(parts: list[bytes]) -> None:
    assert crc32_concat((crc32(part), len(part)) for part in parts) == zlib.crc32(b"".join(parts))


def test_views_and_arrays_are_taken_as_they_are() -> None:
    data = np.arange(100_000, dtype=np.uint32)
    view = data.data.cast("B")
    assert crc32(view[4:]) == zlib.crc32(data.tobytes()[4:])
    assert xxh3_128(view) == xxhash.xxh3_128(data.tobytes()).digest()


@given(st.lists(st.binary(max_size=100)))
def test_streaming_xxh3_equals_one_shot(parts: list[bytes]) -> None:
    state = Xxh3()
    for part in parts:
        state.update(memoryview(part))
    assert state.digest() == xxh3_128(b"".join(parts))
    assert len(state.digest()) == 16


def test_without_isal_the_values_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
    spec = importlib.util.find_spec("ckpt.format.checksum")
    assert spec is not None
    assert spec.loader is not None
    plain = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plain)
    assert plain.crc32 is zlib.crc32
    a, b = b"some bytes", b"and others"
    assert plain.crc32(b, plain.crc32(a)) == crc32(a + b)
    assert plain.crc32_combine(crc32(a), crc32(b), len(b)) == crc32(a + b)
