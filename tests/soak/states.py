"""What a rank saves in a soak: content that anyone can make again from (seed, launch, rank,
step).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

import ckpt

RANKS: Final = 4
SHARD_BYTES: Final = 300_001
"""Of one rank's rows of the global tensor."""
REPLICA_ITEMS: Final = 100_003
OWN_BYTES_MAX: Final = 1_500_000
BASE_BYTES: Final = 500_009
"""Of one rank, and as many of all ranks together for each: what seldom changes."""
FROZEN_STEPS: Final = 8
"""So long it stays: saves in between refer to the first of them."""

Bytes = NDArray[np.uint8]


def _content(count: int, *key: int) -> Bytes:
    return np.frombuffer(np.random.default_rng(key).bytes(count), np.uint8)


def _own(seed: int, launch: int, rank: int, step: int) -> Bytes:
    length = int(np.random.default_rng((9, seed, rank, step)).integers(0, OWN_BYTES_MAX))
    return _content(length, 1, seed, launch, rank, step)


def _shard(seed: int, launch: int, rank: int, step: int) -> Bytes:
    return _content(SHARD_BYTES, 2, seed, launch, rank, step).reshape(1, SHARD_BYTES)


def _replica(seed: int, launch: int, step: int) -> NDArray[np.float64]:
    return np.random.default_rng((3, seed, launch, step)).random(REPLICA_ITEMS)


def _base(seed: int, launch: int, rank: int, step: int) -> Bytes:
    return _content(BASE_BYTES, 4, seed, launch, rank, step // FROZEN_STEPS)


def _common_base(seed: int, launch: int, step: int) -> Bytes:
    return _content(RANKS * BASE_BYTES, 5, seed, launch, step // FROZEN_STEPS)


def state_of(seed: int, launch: int, rank: int, step: int) -> dict[str, object]:
    """A few MB; a mix of two launches or two steps cannot be equal to it."""
    return {
        "own": _own(seed, launch, rank, step),
        "moments": ckpt.Shard(_shard(seed, launch, rank, step), (RANKS, SHARD_BYTES), (rank, 0)),
        "base": _base(seed, launch, rank, step),
        "weights": ckpt.Replicated(
            {"w": _replica(seed, launch, step), "base": _common_base(seed, launch, step)}
        ),
        "launch": launch,
        "step": step,
    }


def check_own(state: object, seed: int, rank: int, step: int) -> int:
    """Compare one rank's tree, every byte; returns the launch that saved it."""
    assert isinstance(state, dict)
    launch = state["launch"]
    assert isinstance(launch, int)
    assert state["step"] == step, f"step {step} has the content of {state['step']}"
    assert _equal(state["own"], _own(seed, launch, rank, step)), f"rank {rank}'s own bytes differ"
    assert _equal(state["moments"].array, _shard(seed, launch, rank, step)), "the shard differs"
    assert _equal(state["weights"]["w"], _replica(seed, launch, step)), "the replica differs"
    assert _equal(state["base"], _base(seed, launch, rank, step)), "what seldom changes differs"
    common = state["weights"]["base"]
    assert _equal(common, _common_base(seed, launch, step)), "what seldom changes differs"
    return launch


def check_whole(union: object, seed: int, step: int) -> int:
    """Compare the union of all ranks' trees, every byte; returns the launch that saved it."""
    assert isinstance(union, dict)
    launches = set(_by_rank(union["launch"]).values())
    assert len(launches) == 1, f"step {step} is a mix of launches {launches}"
    launch = launches.pop()
    assert isinstance(launch, int)
    assert set(_by_rank(union["step"]).values()) == {step}
    for rank, own in _by_rank(union["own"]).items():
        assert _equal(own, _own(seed, launch, rank, step)), f"step {step}: rank {rank} differs"
    for rank, base in _by_rank(union["base"]).items():
        assert _equal(base, _base(seed, launch, rank, step)), f"step {step}: rank {rank}'s base"
    common = union["weights"]["base"]
    assert _equal(common, _common_base(seed, launch, step)), f"step {step}: the ranks' base"
    rows = [_shard(seed, launch, rank, step) for rank in range(RANKS)]
    assert _equal(union["moments"], np.concatenate(rows)), f"step {step}: the tensor differs"
    assert _equal(union["weights"]["w"], _replica(seed, launch, step)), f"step {step}: replica"
    return launch


def _by_rank(value: object) -> Mapping[int, object]:
    assert isinstance(value, ckpt.PerRank)
    assert set(value.values) == set(range(RANKS))
    return value.values


def _equal(found: object, wanted: NDArray[np.generic]) -> bool:
    assert isinstance(found, np.ndarray)
    same_form = (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    return same_form and found.tobytes() == wanted.tobytes()
