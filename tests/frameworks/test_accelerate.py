"""Accelerate's own save_state and load_state, with the weights in a store."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from accelerate import Accelerator

import ckpt
from ckpt_torch.accelerate import CkptHooks
from tests.frameworks.gloo import Ranks


def trained(accelerator: Accelerator, steps: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(7, 9), torch.nn.BatchNorm1d(9))
    optimizer = torch.optim.AdamW(net.parameters())
    net, optimizer = accelerator.prepare(net, optimizer)
    train(net, optimizer, steps)
    return net, optimizer


def train(net: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for number in range(steps):
        optimizer.zero_grad()
        net(torch.full((5, 7), float(number)) + torch.eye(5, 7)).square().mean().backward()
        optimizer.step()


@pytest.fixture
def accelerator() -> Accelerator:
    return Accelerator(cpu=True)


def test_weights_go_to_the_store_and_come_back_with_the_rest(
    cluster: str, tmp_path: Path, accelerator: Accelerator
) -> None:
    hooks = CkptHooks(f"{cluster}/accelerate").attach(accelerator)
    net, optimizer = trained(accelerator, 3)
    folder = tmp_path / "step_3"
    accelerator.save_state(str(folder))
    train(net, optimizer, 2)
    expected = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    hooks.wait()
    names = {each.name for each in folder.iterdir()}
    assert "optimizer.bin" in names
    assert not any("model" in name for name in names)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    accelerator.load_state(str(folder))
    train(net, optimizer, 2)
    found = net.state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_weights_that_hold_nan_are_refused_by_path(
    cluster: str, tmp_path: Path, accelerator: Accelerator
) -> None:
    CkptHooks(f"{cluster}/accelerate/finite", check_finite=True).attach(accelerator)
    net, _ = trained(accelerator, 1)
    with torch.no_grad():
        net[0].bias[4] = float("nan")  # type: ignore[index,operator]
    with pytest.raises(ckpt.Refused, match=r"model0/0.bias: element \[4\] of \(9,\) is nan"):
        accelerator.save_state(str(tmp_path / "step_1"))
    assert not list((tmp_path / "step_1").iterdir())
    with ckpt.open(cluster) as store:
        assert store.latest("accelerate/finite") is None


def test_a_folder_without_a_number_is_refused(
    cluster: str, tmp_path: Path, accelerator: Accelerator
) -> None:
    CkptHooks(f"{cluster}/accelerate").attach(accelerator)
    trained(accelerator, 1)
    with pytest.raises(ckpt.Refused, match="names no step"):
        accelerator.save_state(str(tmp_path / "best"))


def means_job(url: str, folder: str) -> tuple[list[float], list[float]]:
    """A rank's running means at the save, and after a load into others."""
    rank, size = str(dist.get_rank()), str(dist.get_world_size())
    launched = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    os.environ.update(launched)
    accelerator = Accelerator(cpu=True)
    hooks = CkptHooks(f"{url}/accelerate/means").attach(accelerator)
    net, _ = trained(accelerator, 1)
    net(torch.full((5, 7), float(rank)))
    means = net.state_dict()["module.1.running_mean"]
    was = means.tolist()
    accelerator.save_state(f"{folder}/step_1")
    hooks.wait()
    means.zero_()
    accelerator.load_state(f"{folder}/step_1")
    return was, means.tolist()


def test_of_running_means_that_differ_between_ranks_the_first_one_s_are_kept(
    cluster: str, tmp_path: Path, ranks: Ranks
) -> None:
    """As Accelerate keeps them, and as DDP hands them out before the next forward pass."""
    (first, after), (second, after_second) = ranks.run(2, means_job, cluster, str(tmp_path))
    assert first != second
    assert after == after_second == first
