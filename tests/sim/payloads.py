"""What ranks hand over: bytes that are a function of who, when and the seed, and what is made of
them: table, cells as encoded, manifest.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from random import Random

import numpy as np

from ckpt.base.ids import LaunchNumber, PayloadId, Rank, RunName
from ckpt.erasure.codec import CODE_VERSION, MATRIX_ID, codec_for
from ckpt.format.checksum import crc32
from ckpt.format.layout import Layout
from ckpt.format.manifest import RankManifest, encode_manifest
from ckpt.format.table import Meaning, Piece, RankTable, TensorEntry, encode_table

SHARD_BYTES = 64
Cells = tuple[tuple[bytes, ...], ...]
"""By stripe, by column."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a launch saves: the same for all its ranks."""

    run: RunName
    key: str | None
    launch_name: str
    world_size: int
    steps: tuple[int, ...]
    gap_us: int
    payload_bytes: int


@lru_cache(maxsize=64)
def content(job: Job, step: int, rank: int, seed: int) -> bytes:
    """The bytes that a rank hands over: a function of who,
    when and the seed alone (oracle of P1 to P3).
    """
    return Random(f"{seed}/{job.launch_name}/{step}/{rank}").randbytes(job.payload_bytes)


@lru_cache(maxsize=64)
def table_of(job: Job, rank: int) -> bytes:
    """A private array, and a slice of a global one."""
    size, shard = job.payload_bytes, min(SHARD_BYTES, job.payload_bytes)
    pieces = (Piece(0, shard, size - shard),) if size > shard else ()
    own = TensorEntry("own", Meaning.OWN, "|u1", (size - shard,), (0,), (size - shard,), pieces)
    piece = (Piece(0, 0, shard),) if shard else ()
    whole = (shard * job.world_size,)
    part = TensorEntry("shard", Meaning.SHARD, "|u1", whole, (rank * shard,), (shard,), piece)
    return encode_table(RankTable(Rank(rank), job.world_size, (own, part)))


@lru_cache(maxsize=64)
def encode_cells(layout: Layout, memory: bytes) -> Cells:
    """All fragments of a padded payload, by stripe and column."""
    cells: list[tuple[bytes, ...]] = []
    codec = codec_for(layout.code)
    for stripe in range(layout.stripe_count):
        size, first = layout.cell_bytes_of(stripe), layout.cell_offset(stripe, 0)
        data = [
            memory[start : start + size]
            for start in range(first, first + size * layout.code.k, size)
        ]
        parity = [bytearray(size) for _ in range(layout.code.m)]
        codec.encode([memoryview(d) for d in data], [memoryview(p) for p in parity])
        cells.append((*data, *map(bytes, parity)))
    return tuple(cells)


def manifest_of(
    payload: PayloadId, launch: int, layout: Layout, cells: Cells
) -> tuple[bytes, tuple[int, ...]]:
    """The encoded manifest and the column checksums."""
    n = layout.code.n
    fragments = np.array([[crc32(c) for c in row] for row in cells], dtype=np.uint32)
    columns = tuple(crc32(b"".join([row[j] for row in cells])) for j in range(n))
    manifest = RankManifest(
        payload,
        LaunchNumber(launch),
        layout.code,
        MATRIX_ID,
        CODE_VERSION,
        layout.payload_bytes,
        layout.cell_bytes,
        fragments.reshape(layout.stripe_count, n),
        np.array(columns, dtype=np.uint32),
    )
    return encode_manifest(manifest), columns
