"""Ranks that load the same bytes at the same time: each byte leaves the targets once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import ckpt_torch
from ckpt_torch import CkptReader, CkptWriter
from ckpt_torch.place import find_where
from tests.frameworks.clusters import local_cluster
from tests.frameworks.counters import given_bytes
from tests.frameworks.gloo import Ranks

ROWS, COLUMNS = 1250, 1000
LAYERS = 12
UNIQUE = LAYERS * ROWS * COLUMNS * 4


def model(seed: int | None = None) -> dict[str, torch.Tensor]:
    """48 MB of float32, and something small."""
    if seed is None:
        state = {f"layer{n}": torch.zeros(ROWS, COLUMNS) for n in range(LAYERS)}
    else:
        generator = torch.Generator().manual_seed(seed)
        state = {
            f"layer{n}": torch.randn(ROWS, COLUMNS, generator=generator) for n in range(LAYERS)
        }
    return {**state, "bias": torch.full((7,), float(seed or 0))}


def equal(state: dict[str, Any], expected: dict[str, torch.Tensor]) -> bool:
    whole = {k: v.full_tensor() if isinstance(v, DTensor) else v for k, v in state.items()}
    return all(torch.equal(whole[name], expected[name]) for name in expected)


def cut(how: str, state: dict[str, torch.Tensor]) -> dict[str, Any]:
    """The state as replicas of it lie on the ranks."""
    if how in ("ddp", "dcp"):
        return dict(state)
    mesh = init_device_mesh("cpu", (2, 2))
    return {
        name: distribute_tensor(tensor, mesh, [Replicate(), Shard(0)], src_data_rank=None)
        for name, tensor in state.items()
    }


def save_job(url: str, seed: int) -> None:
    ckpt_torch.save({"model": model(seed)}, checkpoint_id=f"{url}/fan/{seed}")
    dcp.save({"model": model(seed)}, storage_writer=CkptWriter(f"{url}/fan-dcp/{seed}"))


TRIES = 10
"""On a busy machine a rank may come when its pair has read and gone: then both have read."""


def run_of(how: str) -> str:
    return "fan-dcp" if how.startswith("dcp") else "fan"


def load(how: str, name: str, state: dict[str, Any]) -> None:
    if how.startswith("dcp"):
        dcp.load(state, storage_reader=CkptReader(name))
    else:
        ckpt_torch.load(state, checkpoint_id=name)


def load_job(url: str, how: str, step: int | None) -> bool:
    state = {"model": cut(how, model())}
    name = f"{url}/{run_of(how)}" if step is None else f"{url}/{run_of(how)}/{step}"
    # Nobody comes late because of a first load's imports, when the others have read and gone.
    load(how, name, {"model": {"bias": torch.zeros(7)}})
    dist.barrier()
    load(how, name, state)
    return equal(state["model"], model(step or 1))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Without parity: on a busy machine bytes of a slow target would be read twice."""
    with local_cluster(tmp_path_factory.mktemp("burst"), code="3+0") as url:
        yield url


@pytest.fixture(scope="module")
def saved(cluster: str, ranks: Ranks) -> str:
    """The cluster, with a checkpoint of four equal ranks in each form."""
    ranks.run(4, save_job, cluster, 1)
    return cluster


@pytest.mark.parametrize(
    ("how", "step"), [("ddp", None), ("ddp", 1), ("hsdp", 1), ("dcp", 1), ("dcp-hsdp", 1)]
)
def test_four_ranks_read_together_what_each_of_them_needs(
    saved: str, ranks: Ranks, how: str, step: int | None
) -> None:
    given = 0
    for _ in range(TRIES):
        before = given_bytes(saved, run_of(how), 1)
        assert ranks.run(4, load_job, saved, how, step) == [True] * 4
        given = given_bytes(saved, run_of(how), 1) - before
        if given <= 1.05 * UNIQUE:
            break
    assert UNIQUE <= given <= 1.05 * UNIQUE, f"{given / UNIQUE:.3f} of what is unique"


def peers_job(url: str) -> tuple[bool, set[str]]:
    """How one rank's load was put together."""
    where = find_where(f"{url}/fan/1", None)
    rank, size = dist.get_rank(), dist.get_world_size()
    like = {"model": {name: tensor.numpy() for name, tensor in model().items()}}
    dist.barrier()
    with where.store.resolve("fan", 1, rank=rank, world_size=size) as checkpoint:
        found = checkpoint.load(like, strict=False)
        tensors = {k: torch.from_numpy(v) for k, v in found["model"].items()}  # type: ignore[index]
        return equal(tensors, model(1)), set(checkpoint.source.split("+"))


def test_a_store_shares_too_and_says_where_bytes_came_from(saved: str, ranks: Ranks) -> None:
    before = given_bytes(saved, "fan", 1)
    for right, sources in ranks.run(3, peers_job, saved):
        assert right
        assert sources <= {"tier", "peers"}
    given = given_bytes(saved, "fan", 1) - before
    assert UNIQUE <= given <= 1.05 * UNIQUE
