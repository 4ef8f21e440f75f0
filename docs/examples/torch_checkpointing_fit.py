"""torch_checkpointing's manager whose storage is a store; its own process writes.

    python torch_checkpointing_fit.py --store ckpt+local:///scratch/burst --name mlp --steps 6

Started again, it goes on from the newest committed step.
"""

from __future__ import annotations

import argparse

import torch
from torch_checkpointing import CheckpointManager

import ckpt
from ckpt_torch.torch_checkpointing import CkptStorageConfig, seal


def main() -> None:
    options = parse()
    torch.manual_seed(7)
    net = torch.nn.Sequential(torch.nn.Linear(16, 33), torch.nn.ReLU(), torch.nn.Linear(33, 3))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    manager = CheckpointManager(
        CheckpointManager.Config(storage_config=CkptStorageConfig(), pre_finalize_callback=seal)
    )
    run = f"{options.store}/{options.name}"
    with ckpt.open(options.store) as store:
        start = store.latest(options.name)
    if start is not None:
        found = manager.load(f"{run}/{start}", into={"model": None, "optimizer": None})
        net.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
    saving = None
    for step in range(start or 0, options.steps):
        rows = torch.randn(32, 16, generator=torch.Generator().manual_seed(step))
        torch.nn.functional.cross_entropy(net(rows), rows[:, :3].argmax(1)).backward()
        with manager.lock():  # The staging of the last save may still read the parameters.
            optimizer.step()
        optimizer.zero_grad()
        if saving is not None:
            saving.result()
        state = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
        saving = manager.save(f"{run}/{step + 1}", state)
    manager.close()
    total = sum(parameter.detach().double().abs().sum().item() for parameter in net.parameters())
    print(f"from {start} to {options.steps}: {total.hex()}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--steps", type=int, default=6)
    return parser.parse_args()


if __name__ == "__main__":
    main()
