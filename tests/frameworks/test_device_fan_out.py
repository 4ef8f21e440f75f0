"""Ranks that load replicas into devices: what passes through their rings is read once for all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import ckpt_torch
from ckpt.base.units import MiB
from tests.frameworks.clusters import local_cluster
from tests.frameworks.counters import given_bytes
from tests.frameworks.device.build import built, compiler
from tests.frameworks.device.emulated import NAME, Emulated, loaded
from tests.frameworks.gloo import Ranks
from tests.frameworks.test_fan_out import TRIES, UNIQUE, equal, model
from tests.landing import in_turn

RING_BYTES = 64 * MiB
"""Its slots hold a third of the state."""
OWN_ROWS = 2000
ALONE = 6 * OWN_ROWS * 1000 * 4
"""Bytes that one rank alone has, of all four."""


def own(rank: int, world_size: int) -> dict[str, torch.Tensor]:
    """What one rank alone has; more of it on some than on others."""
    return {f"own{rank}": torch.full((OWN_ROWS * (1 + rank % 2), 1000), float(rank + world_size))}


def save_job(url: str) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    ckpt_torch.save({"model": model(1), **own(rank, size)}, checkpoint_id=f"{url}/rings/1")


def load_job(url: str, cache: str, order: tuple[str, ...]) -> bool:
    rank, size = dist.get_rank(), dist.get_world_size()
    cxx = compiler()
    assert cxx is not None
    with loaded(built(Path(cache), cxx)).attached():
        state = {
            **{
                name: torch.zeros_like(tensor, device=NAME)
                for name, tensor in own(rank, size).items()
            },
            "model": {name: tensor.to(NAME) for name, tensor in model().items()},
        }
        dist.barrier()
        ckpt_torch.load(state, checkpoint_id=f"{url}/rings/1", order=order, ring_bytes=RING_BYTES)
        mine = {name: state[name].cpu() for name in own(rank, size)}
        shared = {name: tensor.cpu() for name, tensor in state.pop("model").items()}
        state.clear()
    return equal(shared, model(1)) and equal(mine, own(rank, size))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Without parity: on a busy machine bytes of a slow target would be read twice."""
    with local_cluster(tmp_path_factory.mktemp("burst"), code="3+0") as url:
        yield url


@pytest.fixture(scope="module")
def library(emulated: Emulated, pytestconfig: pytest.Config) -> str:
    """The folder of the device's library, which is compiled by now."""
    assert pytestconfig.cache is not None
    return str(pytestconfig.cache.mkdir("emulated-device"))


@pytest.fixture(scope="module")
def saved(cluster: str, ranks: Ranks) -> str:
    ranks.run(4, save_job, cluster)
    return cluster


@pytest.mark.parametrize("order", in_turn([((),), (("model",),)], every=2))
def test_replicas_pass_through_all_rings_at_once(
    saved: str, ranks: Ranks, library: str, order: tuple[str, ...]
) -> None:
    given = 0
    for _ in range(TRIES):
        before = given_bytes(saved, "rings", 1)
        assert ranks.run(4, load_job, saved, library, order) == [True] * 4
        given = given_bytes(saved, "rings", 1) - before - ALONE
        if given <= 1.05 * UNIQUE:
            break
    assert UNIQUE <= given <= 1.05 * UNIQUE, f"{given / UNIQUE:.3f} of what is unique"
