"""What the ranks of these tests save, and what it means that two states are equal.

Seen by ranks and tests alike.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

import ckpt
from ckpt.format.checksum import xxh3_128
from tests.client.bits import bits_of

AXIS_ITEMS = 24
"""Of each axis of the sharded matrix: divisible by 2, 3 and 4 ranks."""


def matrix(version: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """The global tensor that all ranks hold a part of."""
    items = np.arange(AXIS_ITEMS * AXIS_ITEMS, dtype="f4") + 1000 * version
    return items.reshape(AXIS_ITEMS, AXIS_ITEMS)


def rows_of(rank: int, world_size: int) -> slice:
    """The part of an axis that a rank holds."""
    share = AXIS_ITEMS // world_size
    return slice(rank * share, (rank + 1) * share)


def state_of(
    rank: int, world_size: int, version: int, *, replica_of: int = 0, filler_bytes: int = 0
) -> dict[object, object]:
    """A training state with every kind of key and leaf.

    `replica_of` other than 0: a replica that differs.
    """
    rows = rows_of(rank, world_size)
    seed = np.random.default_rng(1000 * version + rank)
    return {
        "layers": [{"w": seed.standard_normal((7, 5)).T, "b": np.zeros((0, 3))}, (1, "two", None)],
        3: {"big": seed.integers(0, 1 << 40, 100).astype(">i8"), "int": 1 << 80},
        ("a", 1): np.frombuffer(b"\x01\x00\xc0\x7f\xff\xff\xff\xff", "<f4"),
        "brain": np.arange(9, dtype=ml_dtypes.bfloat16).reshape(3, 3),
        "scalar": np.array(2.5),
        "strided": np.arange(40)[::-2],
        "model": ckpt.Replicated(
            {"p": np.full((50, 100), version + replica_of, "f8"), "name": "replica"}
        ),
        "matrix": ckpt.Shard(matrix(version)[rows], (AXIS_ITEMS, AXIS_ITEMS), (rows.start, 0)),
        "rank": rank,
        "filler": seed.integers(0, 255, filler_bytes, "u1"),
    }


def form_of(value: object) -> object:
    """Something that is equal exactly when types, keys, meaning, dtypes, shapes and every bit are.

    A Replicated tree comes back as the tree itself, so it has its form.
    """
    match value:
        case dict():
            return ("dict", [(type(key).__name__, key, form_of(v)) for key, v in value.items()])
        case list() | tuple():
            return (type(value).__name__, [form_of(child) for child in value])
        case ckpt.Shard(array, global_shape, offset):
            return ("Shard", global_shape, offset, bits_of(array))
        case ckpt.Replicated(tree):
            return form_of(tree)
        case ckpt.PerRank(values):
            return ("PerRank", sorted((rank, form_of(v)) for rank, v in values.items()))
        case _:
            return bits_of(value)


def digests_of(state: object) -> dict[str, str]:
    """Of each array of a flat state, by name."""
    assert isinstance(state, dict)
    return {name: xxh3_128(np.ascontiguousarray(array)).hex() for name, array in state.items()}
