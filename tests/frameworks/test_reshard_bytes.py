"""A load under another sharding takes from the targets what its ranks hold, and nothing beside."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Shard, distribute_tensor

import ckpt_torch
from tests.frameworks.clusters import local_cluster
from tests.frameworks.counters import given_bytes
from tests.frameworks.gloo import Ranks
from tests.frameworks.warm import Warm
from tests.landing import in_turn

SHAPES = ((3001, 1000), (1000, 3001), (517, 800, 9))
"""None of their extents is a multiple of 8."""
CUTS: dict[str, list[Placement]] = {
    "fsdp": [Shard(0), Shard(0), Shard(0)],
    "tp": [Shard(1), Shard(0), Shard(1)],
}
RATIO_MAX = 1.02


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Without parity: on a busy machine bytes of a slow target would be read twice."""
    with local_cluster(tmp_path_factory.mktemp("burst"), code="3+0") as url:
        yield url


@pytest.fixture(scope="module")
def ranks(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Eight processes."""
    pool = Ranks(warm, 8, Path(tmp_path_factory.mktemp("gloo")))
    yield pool
    pool.close()


def cut(how: str, filled: bool) -> dict[str, object]:
    """The state as this rank holds it."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    generator = torch.Generator().manual_seed(4)
    state: dict[str, object] = {}
    for number, (shape, placement) in enumerate(zip(SHAPES, CUTS[how], strict=True)):
        full = torch.randn(shape, generator=generator) if filled else torch.zeros(shape)
        state[f"w{number}"] = distribute_tensor(full, mesh, [placement], src_data_rank=None)
    return state


def save_job(url: str, how: str) -> None:
    ckpt_torch.save(cut(how, filled=True), checkpoint_id=f"{url}/{how}/1")


def load_job(url: str, saved: str, how: str) -> tuple[bool, int]:
    """(whether this rank's parts are right, their bytes)."""
    expected, state = cut(how, filled=True), cut(how, filled=False)
    ckpt_torch.load(state, checkpoint_id=f"{url}/{saved}/1")
    same, wanted = True, 0
    for name, tensor in state.items():
        whole = expected[name]
        assert isinstance(tensor, DTensor)
        assert isinstance(whole, DTensor)
        same = same and torch.equal(tensor.to_local(), whole.to_local())
        wanted += tensor.to_local().nbytes
    return same, wanted


@pytest.fixture(scope="module")
def saved(cluster: str, ranks: Ranks) -> str:
    """Each form, saved by four ranks."""
    for how in CUTS:
        ranks.run(4, save_job, cluster, how)
    return cluster


@pytest.mark.parametrize(
    ("before", "count", "after"),
    in_turn(
        [
            ("fsdp", 2, "fsdp"), ("tp", 3, "tp"), ("fsdp", 4, "tp"), ("tp", 4, "fsdp"),
            ("fsdp", 8, "fsdp"), ("fsdp", 3, "fsdp"), ("fsdp", 1, "fsdp"),
        ],
        every=2,
    ),
)  # fmt: skip
def test_what_four_ranks_saved_is_read_once_by_any_other_number(
    saved: str, ranks: Ranks, before: str, count: int, after: str
) -> None:
    given = -given_bytes(saved, before, 1)
    found = ranks.run(count, load_job, saved, before, after)
    given += given_bytes(saved, before, 1)
    wanted = sum(part for _, part in found)
    assert all(same for same, _ in found)
    assert wanted <= given <= RATIO_MAX * wanted, f"{given / wanted:.4f} of what is wanted"
