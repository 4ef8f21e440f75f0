"""Saves and loads under what torch lets users switch on for all of a thread: inference mode, which
Lightning has on while it validates and saves, and a device where tensors are made by default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.checkpoint.api import CheckpointException
from torch.utils.flop_counter import FlopCounterMode

import ckpt
import ckpt_torch
from ckpt.base.units import MiB
from ckpt_torch import CkptReader, CkptWriter, tensors
from tests.frameworks.device.emulated import NAME, Emulated
from tests.frameworks.gloo import Ranks
from tests.landing import in_turn

WAIT_S = 60.0
State = dict[str, torch.Tensor]
both = pytest.mark.parametrize("staging", ["copy", "overlap"])
where = pytest.mark.parametrize("place", ["cpu", NAME])


@pytest.fixture
def store(cluster: str, device: Emulated, request: pytest.FixtureRequest) -> Iterator[ckpt.Store]:
    """Of a launch of its own: nothing is kept of an earlier test's saves."""
    with ckpt.open(cluster, launch=request.node.name) as found:
        yield found


def made(value: int, place: str) -> State:
    """Some that an accelerator gathers, and one that crosses alone."""
    kinds = (torch.float32, torch.bfloat16, torch.int64)
    small = {f"{n}": torch.full((100 + n,), value + n, device=place).to(kinds[n]) for n in range(3)}
    return {**small, "large": torch.full((1100, 1000), float(value), device=place)}


def save(store: ckpt.Store, name: str, state: State, staging: str) -> None:
    future = ckpt_torch.async_save(state, checkpoint_id=name, store=store, staging=staging)
    future.result(WAIT_S)


def check_loads(store: ckpt.Store, name: str, wanted: State, place: str) -> None:
    found = {key: torch.zeros_like(one, device=place) for key, one in wanted.items()}
    # More slots than are made ahead, on a thread of their own.
    ckpt_torch.load(found, checkpoint_id=name, store=store, ring_bytes=1 * MiB)
    for key, one in wanted.items():
        assert torch.equal(found[key].cpu(), one.cpu()), key


@pytest.mark.parametrize(
    ("place", "staging"),
    in_turn(
        [("cpu", "copy"), ("cpu", "overlap"), (NAME, "overlap"), (NAME, "copy")],
        every=2,
    ),
)
def test_a_save_within_inference_mode_spoils_none_that_follow(
    store: ckpt.Store, place: str, staging: str
) -> None:
    run = f"inference-{place}-{staging}"
    for step in (1, 2):
        with torch.inference_mode():
            save(store, f"{run}/{step}", made(step, place), staging)
    for step in (3, 4, 5):
        save(store, f"{run}/{step}", made(step, place), "copy" if step == 3 else "overlap")
    for step in range(1, 6):
        check_loads(store, f"{run}/{step}", made(step, "cpu"), place)


@where
def test_tensors_of_inference_mode_are_loaded_beside_the_caller(
    store: ckpt.Store, place: str
) -> None:
    run = f"filled-{place}"
    save(store, f"{run}/1", made(1, place), "copy")
    with torch.inference_mode():
        found: dict[str, Any] = {"own": made(0, place)}
    ckpt_torch.save({"own": made(7, place)}, checkpoint_id=f"{run}/2", store=store)
    loading = ckpt_torch.async_load(found, order=["own"], checkpoint_id=f"{run}/2", store=store)
    assert loading.result(WAIT_S) == 2
    for key, one in made(7, "cpu").items():
        assert torch.equal(found["own"][key].cpu(), one), key


@contextmanager
def made_there(place: str) -> Iterator[None]:
    """`torch.set_default_device`, as many scripts begin: nothing was saved before."""
    tensors.numpy_dtype.cache_clear()
    torch.set_default_device(place)
    try:
        yield
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize(
    ("place", "default", "staging"),
    in_turn(
        [
            ("cpu", "meta", "copy"), ("cpu", "meta", "overlap"),
            ("cpu", NAME, "overlap"), ("cpu", NAME, "copy"),
            (NAME, "meta", "overlap"), (NAME, "meta", "copy"),
            (NAME, NAME, "copy"), (NAME, NAME, "overlap"),
        ],
        every=2,
    ),
)  # fmt: skip
def test_where_tensors_are_made_by_default_changes_nothing(
    store: ckpt.Store, place: str, default: str, staging: str
) -> None:
    run = f"default-{place}-{default}-{staging}"
    with made_there(default):
        for step in (1, 2):
            save(store, f"{run}/{step}", made(step, place), staging)
            check_loads(store, f"{run}/{step}", made(step, "cpu"), place)


def together_job(url: str) -> list[float]:
    mine = {"same": torch.full((30,), 5.0)}
    with made_there("meta"):
        for step in (1, 2):
            ckpt_torch.save(mine, checkpoint_id=f"{url}/{step}")
        found = torch.zeros(30, device="cpu")
        ckpt_torch.load({"same": found}, checkpoint_id=f"{url}/2")
    return list(found.unique().tolist())


def test_ranks_speak_whatever_the_default_is(cluster: str, ranks: Ranks) -> None:
    assert ranks.run(2, together_job, f"{cluster}/spoken") == [[5.0]] * 2


def within_functionalize(call: Callable[[torch.Tensor], None], tensor: torch.Tensor) -> None:
    def transformed(argument: torch.Tensor) -> torch.Tensor:
        call(argument)
        call(tensor)
        return argument

    torch.func.functionalize(transformed)(tensor)


def within_grad(call: Callable[[torch.Tensor], None], tensor: torch.Tensor) -> None:
    def transformed(argument: torch.Tensor) -> torch.Tensor:
        call(argument)
        return argument.sum()

    torch.func.grad(transformed)(tensor)


def within_fakes(call: Callable[[torch.Tensor], None], tensor: torch.Tensor) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        call(tensor)


@both
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("within", [within_functionalize, within_grad, within_fakes])
def test_nothing_is_saved_or_loaded_where_torch_copies_nothing(
    store: ckpt.Store, staging: str, within: Callable[..., None]
) -> None:
    """It saved zeros, and so did all later saves of that form."""
    run = f"{within.__name__}-{staging}"

    def refused(tensor: torch.Tensor) -> None:
        with pytest.raises(ckpt.Refused, match=r"called within .*save and load outside of"):
            save(store, f"{run}/1", {"w": tensor}, staging)
        with pytest.raises(ckpt.Refused, match="called within"):
            ckpt_torch.load({"w": tensor}, checkpoint_id=f"{run}/1", store=store)
        with pytest.raises(CheckpointException):
            dcp.load({"w": tensor}, storage_reader=reader, no_dist=True)
        if tensor is not plain:
            with pytest.raises(ckpt.Refused, match=r"w: .* outside of what torch.func transforms"):
                store.save(f"{run}-numpy", 1, {"w": tensor})

    plain = torch.full((5,), 3.0)
    dcp.save({"w": plain}, storage_writer=CkptWriter(f"{run}-dcp/1", store=store), no_dist=True)
    reader = CkptReader(f"{run}-dcp/1", store=store)
    within(refused, plain)
    for step in range(1, 5):
        save(store, f"{run}/{step}", {"w": plain + step}, staging)
        check_loads(store, f"{run}/{step}", {"w": plain + step}, "cpu")


def test_what_only_looks_on_at_torch_s_calls_changes_nothing(store: ckpt.Store) -> None:
    with FlopCounterMode(display=False):
        save(store, "looked-at/1", {"w": torch.full((5,), 3.0)}, "copy")
        check_loads(store, "looked-at/1", {"w": torch.full((5,), 3.0)}, "cpu")


def test_a_compiled_step_may_save_and_load(store: ckpt.Store) -> None:
    """As it may call torch.save. Dynamo looked into all of ours, and raised an error of its own."""

    def step(tensor: torch.Tensor) -> torch.Tensor:
        doubled = tensor * 2
        save(store, "compiled/1", {"w": doubled}, "copy")
        ckpt_torch.load({"w": tensor}, checkpoint_id="compiled/1", store=store)
        return doubled + tensor

    found = torch.compile(step, backend="eager")(torch.ones(3))
    assert found.tolist() == [4.0] * 3
