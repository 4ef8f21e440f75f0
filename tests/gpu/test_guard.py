"""Saves that overlap the training: bit-exact with the guard, refused without it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import ckpt
from tests.gpu.finding import accelerator

torch: Any = pytest.importorskip("torch")
ckpt_torch: Any = pytest.importorskip("ckpt_torch")


@pytest.fixture
def store(url: str) -> Iterator[ckpt.Store]:
    with ckpt.open(url) as found:
        yield found


class Training:
    """A model whose optimizer changes every byte of its state at every step."""

    def __init__(self, width: int = 2048, depth: int = 12) -> None:
        torch.manual_seed(1)
        device = accelerator()
        self.model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(depth)]).to(
            device
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.inputs = torch.randn(64, width, device=device)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(self.inputs).square().mean().backward()
        self.optimizer.step()

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}


def copied(tree: Any) -> Any:
    """The same values, in the order of the device's own queue."""
    if isinstance(tree, torch.Tensor):
        return tree.detach().clone()
    if isinstance(tree, dict):
        return {key: copied(child) for key, child in tree.items()}
    return [copied(child) for child in tree] if isinstance(tree, list) else tree


def zeros(tree: Any) -> Any:
    if isinstance(tree, torch.Tensor):
        return torch.zeros_like(tree)
    if isinstance(tree, dict):
        return {key: zeros(child) for key, child in tree.items()}
    return [zeros(child) for child in tree] if isinstance(tree, list) else tree


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one.cpu(), other.cpu())
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def test_every_save_of_a_guarded_training_is_the_state_of_its_step(store: ckpt.Store) -> None:
    training = Training()
    with ckpt_torch.guard(training.optimizer):
        training.step()
        saves = []
        for step in range(6):
            wanted = copied(training.state())
            future = ckpt_torch.async_save(
                training.state(), checkpoint_id=f"guarded/{step}", store=store, staging="overlap"
            )
            saves.append((step, wanted, future))
            training.step()
    for step, wanted, future in saves:
        assert future.result().step == step
        found = zeros(wanted)
        ckpt_torch.load(found, checkpoint_id=f"guarded/{step}", store=store)
        assert same(found, wanted)


def test_a_state_that_changes_unguarded_is_never_committed(store: ckpt.Store) -> None:
    training = Training()
    training.step()
    torn = 0
    for step in range(5):
        wanted = copied(training.state())
        future = ckpt_torch.async_save(
            training.state(), checkpoint_id=f"bare/{step}", store=store, staging="overlap"
        )
        training.step()
        try:
            future.result()
        except ckpt.Aborted as refusal:
            torn += "changed while rank 0 staged it" in str(refusal)
            continue
        found = zeros(wanted)
        ckpt_torch.load(found, checkpoint_id=f"bare/{step}", store=store)
        assert same(found, wanted)
    assert torn
