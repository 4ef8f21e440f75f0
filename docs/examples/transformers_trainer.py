"""Hugging Face's Trainer that saves into a store and keeps no checkpoint on its own disk.

    python transformers_trainer.py --store ckpt+local:///scratch/burst --name tiny --steps 6

Started again, it goes on from the newest committed step.
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)

from ckpt_torch.transformers import CkptCallback, fetch


class Text(Dataset):
    """Random bytes: what is learnt does not matter here."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(0, 64, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


class StopAt(TrainerCallback):
    """Stands for whatever interrupts a training."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        control.should_training_stop |= state.global_step >= self.step


def main() -> None:
    options = parse()
    set_seed(3)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2)
    )
    run = f"{options.store}/{options.name}"
    with tempfile.TemporaryDirectory() as scratch:
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=scratch,
                max_steps=8,
                per_device_train_batch_size=4,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
                use_cpu=True,
                logging_steps=1,
            ),
            train_dataset=Text(),
            callbacks=[CkptCallback(run, every=2), StopAt(options.steps)],
        )
        folder = fetch(run, scratch)
        trainer.train(resume_from_checkpoint=folder)
        total = sum(p.detach().double().abs().sum().item() for p in model.parameters())
        print(
            f"from {folder and folder.rpartition('-')[2]} to {trainer.state.global_step}: "
            f"{total.hex()}"
        )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--steps", type=int, default=8)
    return parser.parse_args()


if __name__ == "__main__":
    main()
