"""A small GPT under FSDP2 that survives being killed at any step.

    torchrun --standalone --nproc-per-node 4 --max-restarts 20 torch_fsdp2.py \\
        --store ckpt+local:///scratch/burst --name gpt --text corpus.txt --losses losses.jsonl

(with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1: a torchrun 2.13 that shares its store with the ranks gives
restarted gloo ranks the addresses of the dead ones).

corpus.txt is any text; losses.jsonl gets a line for each start of a rank and each step's loss.

It saves every --every steps beside the training and continues from the newest committed step,
whatever the number of ranks. With as many ranks as before, losses and parameters are the same bits
as without any interruption: weights, moments, position in the data and each rank's dropout state
come back.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from types import ModuleType

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard

import ckpt
import ckpt_torch

WIDTH, LAYERS, HEADS, BLOCK, BATCH = 256, 4, 4, 64, 2


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            part.view(batch, length, HEADS, -1).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        hidden = F.gelu(self.up(self.norm2(x)))
        return x + F.dropout(self.down(hidden), 0.1, self.training)


class Gpt(nn.Module):
    """Bytes in, bytes out; 3.3 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Batches:
    """This rank's part of a shuffled text; its position is saved."""

    def __init__(self, text: bytes, rank: int, world_size: int, device: torch.device) -> None:
        self._text, self._device = torch.frombuffer(bytearray(text), dtype=torch.uint8), device
        self._rank, self._world_size, self.position = rank, world_size, 0

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        order = torch.Generator().manual_seed(self.position)
        starts = torch.randint(
            0, len(self._text) - BLOCK - 1, (BATCH * self._world_size,), generator=order
        )
        self.position += 1
        rows = [
            self._text[s : s + BLOCK + 1].long() for s in starts[self._rank :: self._world_size]
        ]
        block = torch.stack(rows).to(self._device)
        return block[:, :-1], block[:, 1:]

    def state_dict(self) -> dict[str, object]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.position = int(str(state["position"]))


def main() -> None:
    options = parse()
    device = own_device()
    dist.init_process_group()  # gloo on the host, and on accelerators what is made for them.
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(1)
    model = Gpt().to(device)
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = Batches(Path(options.text).read_bytes(), rank, world_size, device)
    torch.manual_seed(1000 + rank)  # Dropout differs from rank to rank.

    store = ckpt.open(options.store)
    ckpt_torch.guard()  # A step of the optimizer waits for what is left of a save's copy.
    step = resume(store, options.name, model, optimizer, batches)
    tell(options.losses, rank=rank, pid=os.getpid(), start=step, world_size=world_size)
    saving = None
    while step < options.steps:
        ids, following = batches.next()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(ids).flatten(0, 1), following.flatten())
        loss.backward()
        optimizer.step()
        step += 1
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            tell(options.losses, step=step, loss=(mean / world_size).item().hex())
        if step % options.every == 0 or step == options.steps:
            state = state_of(model, optimizer, batches)
            saving = ckpt_torch.async_save(
                state, checkpoint_id=f"{options.name}/{step}", store=store, staging="overlap"
            )
        time.sleep(options.pause)
    if saving is not None:
        saving.result()
    store.close()
    dist.destroy_process_group()


def own_device() -> torch.device:
    """This rank's accelerator, or the CPU where there is none."""
    if not torch.accelerator.is_available():
        return torch.device("cpu")
    torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
    return torch.device(torch.accelerator.current_accelerator().type, int(os.environ["LOCAL_RANK"]))


def random_of(device: torch.device) -> ModuleType:
    """Where dropout's random numbers on that device come from."""
    return torch if device.type == "cpu" else torch.get_device_module(device)


def state_of(model: Gpt, optimizer: torch.optim.Optimizer, batches: Batches) -> dict[str, object]:
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "batches": batches,
        "dropout": {str(dist.get_rank()): random_of(own_device()).get_rng_state()},
        "world_size": dist.get_world_size(),
    }


def resume(
    store: ckpt.Store, run: str, model: Gpt, optimizer: torch.optim.Optimizer, batches: Batches
) -> int:
    """Continue from the newest committed step, if there is one; one rank looks for all."""
    newest = [store.latest(run) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(newest)
    if newest[0] is None:
        return 0
    for parameter in model.parameters():  # Makes the moments, for the load to fill.
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    checkpoint = f"{run}/{newest[0]}"
    state, saved = state_of(model, optimizer, batches), {"world_size": 0}
    ckpt_torch.load(saved, checkpoint_id=checkpoint, store=store)
    if dist.get_rank() >= saved["world_size"]:
        del state["dropout"]  # A rank that was not there then begins with its own.
    step = ckpt_torch.load(state, checkpoint_id=checkpoint, store=store)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    if "dropout" in state:
        random_of(own_device()).set_rng_state(state["dropout"][str(dist.get_rank())])
    return step


def tell(log: str, **fields: object) -> None:
    """One line, appended whole."""
    with open(log, "ab", buffering=0) as file:
        file.write(json.dumps(fields).encode() + b"\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", help="default: $CKPT_STORE")
    parser.add_argument("--name", required=True)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=2)
    parser.add_argument("--text", required=True)
    parser.add_argument("--losses", required=True)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after each step")
    return parser.parse_args()


if __name__ == "__main__":
    main()
