"""Hypothesis strategies for what documents hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from hypothesis import strategies as st

from ckpt.base.errors import Corrupt, Refused
from ckpt.base.ids import (
    CheckpointId,
    ColumnId,
    ColumnNumber,
    Generation,
    LaunchNumber,
    PayloadId,
    Rank,
    Step,
    check_run_name,
)
from ckpt.erasure.code import Code
from ckpt.format.checksum import Buffer
from ckpt.format.column import ColumnHeader, trailer_bytes
from ckpt.format.layout import Layout
from ckpt.format.manifest import RankManifest, manifest_bytes

Value = TypeVar("Value")

u32 = st.integers(0, (1 << 32) - 1)
u63 = st.integers(0, (1 << 63) - 1)


def is_run_name(text: str) -> bool:
    """Whether the name keeps the rules."""
    try:
        check_run_name(text)
    except Refused:
        return False
    return True


runs = st.text(min_size=1, max_size=60).filter(is_run_name).map(check_run_name)
generations = st.builds(Generation, u63, u63)
checkpoints = st.builds(CheckpointId, runs, u63.map(Step), generations)
payload_ids = st.builds(PayloadId, checkpoints, st.integers(0, (1 << 20) - 1).map(Rank))
codes = st.builds(Code, st.integers(1, 28), st.integers(0, 4))
layouts = st.builds(
    Layout.plan,
    codes,
    st.one_of(st.integers(0, 1 << 16), st.integers(0, 1 << 26)),
    st.sampled_from([4096, 8192, 128 << 10, 512 << 10, 4 << 20]),
)


@st.composite
def manifests(draw: st.DrawFn) -> RankManifest:
    """Manifests of small payloads, with arbitrary checksums."""
    layout = draw(layouts.filter(lambda layout: layout.stripe_count <= 64))
    rng = np.random.default_rng(draw(u32))
    n = layout.code.n
    return RankManifest(
        payload=draw(payload_ids),
        launch=LaunchNumber(draw(u63)),
        code=layout.code,
        matrix_id=draw(st.integers(0, 65535)),
        code_version=draw(st.integers(0, 65535)),
        payload_bytes=layout.payload_bytes,
        cell_bytes=layout.cell_bytes,
        fragment_crcs=rng.integers(0, 1 << 32, (layout.stripe_count, n), np.uint32),
        column_crcs=rng.integers(0, 1 << 32, n, np.uint32),
    )


@st.composite
def headers(draw: st.DrawFn) -> ColumnHeader:
    """Column headers whose sizes fit their layout."""
    layout = draw(layouts)
    size = manifest_bytes(layout)
    column = draw(st.integers(0, layout.code.n - 1))
    return ColumnHeader(
        cluster=draw(st.text("abcdef0123456789-", min_size=1, max_size=64)),
        column=ColumnId(draw(payload_ids), ColumnNumber(column)),
        launch=LaunchNumber(draw(u63)),
        code=layout.code,
        payload_bytes=layout.payload_bytes,
        cell_bytes=layout.cell_bytes,
        column_bytes=layout.column_bytes,
        column_crc=draw(u32),
        trailer_bytes=trailer_bytes(layout, size),
        manifest_bytes=size,
        manifest_digest=draw(st.binary(min_size=16, max_size=16)),
    )


def read_or_refused(decode: Callable[[Buffer], Value], document: Buffer) -> Value | None:
    """What hostile bytes decode to; None when refused as Corrupt. Other errors pass through."""
    try:
        return decode(document)
    except Corrupt:
        return None


def flipped(document: bytes, position: int, mask: int) -> bytes:
    """The document with some bits of one byte turned over."""
    damaged = bytearray(document)
    damaged[position % len(document)] ^= mask
    return bytes(damaged)


masks = st.integers(1, 255)
positions = st.integers(0, 1 << 30)
