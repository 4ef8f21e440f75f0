"""Accelerate's save_state and load_state whose weights go to a store.

    python accelerate_fit.py --store ckpt+local:///scratch/burst --name mlp --steps 6 --folder out

Started again, it goes on from the newest folder whose weights are committed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

import ckpt
from ckpt.format.checksum import xxh3_128
from ckpt_torch.accelerate import CkptHooks


def main() -> None:
    options = parse()
    set_seed(7)
    accelerator = Accelerator(cpu=True)
    hooks = CkptHooks(f"{options.store}/{options.name}").attach(accelerator)
    net = torch.nn.Sequential(torch.nn.Linear(16, 33), torch.nn.ReLU(), torch.nn.Linear(33, 3))
    net, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=0.01))
    with ckpt.open(options.store) as store:
        start = store.latest(options.name)
    if start is not None:
        accelerator.load_state(str(options.folder / f"step_{start}"))
    for _ in range(start or 0, options.steps):
        optimizer.zero_grad()
        rows = torch.randn(8, 16)  # From the state that was loaded: nothing is drawn twice.
        loss = torch.nn.functional.cross_entropy(net(rows), rows[:, :3].argmax(1))
        accelerator.backward(loss)
        optimizer.step()
    accelerator.save_state(str(options.folder / f"step_{options.steps}"))
    hooks.wait()
    learnt = b"".join(tensor.numpy().tobytes() for tensor in net.state_dict().values())
    print(f"from {start} to {options.steps}: {xxh3_128(learnt).hex()}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", required=True, help="ckpt://HOST:PORT or ckpt+local:///DIR")
    parser.add_argument("--name", required=True, help="of the run")
    parser.add_argument("--steps", type=int, required=True, help="to reach in all")
    parser.add_argument("--folder", type=Path, required=True, help="for what is no weight")
    return parser.parse_args()


if __name__ == "__main__":
    main()
