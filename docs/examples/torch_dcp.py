"""A script that already uses torch.distributed.checkpoint: two arguments change.

    torchrun --standalone --nproc-per-node 2 torch_dcp.py --store ckpt+local:///scratch/burst \\
        --name net --steps 6

Started again, on any number of ranks, it goes on from the newest committed step.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    get_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import ckpt
from ckpt_torch import CkptReader, CkptStager, CkptWriter


def main() -> None:
    options = parse()
    dist.init_process_group("gloo")
    saves = dist.new_group(backend="gloo")  # A save in the background has its own: steps go on.
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(16, 33), torch.nn.ReLU(), torch.nn.Linear(33, 3))
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    step = resume(options, model, optimizer)
    begun = step
    saving = None
    while step < options.steps:
        rows = torch.randn(32, 16, generator=torch.Generator().manual_seed(step))
        torch.nn.functional.cross_entropy(model(rows), rows[:, :3].argmax(1)).backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if saving is not None:
            saving.upload_completion.result()
        moments = get_state_dict(model, optimizer)
        writer = CkptWriter(f"{options.store}/{options.name}/{step}")
        saving = dcp.async_save(
            {"model": moments[0], "optimizer": moments[1], "step": step},
            storage_writer=writer,
            async_stager=CkptStager(writer),
            process_group=saves,
        )
        saving.staging_completion.result()
    if saving is not None:
        saving.upload_completion.result()
    total = sum(whole(p).double().abs().sum().item() for p in model.parameters())
    if dist.get_rank() == 0:
        print(f"from {begun or None} to {step}: {total.hex()}")
    dist.destroy_process_group()


def resume(
    options: argparse.Namespace, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> int:
    """The step to go on from; one rank looks for all."""
    newest: list[int | None] = [None]
    if dist.get_rank() == 0:
        with ckpt.open(options.store) as store:
            newest = [store.latest(options.name)]
    dist.broadcast_object_list(newest)
    if newest[0] is None:
        return 0
    moments = get_state_dict(model, optimizer)
    state = {"model": moments[0], "optimizer": moments[1], "step": 0}
    dcp.load(state, storage_reader=CkptReader(f"{options.store}/{options.name}/{newest[0]}"))
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    return state["step"]


def whole(parameter: torch.Tensor) -> torch.Tensor:
    return (parameter.full_tensor() if isinstance(parameter, DTensor) else parameter).detach()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--steps", type=int, default=6)
    return parser.parse_args()


if __name__ == "__main__":
    main()
