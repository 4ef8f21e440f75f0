"""A tensor whose memory is taken from it while a save copies it: by `parameter.data = ...`, as
`module.half()` does, or by a load into it. The trainer lives on, and nothing is committed that was
not there at the call.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import ckpt
import ckpt_torch
from tests.frameworks.device.emulated import NAME, Emulated
from tests.frameworks.test_overlap import WAIT_S, begin, check_loads

ROOT = Path(__file__).parents[2]
TAKEN = """
import sys, threading
import torch, ckpt, ckpt_torch
from ckpt_torch.staging.copying import TorchCopier

begun, whole = threading.Event(), TorchCopier.copy

def copy(copier, prepared, arrays):
    begun.set()  # Who waits runs once the copy itself has let go of the interpreter.
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
