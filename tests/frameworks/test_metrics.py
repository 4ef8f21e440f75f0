"""`metrics=` of torch's ways to save: they lie in the step, and `keep` goes by them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

import ckpt
import ckpt_torch
from ckpt_client.store import Store
from ckpt_torch import CkptStager, CkptWriter
from tests.frameworks.gloo import Ranks

LOSSES = {1: 0.5, 2: 0.1, 3: 0.9, 4: 0.4}
STATE = {"w": torch.ones(1000)}


def save_whole(store: Store, name: str, metrics: Any) -> None:
    ckpt_torch.save(STATE, checkpoint_id=name, store=store, metrics=metrics)


def save_beside(store: Store, name: str, metrics: Any) -> None:
    ckpt_torch.async_save(STATE, checkpoint_id=name, store=store, metrics=metrics).result()


def save_by_dcp(store: Store, name: str, metrics: Any) -> None:
    dcp.save(STATE, storage_writer=CkptWriter(name, store=store, metrics=metrics), no_dist=True)


WAYS = [save_whole, save_beside, save_by_dcp]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("way", WAYS)
def test_the_best_by_what_a_save_was_told_stay(cluster: str, way: Any) -> None:
    run = f"metrics/{way.__name__}"
    with ckpt.open(cluster, unchanged="ignore") as store:
        store.keep(run, last=1, best=("loss", 1), mode="min")
        for step, loss in LOSSES.items():
            way(store, f"{run}/{step}", {"loss": torch.tensor(loss), "tokens": step})
        told = {commit.step: dict(commit.metrics) for commit in store.steps(run)}
        assert told == {
            2: {"loss": pytest.approx(0.1), "tokens": 2.0},
            4: {"loss": pytest.approx(0.4), "tokens": 4.0},
        }


def told_alone(url: str, way: str) -> dict[str, Any]:
    """Two ranks save: first one of them is told what is no metric, then only rank 1 has any."""
    rank, step = dist.get_rank(), f"{url}/metrics/{way}/7"
    state = {f"w{rank}": torch.ones(10)}

    def save(metrics: dict[str, float] | None) -> None:
        writer = CkptWriter(step, metrics=metrics)
        if way == "whole":
            ckpt_torch.save(state, checkpoint_id=step, metrics=metrics)
        elif way == "dcp":
            dcp.save(state, storage_writer=writer)
        else:
            group = dist.new_group(backend="gloo")
            stager = CkptStager(writer)
            response = dcp.async_save(
                state, storage_writer=writer, async_stager=stager, process_group=group
            )
            response.upload_completion.result()

    refused = ""
    try:
        save({"loss": float("nan")} if rank == 1 else {"loss": 0.5})
    except (Exception, CheckpointException) as error:
        refused = str(error)
    save({"loss": 0.25} if rank == 1 else None)
    with ckpt.open(url) as store:
        (commit,) = store.steps(f"metrics/{way}")
    return {"refused": refused, "metrics": dict(commit.metrics)}


@pytest.mark.parametrize("way", ["whole", "dcp", "stager"])
def test_what_is_no_finite_number_is_refused_on_all_ranks_and_one_rank_may_tell(
    cluster: str, ranks: Ranks, way: str
) -> None:
    for found in ranks.run(2, told_alone, cluster, way):
        assert "metric 'loss' is nan: a finite number is needed" in found["refused"]
        assert found["metrics"] == {"loss": 0.25}
