"""A state that changes while it is copied is committed by no rank, whoever changes it and however
little torch counts of that.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import fully_shard

import ckpt
import ckpt_torch
from ckpt_torch.staging.copying import TorchCopier
from ckpt_torch.staging.guard import SPOKEN_S
from tests.frameworks.gloo import Ranks
from tests.waiting import wait_until

WAIT_S = 60.0
HOW: dict[str, dict[str, Any]] = {
    "foreach": {"foreach": True}, "one by one": {"foreach": False}, "fused": {"fused": True},
}  # fmt: skip


class HeldCopier(TorchCopier):
    """Copies once it may."""

    may_copy = threading.Event()

    def copy(self, prepared: object, arrays: Sequence[object]) -> None:
        assert self.may_copy.wait(WAIT_S)
        super().copy(prepared, arrays)


def held_save(url: str, step: int, state: dict[str, object]) -> ckpt_torch.saving.CommitFuture:
    """Nothing is copied until `may_copy`."""
    HeldCopier.may_copy.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ckpt_torch.saving.TorchCopier", HeldCopier)
        return ckpt_torch.async_save(state, checkpoint_id=f"{url}/{step}", staging="overlap")


def open_late(future: ckpt_torch.saving.CommitFuture, training: threading.Thread) -> None:
    """Once the training has waited long enough for the log."""
    wait_until(lambda: future.staged.is_met(training), "the guard")
    threading.Event().wait(2 * SPOKEN_S)
    HeldCopier.may_copy.set()


def outcome(future: ckpt_torch.saving.CommitFuture) -> str:
    HeldCopier.may_copy.set()
    try:
        return f"step {future.result(WAIT_S).step}"
    except ckpt.CkptError as error:
        return str(error)


def trained(sharded: bool, how: str) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    net = torch.nn.Linear(8, 8)
    if sharded:
        fully_shard(net)
    optimizer = torch.optim.AdamW(net.parameters(), **HOW[how])
    step(net, optimizer)
    return net, optimizer


def step(net: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    net(torch.ones(2, 8)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def torn_job(url: str, sharded: bool, how: str) -> list[str]:
    """A step of the optimizer comes too early in each save but the last."""
    net, optimizer = trained(sharded, how)
    found = []
    for number in (1, 2):  # The long way, and the known form.
        future = held_save(url, number, {"net": net.state_dict()})
        step(net, optimizer)
        found.append(outcome(future))
        ckpt_torch.save({"net": net.state_dict()}, checkpoint_id=f"{url}/{number}")
    other = torch.nn.Linear(2, 2)
    stranger = torch.optim.SGD(other.parameters(), lr=0.1)
    future = held_save(url, 3, {"net": net.state_dict()})
    other(torch.ones(1, 2)).sum().backward()
    stranger.step()
    return [*found, outcome(future)]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("sharded", [False, True])
def test_a_step_that_comes_too_early_ends_the_save_by_name(
    cluster: str, ranks: Ranks, sharded: bool, how: str
) -> None:
    url = f"{cluster}/torn-{sharded}-{how.replace(' ', '-')}"
    for found in ranks.run(2, torn_job, url, sharded, how):
        for torn in found[:2]:
            assert "net/bias and 1 more changed while rank" in torn
            assert "let ckpt_torch.guard(optimizer)" in torn
        assert found[2] == "step 3"


def by_hand_job(url: str) -> list[str]:
    """Written to past any optimizer."""
    net, _ = trained(True, "foreach")
    found = []
    for number in (1, 2):
        future = held_save(url, number, {"net": net.state_dict()})
        with torch.no_grad():
            net.weight.mul_(2)
        found.append(outcome(future))
        ckpt_torch.save({"net": net.state_dict()}, checkpoint_id=f"{url}/{number}")
    return found


def test_a_sharded_tensor_that_is_written_to_ends_the_save(cluster: str, ranks: Ranks) -> None:
    for found in ranks.run(2, by_hand_job, f"{cluster}/by-hand"):
        assert all("net/weight changed while rank" in torn for torn in found)


def test_an_average_of_weights_is_seen_and_a_guard_of_another_optimizer_helps_not(
    cluster: str,
) -> None:
    net, optimizer = trained(False, "fused")
    average = {name: one.detach().clone() for name, one in net.state_dict().items()}
    state = {"net": net.state_dict(), "average": average}
    other = torch.optim.SGD(torch.nn.Linear(1, 1).parameters())
    with ckpt_torch.guard(other):
        future = held_save(f"{cluster}/average", 1, state)
        average["bias"].lerp_(net.state_dict()["bias"], 0.5)
        assert "average/bias changed" in outcome(future)
        future = held_save(f"{cluster}/average", 2, state)
        step(net, optimizer)
        assert "net/bias and 1 more changed" in outcome(future)


def test_a_guard_lets_the_step_wait_for_a_copy_that_is_held(
    cluster: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "ckpt.save")
    net, optimizer = trained(False, "fused")
    wanted = net.state_dict()["weight"].clone()
    with ckpt_torch.guard(optimizer) as guard:
        future = held_save(f"{cluster}/waits", 1, {"net": net.state_dict()})
        threading.Thread(target=open_late, args=(future, threading.current_thread())).start()
        step(net, optimizer)
        assert future.staged.wait(WAIT_S)
        assert guard.waited_s > SPOKEN_S
    cost = f"the training waited {guard.waited_s * 1000:.1f} ms for a save to be copied"
    assert cost in caplog.messages
    assert outcome(future) == "step 1"
    found = {"net": {"weight": torch.zeros(8, 8), "bias": torch.zeros(8)}}
    ckpt_torch.load(found, checkpoint_id=f"{cluster}/waits/1")
    assert torch.equal(found["net"]["weight"], wanted)
    assert not torch.equal(net.state_dict()["weight"], wanted)
