"""NVIDIA Resiliency Extension's local checkpoints in a store, on CPU.

    torchrun --standalone --nproc-per-node 2 nvrx_local.py --store ckpt+local:///scratch/burst \\
        --name net --steps 6

Started again on as many ranks, on whatever hosts, it goes on from the newest committed step.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from nvidia_resiliency_ext.checkpointing.local.basic_state_dict import (
    BasicTensorAwareStateDict,
)

from ckpt_torch.nvrx import CkptCheckpointManager


class CpuState(BasicTensorAwareStateDict):
    """The package's own takes tensors on CUDA alone: there it needs no class like this."""

    def __init__(self, state_dict: dict[str, object]) -> None:
        self.state_dict = state_dict
        self._is_hollow = False

    def restore_tensor_device(self, non_blocking: bool = True) -> None:
        """They are where they belong."""


def main() -> None:
    options = parse()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)  # A part of the model for each rank.
    net = torch.nn.Sequential(torch.nn.Linear(16, 33), torch.nn.ReLU(), torch.nn.Linear(33, 3))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    manager = CkptCheckpointManager(f"{options.store}/{options.name}", allow_pickle=True)
    start = max(0, manager.find_latest())
    if start:
        found, _ = manager.load()
        net.load_state_dict(found.state_dict["model"])
        optimizer.load_state_dict(found.state_dict["optimizer"])
    for step in range(start, options.steps):
        rows = torch.randn(32, 16, generator=torch.Generator().manual_seed(step))
        torch.nn.functional.cross_entropy(net(rows), rows[:, :3].argmax(1)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % 3 == 0:
            state = {"model": dict(net.state_dict()), "optimizer": optimizer.state_dict()}
            manager.save(CpuState(state), step + 1)
    totals = torch.tensor([sum(p.detach().double().abs().sum() for p in net.parameters())])
    dist.all_reduce(totals)
    if rank == 0:
        print(f"from {start or None} to {options.steps}: {totals.item().hex()}")
    dist.destroy_process_group()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--steps", type=int, default=6)
    return parser.parse_args()


if __name__ == "__main__":
    main()
