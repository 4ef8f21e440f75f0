"""Lightning whose checkpoints are steps in a store.

    python lightning_fit.py --store ckpt+local:///scratch/burst --name mlp --steps 6
    torchrun --standalone --nproc-per-node 2 lightning_fit.py ... --sharded

Started again, it goes on from the newest committed step; with --sharded each rank saves and loads
its own shards (FSDP2), and their number may change.
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, TensorDataset

import ckpt
from ckpt_torch.lightning import CkptIO, CkptModelParallelStrategy


class Classifier(LightningModule):
    def __init__(self, sharded: bool) -> None:
        super().__init__()
        self.sharded = sharded
        self.net = torch.nn.Sequential(
            torch.nn.Linear(16, 33), torch.nn.ReLU(), torch.nn.Linear(33, 3)
        )

    def configure_model(self) -> None:
        if self.sharded and not isinstance(self.net[0].weight, DTensor):
            fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        rows, labels = batch
        return torch.nn.functional.cross_entropy(self.net(rows), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def main() -> None:
    options = parse()
    seed_everything(7)
    rows = torch.randn(24, 16)  # Three batches: a checkpoint every epoch.
    data = DataLoader(TensorDataset(rows, rows[:, :3].argmax(1)), batch_size=8)
    model = Classifier(options.sharded)
    run = f"{options.store}/{options.name}"
    io = CkptIO(run)
    with tempfile.TemporaryDirectory() as scratch:  # Only names come from here; it stays empty.
        trainer = Trainer(
            max_steps=options.steps,
            accelerator="cpu",
            devices=options.devices,
            plugins=None if options.sharded else [io],
            strategy=CkptModelParallelStrategy(io) if options.sharded else "auto",
            callbacks=[ModelCheckpoint(scratch, every_n_train_steps=3, save_top_k=-1)],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        with ckpt.open(options.store) as store:
            newest = store.latest(options.name)
        # Without a step: the newest, on which the ranks agree.
        trainer.fit(model, data, ckpt_path=None if newest is None else run)
    total = 0.0
    for parameter in model.parameters():
        full = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        total += full.detach().double().abs().sum().item()
    if trainer.is_global_zero:
        print(f"from {newest} to {trainer.global_step}: {total.hex()}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--sharded", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
