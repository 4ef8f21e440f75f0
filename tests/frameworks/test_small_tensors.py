"""A torch state of thousands of small tensors: what a first save and a load do for each of them is
little, and leaves out nothing that a tensor may be.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
import torch

import ckpt_torch
from ckpt.base.errors import Refused
from ckpt_torch.place import Who
from ckpt_torch.staging.known import learn
from ckpt_torch.staging.parts import parts_of
from ckpt_torch.staging.stand_ins import StandIns
from ckpt_torch.tensors import as_array, as_plain_array
from tests.calls import counted
from tests.frameworks.test_odd_tensors import freed, freed_part, nested, quantized, without_shape

FEW, MANY = 500, 3_500
CALLS_MAX = 75
FIRST_SAVE_CALLS_MAX = 42
"""Of Python and C functions, for each tensor."""


def small(count: int) -> dict[str, object]:
    return {"model": {f"layer.{n}.weight": torch.full((16,), float(n)) for n in range(count)}}


def test_a_first_save_calls_few_functions_for_each_tensor(cluster: str) -> None:
    calls = {}
    for count in (FEW, MANY):
        state, name = small(count), f"{cluster}/first-calls-{count}/1"

        def save(state: dict[str, object] = state, name: str = name) -> None:
            ckpt_torch.save(state, checkpoint_id=name)

        _, calls[count] = counted(save)
    assert (calls[MANY] - calls[FEW]) / (MANY - FEW) < FIRST_SAVE_CALLS_MAX


def test_a_load_calls_few_functions_for_each_tensor(cluster: str) -> None:
    calls = {}
    for count in (FEW, MANY):
        state, name = small(count), f"{cluster}/calls-{count}/1"
        ckpt_torch.save(state, checkpoint_id=name)

        def load(state: dict[str, object] = state, name: str = name) -> None:
            ckpt_torch.load(state, checkpoint_id=name)

        load()
        _, calls[count] = counted(load)
    assert (calls[MANY] - calls[FEW]) / (MANY - FEW) < CALLS_MAX


def looks_of(work: Callable[[], object]) -> int:
    """How often Python's collector looked for garbage meanwhile, as it does outside of tests."""
    looks = 0
    before, was_enabled = gc.get_threshold(), gc.isenabled()

    def note(phase: str, _info: dict[str, int]) -> None:
        nonlocal looks
        looks += phase == "start"

    gc.set_threshold(700, 10, 10)
    gc.enable()
    gc.callbacks.append(note)
    try:
        work()
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*before)
        if not was_enabled:
            gc.disable()
    return looks


def test_the_collector_does_not_look_again_and_again_for_what_grows(cluster: str) -> None:
    state, name = small(MANY), f"{cluster}/collected/1"
    # Python looks once for each 700 containers that are made.
    assert looks_of(lambda: ckpt_torch.save(state, checkpoint_id=name)) < MANY // 100
    assert looks_of(lambda: ckpt_torch.load(state, checkpoint_id=name)) < MANY // 100


def test_parameters_are_filled_in_place_and_autograd_sees_it(cluster: str) -> None:
    saved, name = torch.nn.Linear(3, 3), f"{cluster}/parameters/1"
    ckpt_torch.save(dict(saved.named_parameters()), checkpoint_id=name)
    module = torch.nn.Linear(3, 3)
    parameters = dict(module.named_parameters())
    places = {key: one.data_ptr() for key, one in parameters.items()}
    loss = module(torch.ones(2, 3, requires_grad=True)).square().sum()
    ckpt_torch.load(parameters, checkpoint_id=name)
    for key, one in module.named_parameters():
        assert torch.equal(one, dict(saved.named_parameters())[key])
        assert (one.data_ptr(), one.is_leaf, one.requires_grad) == (places[key], True, True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_parameter_under_two_names_is_one_tensor(cluster: str) -> None:
    name = f"{cluster}/tied-parameters/1"
    ckpt_torch.save({"a": torch.ones(3), "b": torch.zeros(3)}, checkpoint_id=name)
    one = torch.nn.Parameter(torch.zeros(3))
    with pytest.raises(Refused, match="b and a are one tensor here, and two in the checkpoint"):
        ckpt_torch.load({"a": one, "b": one}, checkpoint_id=name)


def grown() -> torch.Tensor:
    return torch.nn.Parameter(torch.ones(2, 3))


@pytest.mark.parametrize("made", [grown, lambda: torch.ones(0, 3), lambda: torch.tensor(1.0)])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64])
def test_plain_ones_have_the_array_that_all_have(
    made: Callable[[], torch.Tensor], kind: torch.dtype
) -> None:
    tensor = made().to(kind)
    quick, slow = as_plain_array(tensor, kind), as_array(tensor)
    assert quick is not None
    assert (quick.dtype, quick.shape, quick.strides) == (slow.dtype, slow.shape, slow.strides)
    assert not quick.size or quick.ctypes.data == slow.ctypes.data == tensor.data_ptr()
    assert quick.flags.writeable
    assert as_plain_array(tensor, torch.int16) is None, "another dtype"
    stands_for = StandIns().arrays([tensor])
    assert stands_for is not None
    assert [(one.dtype, one.shape) for one in stands_for] == [(slow.dtype, slow.shape)]


class Subclass(torch.Tensor):
    """Its memory may mean something else."""


def complex_one() -> torch.Tensor:
    return torch.ones(3, dtype=torch.complex64).conj()


@pytest.mark.parametrize(
    "made",
    [
        quantized,
        nested,
        without_shape,
        freed,
        freed_part,
        complex_one,
        lambda: complex_one().imag,
        lambda: torch.ones(3).to_sparse(),
        lambda: torch.empty(3, device="meta"),
        lambda: torch._efficientzerotensor(3),
        lambda: torch.ones(1).expand(5),
        lambda: torch.ones(3).as_subclass(Subclass),
        lambda: np.ones(3, ml_dtypes.bfloat16),
    ],
)
def test_odd_ones_take_the_slow_way(made: Callable[[], torch.Tensor]) -> None:
    odd = made()
    for kind in (torch.float32, torch.complex64, torch.qint8):
        assert as_plain_array(odd, kind) is None
    assert StandIns().arrays([torch.ones(3), odd]) is None


def test_what_is_known_of_plain_tensors_is_what_a_second_look_at_them_says() -> None:
    state = {"model": small(5)["model"], "step": 7, "half": torch.ones(3, dtype=torch.bfloat16)}
    parts = parts_of(state, False)
    assert parts.all_plain
    holders = parts.guessed_holders(Who(0, 1, None, False))
    quick, slow = (learn(parts.settled, holders, all_plain=known) for known in (True, False))
    assert quick is not None
    assert slow is not None
    assert (quick.plain, quick.devices) == (slow.plain, slow.devices)
    assert (quick.form.dtypes, quick.form.shapes) == (slow.form.dtypes, slow.form.shapes)
    found, again = quick.form.recognise(state), slow.form.recognise(state)
    assert found is not None
    assert again is not None
    assert (len(found.arrays), found.scalars) == (len(again.arrays), again.scalars) == (7, [7])
    assert quick.form.recognise({**state, "half": torch.ones(3).to_sparse()}) is None


@pytest.mark.parametrize("other", [np.ones(3), np.float32(1.0), {3}])
def test_a_state_that_holds_something_else_is_looked_at_again(other: object) -> None:
    assert not parts_of({"w": torch.ones(3), "other": other}, True).all_plain
