"""Ranks of one job load a step by its number while another job saves it again: under torch, DCP and
JAX, too, all of them get one generation (decision 0017).

A rank loads, the step is saved again, its peer loads: without the rule the two would differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import ckpt
import ckpt_torch
from tests.frameworks.gloo import Ranks
from tests.frameworks.test_jax_processes import run
from tests.frameworks.warm import Warm

STEP = 5
RANKS = 2
SIZE = 1000

Load = Callable[[ckpt.Store, str], float]


def save_again(url: str, name: str, version: float) -> None:
    """As another job does."""
    with ckpt.open(url, launch=f"trainers of {name}, {version}") as store:
        writer = ckpt_torch.CkptWriter(f"{name}/{STEP}", store=store)
        dcp.save({"w": torch.full((SIZE,), version)}, storage_writer=writer, no_dist=True)


def version_of(weights: object) -> float:
    """Of which save all elements are."""
    assert isinstance(weights, torch.Tensor)
    assert weights.shape == (SIZE,)
    (version,) = set(weights.tolist())
    assert isinstance(version, float)
    return version


def filled(store: ckpt.Store, name: str) -> float:
    state: dict[str, object] = {"w": torch.zeros(SIZE)}
    ckpt_torch.load(state, checkpoint_id=f"{name}/{STEP}", store=store)
    return version_of(state["w"])


def whole(store: ckpt.Store, name: str) -> float:
    state = ckpt_torch.load_whole(f"{name}/{STEP}", store=store)
    assert isinstance(state, dict)
    return version_of(state["w"])


def by_dcp(store: ckpt.Store, name: str) -> float:
    state: dict[str, Any] = {"w": torch.zeros(SIZE)}
    reader = ckpt_torch.CkptReader(f"{name}/{STEP}", store=store)
    # It leaves out DCP's collectives alone: the reader has its seat in the group.
    dcp.load(state, storage_reader=reader, no_dist=True)
    return version_of(state["w"])


LOADS: dict[str, Load] = {"load": filled, "whole": whole, "dcp": by_dcp}


def name_of(kind: str) -> str:
    return f"by-number-{kind}"


_stores: dict[str, ckpt.Store] = {}
"""Of a rank, by how it loads: they stay open, as a job's do, until all have loaded together."""


def load(url: str, kind: str, who: list[int]) -> float | None:
    """What this rank gets, when it is one of those who load."""
    rank = dist.get_rank()
    if rank not in who:
        return None
    if kind not in _stores:
        _stores[kind] = ckpt.open(url, launch=f"readers by {kind}")
    version = LOADS[kind](_stores[kind], name_of(kind))
    if len(who) == dist.get_world_size():
        _stores.pop(kind).close()
    return version


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
@pytest.mark.parametrize("kind", LOADS)
def test_ranks_that_load_a_step_which_is_saved_again_get_one_generation(
    cluster: str, ranks: Ranks, kind: str
) -> None:
    save_again(cluster, name_of(kind), 1.0)
    assert ranks.run(RANKS, load, cluster, kind, [0]) == [1.0, None]
    save_again(cluster, name_of(kind), 2.0)
    assert ranks.run(RANKS, load, cluster, kind, [1]) == [None, 1.0]
    assert ranks.run(RANKS, load, cluster, kind, [0, 1]) == [2.0, 2.0]


def test_jax_processes_that_load_a_step_which_is_saved_again_get_one_generation(
    cluster: str, warm: Warm
) -> None:
    run(warm, cluster, 2, "number")
