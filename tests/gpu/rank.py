"""A training whose every rank has a part of a sharded state on one device, as a script:

    torchrun --standalone --nproc-per-node 2 rank.py --device cuda:0 --store URL --name RUN \\
        --steps 12 --notes notes.jsonl

The ranks speak gloo, so several of them can share one device. Every step changes every bit of the
state, on the device; each is saved beside the next ones, and the log has a sum of the bits.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import ckpt
import ckpt_torch

ROWS, COLUMNS, LAYERS = 1024, 512, 6
PRIME = (1 << 31) - 1


class Sharded:
    """Layers of which each rank has a slice of rows, under AdamW."""

    def __init__(self, device: torch.device) -> None:
        # In use, so that the mesh gives each rank no device of its own: all share this one.
        torch.zeros(1, device=device)
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        first = dist.get_rank() * ROWS // dist.get_world_size()
        end = (dist.get_rank() + 1) * ROWS // dist.get_world_size()
        chance = torch.Generator().manual_seed(1)
        self._rows = slice(first, end)
        self.layers = {
            f"layer{n}": torch.nn.Parameter(
                DTensor.from_local(
                    torch.randn(ROWS, COLUMNS, generator=chance)[first:end].to(device),
                    mesh, [Shard(0)], run_check=False, shape=torch.Size((ROWS, COLUMNS)),
                    stride=(COLUMNS, 1),
                )
            )
            for n in range(LAYERS)
        }  # fmt: skip
        self.optimizer = torch.optim.AdamW(self.layers.values(), lr=0.01)

    def step(self, number: int) -> None:
        """The gradient of a row depends on the row and the step alone, not on who has it."""
        chance = torch.Generator().manual_seed(number)
        for layer in self.layers.values():
            whole = torch.randn(ROWS, COLUMNS, generator=chance)
            local = layer.data.to_local()
            grad = whole[self._rows].to(local.device) + 0.1 * local
            layer.grad = DTensor.from_local(
                grad, layer.device_mesh, layer.placements, run_check=False,
                shape=layer.shape, stride=layer.stride(),
            )  # fmt: skip
        self.optimizer.step()

    def state(self) -> dict[str, Any]:
        """As a save takes it: moments by the layers' names."""
        moments = {name: dict(self.optimizer.state[layer]) for name, layer in self.layers.items()}
        return {"layers": {n: one.data for n, one in self.layers.items()}, "moments": moments}

    def bits(self) -> int:
        """Of all ranks, a sum that any changed bit changes."""
        found = 0
        for name, layer in self.layers.items():
            state = self.optimizer.state[layer]
            for each in (layer.data, state["exp_avg"], state["exp_avg_sq"]):
                words = each.to_local().cpu().view(torch.int32).long()
                places = torch.arange(words.numel()).view(words.shape) + self._rows.start * COLUMNS
                found += int(((words * (places % PRIME + len(name))) % PRIME).sum())
        total = torch.tensor(found % PRIME)
        dist.all_reduce(total)
        return int(total) % PRIME


def main() -> None:
    options = parse()
    dist.init_process_group("gloo")
    training, rank = Sharded(torch.device(options.device)), dist.get_rank()
    with ckpt.open(options.store) as store, ckpt_torch.guard(training.optimizer):
        number = resume(store, options.name, training)
        note(options.notes, rank=rank, pid=os.getpid(), start=number)
        saving = None
        while number < options.steps:
            training.step(number)
            number += 1
            saving = ckpt_torch.async_save(
                training.state(), checkpoint_id=f"{options.name}/{number}", store=store,
                staging="overlap",
            )  # fmt: skip
            bits = training.bits()
            if rank == 0:
                note(options.notes, step=number, bits=bits)
            threading.Event().wait(options.pause)
        if saving is not None:
            saving.result()
    dist.destroy_process_group()


def resume(store: ckpt.Store, run: str, training: Sharded) -> int:
    """From the newest committed step; one rank looks for all."""
    newest = [store.latest(run) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(newest)
    if newest[0] is None:
        return 0
    training.step(0)  # Makes the moments, for the load to fill.
    return ckpt_torch.load(training.state(), checkpoint_id=f"{run}/{newest[0]}", store=store)


def note(log: str, **fields: object) -> None:
    """One line, appended whole."""
    with open(log, "ab", buffering=0) as file:
        file.write(json.dumps(fields).encode() + b"\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", required=True)
    parser.add_argument("--store", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--notes", required=True)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after each step")
    return parser.parse_args()


if __name__ == "__main__":
    main()
