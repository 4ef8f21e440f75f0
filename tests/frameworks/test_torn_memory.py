"""A tensor whose memory is taken from it while a save copies it: by `parameter.data = ...`, as
`module.half()` does, or by a load into it. The trainer lives on, and nothing is committed that was
not there at the call.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

import ckpt
import ckpt_torch
from ckpt_torch import CkptReader, CkptWriter
from tests.frameworks.device.emulated import NAME, Emulated
from tests.frameworks.test_overlap import WAIT_S, begin, check_loads
from tests.frameworks.test_torn_states import held_save, outcome
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
TAKEN = """
import sys, threading
import torch, ckpt, ckpt_torch
from ckpt_torch.staging.copying import TorchCopier

begun, whole, freed = threading.Event(), TorchCopier.copy, []

def copy(copier, prepared, arrays):
    begun.set()  # Who waits runs once the copy itself has let go of the interpreter.
    while freed:
        freed.pop().untyped_storage().resize_(0)  # As FSDP's first version frees parameters.
    whole(copier, prepared, arrays)

TorchCopier.copy = copy
for step in range(1, 7):
    begun.clear()
    parameter = torch.nn.Parameter(torch.ones(20_000_000))
    state = {"w": parameter, "other": torch.ones(3)}
    future = ckpt_torch.async_save(state, checkpoint_id=f"{sys.argv[1]}/{step}", staging="overlap")
    begun.wait()
    parameter.data = torch.zeros(3)
    try:
        future.result()
    except ckpt.CkptError as error:
        assert "w changed while rank 0 staged it" in str(error), error
for step in (7, 8):  # The long way, and the known form.
    freed.append(torch.ones(1000))
    state = {"w": freed[0], "strided": torch.ones(6, 4).t(), "other": torch.ones(3)}
    future = ckpt_torch.async_save(state, checkpoint_id=f"{sys.argv[1]}/{step}", staging="overlap")
    assert "w changed while rank 0 staged it" in str(future.exception()), future.exception()
"""


@pytest.fixture
def store(cluster: str, device: Emulated) -> Iterator[ckpt.Store]:
    with ckpt.open(cluster) as found:
        yield found


def test_a_copy_reads_no_memory_that_was_freed(cluster: str) -> None:
    command = [sys.executable, "-c", TAKEN, f"{cluster}/taken"]
    ended = subprocess.run(command, timeout=WAIT_S, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("size", [1000, 700_000])
def test_other_memory_under_a_device_s_tensor_is_seen(
    device: Emulated, store: ckpt.Store, size: int
) -> None:
    run = f"replaced-{size}"
    for step in (1, 2):  # The long way, and the known form.
        parameter = torch.nn.Parameter(torch.full((size,), 3.0, device=NAME))
        with device.held_link():
            future = begin(device, store, f"{run}/{step}", {"p": parameter})
            device.wait_held()
            parameter.data = torch.zeros_like(parameter)
            torch.accelerator.current_stream().synchronize()
        with pytest.raises(ckpt.Aborted, match="p changed while rank 0 staged it"):
            future.result(WAIT_S)
        wanted = {"p": torch.full((size,), 3.0)}
        ckpt_torch.save({"p": wanted["p"].to(NAME)}, checkpoint_id=f"{run}/{step}", store=store)
        check_loads(store, f"{run}/{step}", wanted)


def by_load(tensor: torch.Tensor, name: str) -> None:
    ckpt_torch.load({"a": tensor}, checkpoint_id=name)


def by_async_load(tensor: torch.Tensor, name: str) -> None:
    ckpt_torch.async_load({"a": tensor}, order=["a"], checkpoint_id=name).result(WAIT_S)


def by_dcp(tensor: torch.Tensor, name: str) -> None:
    dcp.load({"a": tensor}, storage_reader=CkptReader(name), no_dist=True)


def by_store(tensor: torch.Tensor, name: str) -> None:
    url, run, step = name.rsplit("/", 2)
    with ckpt.open(url) as store:
        store.load(run, int(step), like={"a": tensor.numpy()}, strict=False)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("fill", [by_load, by_async_load, by_dcp, by_store])
def test_a_load_into_a_state_comes_after_the_copy_of_its_save(
    cluster: str, fill: Callable[[torch.Tensor, str], None]
) -> None:
    """As a training goes back when its loss is no number; a load's bytes are counted by nobody."""
    run, state = f"{cluster}/back-{fill.__name__}", torch.zeros(1_000_000)
    state[777] = 1
    writer = CkptWriter(f"{run}/1")
    dcp.save({"a": state}, storage_writer=writer, no_dist=True)
    state[777], state[4444] = 0, 2
    future = held_save(run, 2, {"a": state})
    with ThreadPoolExecutor(1) as pool:
        filling = pool.submit(fill, state, f"{run}/1")
        # Who waits for its commit waits here already.
        wait_until(lambda: filling.done() or len(future.staged._met) > 1, "the load")
        assert outcome(future) == "step 2"
        filling.result(WAIT_S)
    assert state.nonzero().tolist() == [[777]]
    found = np.zeros(1_000_000, np.float32)
    with ckpt.open(cluster) as store:
        store.load(run.rpartition("/")[2], 2, like={"a": found})
    assert found.nonzero()[0].tolist() == [4444]
