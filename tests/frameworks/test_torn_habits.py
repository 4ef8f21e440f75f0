"""What users of torch do beside a save that overlaps: what is committed is the state at the call,
or nothing is, and the error names what changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from accelerate import Accelerator
from lightning.fabric import Fabric
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.optim.swa_utils import get_ema_multi_avg_fn

import ckpt_torch
from ckpt_torch.saving import CommitFuture
from tests.frameworks.gloo import Ranks
from tests.frameworks.test_torn_states import WAIT_S, held_save, outcome, step, trained

State = dict[str, torch.Tensor]
compiles = pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")


def copied(state: State) -> State:
    return {name: one.detach().clone() for name, one in state.items()}


def begin(url: str, number: int, state: dict[str, Any]) -> CommitFuture:
    """Copied whenever its thread comes to it."""
    return ckpt_torch.async_save(state, checkpoint_id=f"{url}/{number}", staging="overlap")


def check_saved(url: str, number: int, wanted: State) -> None:
    found = {name: torch.full_like(one, -1) for name, one in wanted.items()}
    ckpt_torch.load({"net": found}, checkpoint_id=f"{url}/{number}")
    for name, one in wanted.items():
        assert torch.equal(found[name], one), name


# ------------------------------------------------------------------------------- past torch's count


def by_data(tensor: torch.Tensor) -> None:
    tensor.data.mul_(0.5)


def by_other_memory(tensor: torch.Tensor) -> None:
    tensor.data = tensor.detach() * 2


def by_other_type(tensor: torch.Tensor) -> None:
    """As `module.half()` does it, and `module.float()`."""
    tensor.data = tensor.data.to(torch.half if tensor.dtype is torch.float else torch.float)


def by_numpy(tensor: torch.Tensor) -> None:
    tensor.detach().numpy()[...] += 3


def by_pointer(tensor: torch.Tensor) -> None:
    """As a kernel that gets the tensor's address; of one element in two."""
    tensor.detach().view(-1).numpy()[1::2] += 1


PAST: list[Callable[[torch.Tensor], None]] = [
    by_data, by_other_memory, by_other_type, by_numpy, by_pointer,
]  # fmt: skip


@pytest.mark.parametrize("change", PAST)
@pytest.mark.parametrize("layout", ["dense", "turned", "apart"])
def test_a_write_past_torch_is_seen(
    cluster: str, change: Callable[[torch.Tensor], None], layout: str
) -> None:
    if layout != "dense" and change in (by_pointer, by_other_type):
        pytest.skip("of dense tensors")
    whole = torch.rand(64, 64) + 1
    tensor = {"dense": whole, "turned": whole.t(), "apart": whole[:, ::2]}[layout]
    parameter = torch.nn.Parameter(tensor)
    run = f"{cluster}/past-{layout}-{change.__name__}"
    for number in (1, 2):  # The long way, and the known form.
        future = held_save(run, number, {"w": parameter, "other": torch.zeros(3)})
        change(parameter)
        assert "w changed while rank 0 staged it" in outcome(future)
        ckpt_torch.save({"w": parameter, "other": torch.zeros(3)}, checkpoint_id=f"{run}/{number}")


def averaged_job(url: str, sharded: bool) -> list[str]:
    """torch counts nothing of what this does to DTensors."""
    net, _ = trained(sharded, "foreach")
    average = {name: one.detach().clone() * 2 for name, one in net.state_dict().items()}
    update = get_ema_multi_avg_fn(0.5)
    found = []
    for number in (1, 2):
        future = held_save(url, number, {"average": average})
        update(list(average.values()), list(net.state_dict().values()), None)
        found.append(outcome(future))
        ckpt_torch.save({"average": average}, checkpoint_id=f"{url}/{number}")
    return found


@pytest.mark.parametrize("sharded", [False, True])
def test_an_average_that_torch_keeps_is_seen(cluster: str, ranks: Ranks, sharded: bool) -> None:
    for found in ranks.run(2, averaged_job, f"{cluster}/averaged-{sharded}", sharded):
        assert all("average/bias and 1 more changed" in torn for torn in found)


def collective_job(url: str) -> list[str]:
    """As buffers and averages are brought together."""
    mine = torch.full((1000,), float(dist.get_rank() + 1))
    found = []
    for number in (1, 2):
        future = held_save(url, number, {str(dist.get_rank()): mine})
        dist.all_reduce(mine)
        found.append(outcome(future))
        ckpt_torch.save({str(dist.get_rank()): mine}, checkpoint_id=f"{url}/{number}")
    return found


def test_what_a_collective_writes_is_seen(cluster: str, ranks: Ranks) -> None:
    for found in ranks.run(2, collective_job, f"{cluster}/collective"):
        assert all("changed while rank" in torn for torn in found)


# --------------------------------------------------------------------------- steps and their hooks


@pytest.mark.parametrize("where", ["hook", "closure", "hook after"])
def test_a_save_within_a_guarded_step_is_the_state_at_its_call(cluster: str, where: str) -> None:
    """A fused step counts nothing, and the guard waited before the save began."""
    net, optimizer = trained(False, "fused")
    run, saved, states = f"{cluster}/within-{where.replace(' ', '-')}", [], []

    def save(*_: object) -> None:
        states.append(copied(net.state_dict()))
        saved.append(begin(run, len(states), {"net": net.state_dict()}))

    def closure() -> float:
        loss = net(torch.ones(2, 8)).square().sum()
        loss.backward()
        if where == "closure":
            save()
        return float(loss.detach())

    with ckpt_torch.guard(optimizer):
        if where == "hook":
            optimizer.register_step_pre_hook(save)
        if where == "hook after":
            optimizer.register_step_post_hook(save)
        for _ in range(4):
            optimizer.step(closure)
    for number, wanted in enumerate(states, start=1):
        assert saved[number - 1].result(WAIT_S).step == number
        check_saved(run, number, wanted)


def test_a_closure_that_is_called_again_and_again_changes_nothing_early(cluster: str) -> None:
    net = torch.nn.Linear(8, 8)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=5)

    def closure() -> float:
        optimizer.zero_grad()
        loss = (net(torch.ones(2, 8)) - 1).square().sum()
        loss.backward()
        return float(loss.detach())

    run = f"{cluster}/lbfgs"
    with ckpt_torch.guard(optimizer):
        for number in (1, 2, 3):
            wanted = copied(net.state_dict())
            future = begin(run, number, {"net": net.state_dict()})
            optimizer.step(closure)
            assert future.result(WAIT_S).step == number
            check_saved(run, number, wanted)


@compiles
@pytest.mark.parametrize("guards_all", [False, True])
def test_a_step_that_torch_compiled_waits(cluster: str, guards_all: bool) -> None:
    net, optimizer = trained(False, "foreach")
    compiled = torch.compile(optimizer.step, backend="eager")
    compiled()  # Before anybody guards.
    run = f"{cluster}/compiled-{guards_all}"
    with ckpt_torch.guard() if guards_all else ckpt_torch.guard(optimizer):
        for number in (1, 2, 3):
            net(torch.ones(2, 8)).square().sum().backward()
            wanted = copied(net.state_dict())
            future = begin(run, number, {"net": net.state_dict()})
            compiled()
            assert future.result(WAIT_S).step == number
            check_saved(run, number, wanted)


@compiles
def test_a_compiled_step_that_nobody_guards_ends_the_save(cluster: str) -> None:
    net, optimizer = trained(False, "foreach")
    compiled = torch.compile(optimizer.step, backend="eager")
    run = f"{cluster}/compiled-torn"
    for number in (1, 2):
        net(torch.ones(2, 8)).square().sum().backward()
        future = held_save(run, number, {"net": net.state_dict()})
        compiled()
        assert "net/bias and 1 more changed" in outcome(future)


def test_a_scaler_s_step_waits_and_one_that_is_skipped_changes_nothing(cluster: str) -> None:
    net, optimizer = trained(False, "fused")
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    run = f"{cluster}/scaler"
    with ckpt_torch.guard(optimizer):
        for number in (1, 2, 3):
            scaler.scale(net(torch.ones(2, 8)).square().sum()).backward()
            if number == 2:
                next(net.parameters()).grad.fill_(float("inf"))  # type: ignore[union-attr]
            wanted = copied(net.state_dict())
            state = {"net": net.state_dict(), "scaler": scaler.state_dict()}
            future = begin(run, number, state)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            assert future.result(WAIT_S).step == number
            check_saved(run, number, wanted)


def test_a_guard_from_before_the_first_step_waits(cluster: str) -> None:
    net = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    run = f"{cluster}/early"
    with ckpt_torch.guard(optimizer):
        for number in (1, 2, 3):
            wanted = copied(net.state_dict())
            state = {"net": net.state_dict(), "optimizer": optimizer.state_dict()}
            future = begin(run, number, state)
            step(net, optimizer)
            assert future.result(WAIT_S).step == number
            check_saved(run, number, wanted)


def test_of_two_guards_of_an_optimizer_one_may_go(cluster: str) -> None:
    net, optimizer = trained(False, "fused")
    first, second = ckpt_torch.guard(optimizer), ckpt_torch.guard(optimizer)
    first.remove()
    first.remove()
    wanted = copied(net.state_dict())
    future = begin(f"{cluster}/guards", 1, {"net": net.state_dict()})
    step(net, optimizer)
    assert future.result(WAIT_S).step == 1
    check_saved(f"{cluster}/guards", 1, wanted)
    second.remove()
    future = held_save(f"{cluster}/guards", 2, {"net": net.state_dict()})
    step(net, optimizer)
    assert "net/bias and 1 more changed" in outcome(future)


def test_the_second_of_two_optimizers_is_seen(cluster: str) -> None:
    net, optimizer = trained(False, "fused")
    other, second = trained(False, "fused")
    run = f"{cluster}/two"
    with ckpt_torch.guard(optimizer):
        future = held_save(run, 1, {"net": net.state_dict(), "other": other.state_dict()})
        step(other, second)
        assert "other/bias and 1 more changed" in outcome(future)


def by_accelerate(optimizer: torch.optim.Optimizer) -> Any:
    return Accelerator(cpu=True).prepare(optimizer)


def by_lightning(optimizer: torch.optim.Optimizer) -> Any:
    return LightningOptimizer(optimizer)


def by_fabric(optimizer: torch.optim.Optimizer) -> Any:
    fabric = Fabric(accelerator="cpu", devices=1)
    return fabric.setup_optimizers(optimizer)


@pytest.mark.filterwarnings("ignore:.*litlogger.*")
@pytest.mark.parametrize("wrap", [by_accelerate, by_lightning, by_fabric])
def test_a_wrapped_optimizer_is_guarded(
    cluster: str, wrap: Callable[[torch.optim.Optimizer], Any]
) -> None:
    net, optimizer = trained(False, "fused")
    wrapped = wrap(optimizer)
    run = f"{cluster}/wrapped-{wrap.__name__}"
    with ckpt_torch.guard(wrapped):
        for number in (1, 2):
            wanted = copied(net.state_dict())
            future = begin(run, number, {"net": net.state_dict()})
            step(net, optimizer if wrap is by_lightning else wrapped)
            assert future.result(WAIT_S).step == number
            check_saved(run, number, wanted)
    future = held_save(run, 3, {"net": net.state_dict()})
    step(net, optimizer)
    assert "net/bias and 1 more changed" in outcome(future)


# ----------------------------------------------------------------------------------- all else


def test_a_state_that_is_loaded_in_place_is_seen(cluster: str) -> None:
    net, _ = trained(False, "foreach")
    other = {name: one + 1 for name, one in net.state_dict().items()}
    future = held_save(f"{cluster}/loaded", 1, {"net": net.state_dict()})
    net.load_state_dict(other)
    assert "net/bias and 1 more changed" in outcome(future)
    wanted = copied(net.state_dict())
    future = held_save(f"{cluster}/loaded", 2, {"net": net.state_dict()})
    net.load_state_dict({name: one + 1 for name, one in other.items()}, assign=True)
    assert outcome(future) == "step 2"  # Of the tensors that the module had.
    check_saved(f"{cluster}/loaded", 2, wanted)


def test_tied_weights_are_seen_under_both_names(cluster: str) -> None:
    net = torch.nn.ModuleDict({"a": torch.nn.Linear(8, 8), "b": torch.nn.Linear(8, 8)})
    net["b"].weight = net["a"].weight
    optimizer = torch.optim.SGD([net["a"].weight], lr=1.0)
    future = held_save(f"{cluster}/tied", 1, {"net": net.state_dict()})
    net["a"].weight.grad = torch.ones(8, 8)
    optimizer.step()
    assert "net/a.weight and 1 more changed" in outcome(future)


def test_a_training_that_raises_after_the_save_and_goes_on_is_whole(cluster: str) -> None:
    net, optimizer = trained(False, "fused")
    run, wanted = f"{cluster}/raised", {}
    with ckpt_torch.guard(optimizer):
        for number in (1, 2, 3):
            wanted[number] = copied(net.state_dict())
            future = begin(run, number, {"net": net.state_dict()})
            try:
                net(torch.ones(2, 7))
            except RuntimeError:
                step(net, optimizer)
            assert future.result(WAIT_S).step == number
    for number, state in wanted.items():
        check_saved(run, number, state)


def test_a_save_while_the_one_before_is_not_copied_is_of_its_own_step(cluster: str) -> None:
    net, optimizer = trained(False, "fused")
    run = f"{cluster}/still"
    torn = held_save(run, 1, {"net": net.state_dict()})
    step(net, optimizer)
    wanted = copied(net.state_dict())
    whole = begin(run, 2, {"net": net.state_dict()})
    assert "net/bias and 1 more changed" in outcome(torn)
    assert whole.result(WAIT_S).step == 2
    check_saved(run, 2, wanted)


def offloaded_job(url: str) -> list[str]:
    torch.manual_seed(0)
    net = torch.nn.Linear(8, 8)
    fully_shard(net, offload_policy=CPUOffloadPolicy(pin_memory=False))
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    step(net, optimizer)
    found = []
    with ckpt_torch.guard(optimizer):
        for number in (1, 2):
            wanted = {name: one.full_tensor() for name, one in net.state_dict().items()}
            future = begin(url, number, {"net": net.state_dict()})
            step(net, optimizer)
            future.result(WAIT_S)
            dist.barrier()
            check_saved(url, number, wanted)
    future = held_save(url, 3, {"net": net.state_dict()})
    step(net, optimizer)
    found.append(outcome(future))
    return found


def test_fsdp_that_offloads_to_the_host_waits_or_is_seen(cluster: str, ranks: Ranks) -> None:
    for found in ranks.run(2, offloaded_job, f"{cluster}/offloaded"):
        assert all("net/bias and 1 more changed" in torn for torn in found)
