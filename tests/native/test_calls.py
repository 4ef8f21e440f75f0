"""The native calls compute what plain Python says, and refuse buffers that they could not serve."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckpt.native.calls import build, sum_blocks, transform
from ckpt.native.isal import find_isal


@given(
    length=st.integers(0, 5000), block=st.integers(1, 1500), seed=st.integers(0, 255),
    shift=st.integers(0, 7),
)  # fmt: skip
@settings(max_examples=200)
def test_blocks_and_the_whole_have_zlibs_checksums(
    length: int, block: int, seed: int, shift: int
) -> None:
    view = memoryview(np.random.default_rng(seed).bytes(length + shift))[shift:]
    parts = [view[at : at + block] for at in range(0, length, block)]
    crcs = np.full(len(parts) + 1, 7, np.uint32)
    assert sum_blocks(view, block, crcs[:-1]) == zlib.crc32(view)
    assert crcs.tolist() == [*map(zlib.crc32, parts), 7]


@pytest.mark.parametrize(
    ("block", "crcs"),
    [
        (0, np.zeros(1, np.uint32)),
        (-4, np.zeros(1, np.uint32)),
        (4, np.zeros(2, np.uint32)),
        (4, np.zeros(4, np.uint32)),
        (4, np.zeros(3, np.int64)),
        (4, np.zeros(6, np.uint32)[::2]),
        (4, np.frombuffer(bytes(12), np.uint32)),
    ],
)
def test_checksums_go_only_where_they_fit(block: int, crcs: np.ndarray) -> None:
    before = crcs.copy()
    with pytest.raises(ValueError, match="checksums"):
        sum_blocks(bytes(range(10)), block, crcs)
    assert crcs.tolist() == before.tolist()


def test_cells_beyond_what_isal_counts_are_refused() -> None:
    huge = memoryview(np.broadcast_to(np.zeros(1, np.uint8), 1 << 31))
    with pytest.raises(ValueError, match="at most"):
        transform(find_isal().tables([b"\x01"]), [huge], [])


def test_the_build_says_who_made_it() -> None:
    compiler, machine = build().split(", ")
    assert compiler.partition(" ")[0] in ("gcc", "clang")
    assert machine in ("x86_64", "aarch64")
