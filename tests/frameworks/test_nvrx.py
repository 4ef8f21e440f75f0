"""CkptCheckpointManager under NVIDIA Resiliency Extension's own save, find_latest, load and queue.

Its own state dict asserts that tensors are on CUDA, and `save(is_async=True)` synchronizes CUDA:
the state here is one on CPU, and the queue is given what `save` would give it.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist

import ckpt
from tests.frameworks.gloo import Ranks
from tests.frameworks.test_torch_examples import first_start, run_example
from tests.frameworks.warm import Warm

pytest.importorskip("nvidia_resiliency_ext", reason="it has no wheel for Python 3.13 or newer")

from nvidia_resiliency_ext.checkpointing.async_ckpt.core import AsyncCallsQueue, AsyncRequest
from nvidia_resiliency_ext.checkpointing.local.basic_state_dict import (
    BasicTensorAwareStateDict,
)
from nvidia_resiliency_ext.checkpointing.local.ckpt_managers.base_manager import (
    CheckpointingException,
)

from ckpt_torch.nvrx import CkptCheckpointManager
from tests.landing import at_turn


class CpuState(BasicTensorAwareStateDict):
    """The package's own, without what needs CUDA."""

    def __init__(self, state_dict: dict[str, Any]) -> None:
        self.state_dict = state_dict
        self._is_hollow = False

    def restore_tensor_device(self, non_blocking: bool = True) -> None:
        """They are where they belong."""


def state_of(rank: int, step: int) -> CpuState:
    weight = torch.full((100, 7), rank + step / 16, dtype=torch.bfloat16)
    return CpuState({"m": [weight, {"b": torch.zeros(0)}], "step": step, "seed": {"rank": rank}})


def same(found: CpuState, expected: CpuState) -> bool:
    pairs = zip(found.tensors, expected.tensors, strict=True)
    rest = [{**one.state_dict, "m": None} for one in (found, expected)]
    return rest[0] == rest[1] and all(
        one.dtype == other.dtype and torch.equal(one, other) for one, other in pairs
    )


def manager(url: str, **options: Any) -> CkptCheckpointManager:
    return CkptCheckpointManager(url, allow_pickle=True, **options)


def save_job(url: str, keep: int) -> list[int]:
    rank = dist.get_rank()
    ours = manager(url, session_id="job", keep=keep)
    assert ours.find_latest() == -1
    for step in (5, 10, 15):
        state = state_of(rank, step)
        assert ours.save(state, step) is None
        assert same(state, state_of(rank, step)), "it is whole again"
    dist.barrier()  # Rank 0 has deleted what is old.
    return [iteration for iteration, _, _ in ours._my_ckpt_ids()]


def load_job(url: str) -> tuple[int, bool]:
    ours = manager(url, session_id="job")
    newest = ours.find_latest()
    if newest == -1:
        return newest, False
    state, id_ = ours.load()
    assert id_ == (newest, dist.get_rank(), "job")
    return newest, same(state, state_of(dist.get_rank(), newest))


@pytest.mark.parametrize(("keep", "left"), [(1, [15]), (2, [10, 15])])
def test_every_rank_gets_its_part_of_the_newest_step_back(
    cluster: str, ranks: Ranks, keep: int, left: list[int]
) -> None:
    url = f"{cluster}/nvrx/keep{keep}"
    assert ranks.run(2, save_job, url, keep) == [left, left]
    assert ranks.run(2, load_job, url) == [(15, True)] * 2
    assert ranks.run(3, load_job, url) == [(-1, False)] * 3, "saved by another world size"


def queue_job(url: str) -> tuple[int, bool]:
    """What `save(is_async=True)` returns goes through the package's own process."""
    rank = dist.get_rank()
    ours = manager(url, session_id="job")
    queue = AsyncCallsQueue(persistent=True)
    for step in (1, 2):
        held = {(step, rank, "job"): state_of(rank, step)}
        queue.schedule_async_request(AsyncRequest(ours._save_fn, (held,), [ours.find_latest]))
        queue.maybe_finalize_async_calls(blocking=True, no_dist=True)
        dist.barrier()
    queue.persistent_caller.close()
    ours.latest_iteration = -1
    return load_job(url)


def test_the_packages_own_process_saves(cluster: str, ranks: Ranks) -> None:
    assert ranks.run(2, queue_job, f"{cluster}/nvrx/queue") == [(2, True)] * 2


def test_a_pickle_must_be_allowed_and_an_open_store_does_not_travel(cluster: str) -> None:
    with pytest.raises(ckpt.Refused, match="stored as a pickle"):
        CkptCheckpointManager(f"{cluster}/nvrx/plain")
    with pytest.raises(ckpt.Refused, match="names a step"):
        manager(f"{cluster}/nvrx/5").find_latest()
    with ckpt.open(cluster) as store, pytest.raises(ckpt.Refused, match="another process"):
        copy.copy(manager("nvrx/travel", store=store))


def test_a_step_that_is_gone_is_the_packages_error(cluster: str) -> None:
    ours = manager(f"{cluster}/nvrx/gone")
    with pytest.raises(CheckpointingException, match=r"nvrx/gone@3, rank 0"):
        ours._load((3, 0, ""))


@at_turn(1, every=2)
def test_the_example_goes_on_where_it_was_interrupted(cluster: str, warm: Warm) -> None:
    script = "nvrx_local.py"
    calm = run_example(script, cluster, "nvrx/calm", 6, ranks=2, warm=first_start(script, warm))
    first = run_example(script, cluster, "nvrx/broken", 3, ranks=2, warm=warm)
    second = run_example(script, cluster, "nvrx/broken", 6, ranks=2, warm=warm)
    assert (calm[:2], first[:2]) == (("None", "6"), ("None", "3"))
    assert second == ("3", "6", calm[2])
