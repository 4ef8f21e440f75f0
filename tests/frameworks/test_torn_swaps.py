"""Weights that others take the place of while they are copied, and that are back when all is: the
averages of an evaluation, an adapter that is merged and unmerged. What is committed is the state at
the call, or nothing is.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

import ckpt
import ckpt_torch
from ckpt_client.save.copying import HalfWriter
from ckpt_client.save.packing import plan_packing
from ckpt_client.save.state import flatten
from ckpt_torch.staging.copying import TorchCopier
from tests.frameworks.device.emulated import NAME, Emulated
from tests.frameworks.gloo import Ranks
from tests.frameworks.test_torn_states import WAIT_S, HeldCopier, outcome

Undo = Callable[[], object]


class ParkedCopier(HeldCopier):
    """Ends once it may."""

    has_copied, may_end = threading.Event(), threading.Event()

    def finish(self) -> None:
        super().finish()
        self.has_copied.set()
        assert self.may_end.wait(WAIT_S)


def swapped_save(
    url: str, step: int, state: dict[str, object], swap: Callable[[], Undo],
    store: ckpt.Store | None = None,
) -> str:  # fmt: skip
    """What becomes of a save that copies between a change and its undoing."""
    for event in (ParkedCopier.may_copy, ParkedCopier.has_copied, ParkedCopier.may_end):
        event.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ckpt_torch.saving.TorchCopier", ParkedCopier)
        future = ckpt_torch.async_save(
            state, checkpoint_id=f"{url}/{step}", staging="overlap", store=store
        )
    undo = swap()
    ParkedCopier.may_copy.set()
    assert ParkedCopier.has_copied.wait(WAIT_S)
    undo()
    ParkedCopier.may_end.set()
    return outcome(future)


def averages(tensor: torch.Tensor) -> Undo:
    """As torch_ema and Lightning's WeightAveraging swap them in and out."""
    kept = tensor.detach().clone()
    tensor.data.copy_(kept * 0.5)
    return lambda: tensor.data.copy_(kept)


def other_memory(tensor: torch.Tensor) -> Undo:
    kept = tensor.data
    tensor.data = kept * 0.5

    def undo() -> None:
        tensor.data = kept

    return undo


def merged(tensor: torch.Tensor) -> Undo:
    """An adapter's product, which is added and taken away."""
    tensor.data += 8
    return lambda: tensor.data.sub_(8)


def by_numpy(tensor: torch.Tensor) -> Undo:
    memory = tensor.detach().numpy()
    kept = memory.copy()
    memory *= 2
    return lambda: memory.__setitem__(..., kept)


@pytest.mark.parametrize("habit", [averages, other_memory, merged, by_numpy])
@pytest.mark.parametrize("layout", ["dense", "turned", "apart"])
def test_what_was_swapped_in_while_it_was_copied_is_not_committed(
    cluster: str, habit: Callable[[torch.Tensor], Undo], layout: str
) -> None:
    whole = torch.arange(64.0 * 64).reshape(64, 64)
    tensor = {"dense": whole, "turned": whole.t(), "apart": whole[:, ::2]}[layout]
    parameter = torch.nn.Parameter(tensor)
    state: dict[str, object] = {"w": parameter, "other": torch.zeros(3)}
    run = f"{cluster}/swapped-{layout}-{habit.__name__}"
    for step in (1, 2):  # The long way, and the known form.
        said = swapped_save(run, step, state, lambda: habit(parameter))
        assert "w changed while rank 0 staged it" in said
        assert torch.equal(parameter, tensor)
        ckpt_torch.save(state, checkpoint_id=f"{run}/{step}")


def shared_job(url: str, by: str) -> list[str]:
    """What all ranks hold is stored once: of a large tensor each stores a part."""
    tensor = torch.arange(900.0 * 900).reshape(900, 900)
    state: dict[str, object] = {"w": tensor if by == "torch" else tensor.numpy().T}
    found = []
    for step in (1, 2):
        found.append(swapped_save(url, step, state, lambda: averages(tensor)))
        ckpt_torch.save(state, checkpoint_id=f"{url}/{step}")
        found.append(swapped_save(url, 10 + step, state, lambda: lambda: None))
    return found


@pytest.mark.parametrize("by", ["torch", "numpy"])
def test_what_ranks_share_and_was_swapped_is_not_committed(
    cluster: str, ranks: Ranks, by: str
) -> None:
    for found in ranks.run(2, shared_job, f"{cluster}/shared-{by}", by):
        assert [said.split(" while")[0] for said in found] == [
            "w changed", "step 11", "w changed", "step 12",
        ]  # fmt: skip


def test_an_array_of_numpy_s_that_was_swapped_is_not_committed(cluster: str) -> None:
    array = np.arange(4000.0).reshape(40, 100)[:, ::2]
    state: dict[str, object] = {"first": np.zeros(3), "w": array, "other": torch.zeros(3)}

    def swap() -> Undo:
        kept = array.copy()
        array[...] = 7
        return lambda: array.__setitem__(..., kept)

    for step in (1, 2):
        said = swapped_save(f"{cluster}/swapped-numpy", step, state, swap)
        assert "w changed while rank 0 staged it" in said
        ckpt_torch.save(state, checkpoint_id=f"{cluster}/swapped-numpy/{step}")


def test_what_is_not_swapped_is_committed(cluster: str) -> None:
    """Of each layout, and of types of each size."""
    kinds = [torch.bool, torch.int8, torch.bfloat16, torch.float, torch.double, torch.complex128]
    whole = torch.arange(35).reshape(5, 7)
    state: dict[str, object] = {
        f"{kind}-{name}": tensor
        for kind in kinds
        for name, tensor in {
            "dense": whole.to(kind), "turned": whole.to(kind).t(), "apart": whole.to(kind)[:, ::2],
            "repeated": whole[:1].to(kind).expand(4, 7), "none": torch.zeros(0, dtype=kind),
            "one": torch.ones((), dtype=kind),
        }.items()
    }  # fmt: skip
    state["truth of any byte"] = torch.tensor([2, 1, 0], dtype=torch.uint8).view(torch.bool)
    for step in (1, 2):
        said = swapped_save(f"{cluster}/kept", step, state, lambda: lambda: None)
        assert said == f"step {step}"


@pytest.fixture
def store(cluster: str, device: Emulated) -> Iterator[ckpt.Store]:
    with ckpt.open(cluster) as found:
        yield found


@pytest.mark.parametrize("size", [1000, 700_000])
def test_a_device_s_memory_that_was_swapped_is_not_committed(
    device: Emulated, store: ckpt.Store, size: int
) -> None:
    parameter = torch.nn.Parameter(torch.full((size,), 3.0, device=NAME))
    for step in (1, 2):
        said = swapped_save(
            f"swapped-{size}", step, {"p": parameter}, lambda: other_memory(parameter), store
        )
        assert "p changed while rank 0 staged it" in said
        ckpt_torch.save({"p": parameter}, checkpoint_id=f"swapped-{size}/{step}", store=store)


def averages_there(tensor: torch.Tensor) -> Undo:
    """As `averages`; over when it returns, like its undoing."""
    undo = averages(tensor)
    torch.accelerator.synchronize()

    def undo_there() -> None:
        undo()
        torch.accelerator.synchronize()

    return undo_there


@pytest.mark.parametrize("size", [1000, 1_500_000])
def test_what_was_written_to_a_device_s_memory_and_back_is_not_committed(
    device: Emulated, store: ckpt.Store, size: int
) -> None:
    """Past torch's counting; small tensors are gathered on the device first."""
    parameter = torch.nn.Parameter(torch.full((size,), 3.0, device=NAME))
    state = {"p": parameter, "none": torch.zeros(0, device=NAME), "here": torch.ones(5)}
    for step in (1, 2):
        said = swapped_save(
            f"written-{size}", step, state, lambda: averages_there(parameter), store
        )
        assert "p changed while rank 0 staged it" in said
        said = swapped_save(f"written-{size}", step, state, lambda: lambda: None, store)
        assert said == f"step {step}"


def test_a_part_of_a_device_s_tensor_that_was_written_and_back_is_a_change(
    device: Emulated,
) -> None:
    tensor = torch.full((600, 1000), 3.0, dtype=torch.float64, device=NAME)
    plan = plan_packing(flatten({"w": np.zeros((600, 1000))}, replicated=True), 1, 2)
    assert plan.layout.parts
    packing = dataclasses.replace(plan, arrays=(tensor,))
    half = HalfWriter(memoryview(bytearray(packing.layout.half_bytes)))
    for swap in (averages_there, lambda _: lambda: None):
        copier = TorchCopier(packing.arrays, watched=True)
        undo = swap(tensor)
        half.write(packing, copier)
        copier.finish()
        undo()
        assert bool(copier.changed()) == (swap is averages_there)
    half.release()
