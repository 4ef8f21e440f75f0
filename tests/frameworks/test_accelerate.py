"""Accelerate's own save_state and load_state, with the weights in a store."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from accelerate import Accelerator

import ckpt
from ckpt_torch.accelerate import CkptHooks


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
