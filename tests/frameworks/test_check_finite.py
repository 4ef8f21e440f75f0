"""`check_finite=True` of trainers: the save that would keep a NaN is refused by the tensor's name,
and what was saved before it stays the newest.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch import Trainer as LightningTrainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, Dataset, TensorDataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import ckpt
from ckpt_torch.lightning import CkptIO
from ckpt_torch.transformers import CkptCallback

POISONED_AT = 2


def steps(cluster: str, run: str) -> list[int]:
    with ckpt.open(cluster) as store:
        return [commit.step for commit in store.steps(run)]


class Classifier(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(4, 3)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        if self.global_step == POISONED_AT:
            with torch.no_grad():
                self.net.weight[1, 2] = float("inf")
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.0)


@pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers")
@pytest.mark.filterwarnings("ignore:.*litlogger.*")
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
def test_lightnings_save_is_refused_by_the_tensors_path(cluster: str, tmp_path: Path) -> None:
    trainer = LightningTrainer(
        max_steps=4,
        accelerator="cpu",
        plugins=[CkptIO(f"{cluster}/finite/lightning", check_finite=True)],
        callbacks=[ModelCheckpoint(tmp_path, every_n_train_steps=1, save_top_k=-1)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=1)
    with pytest.raises(
        ckpt.Refused, match=r"state_dict/net.weight: element \[\d, \d\] of \(3, 4\)"
    ):
        trainer.fit(Classifier(), data)
    assert steps(cluster, "finite/lightning") == [1, 2]


class Text(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.arange(8)
        return {"input_ids": ids, "labels": ids}


class Poison(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step > POISONED_AT:
            with torch.no_grad():
                kwargs["model"].transformer.wpe.weight[3, 5] = float("nan")


def test_hugging_faces_save_is_refused_by_the_tensors_path(cluster: str, tmp_path: Path) -> None:
    config = GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=1)
    saving = CkptCallback(f"{cluster}/finite/hf", every=1, check_finite=True)
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=TrainingArguments(
            output_dir=str(tmp_path),
            max_steps=4,
            per_device_train_batch_size=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=Text(),
        callbacks=[Poison(), saving],
    )
    name = r"model/transformer.wpe.weight: element \[3, 5\] of \(8, 8\) is nan"
    with pytest.raises(ckpt.Refused, match=name):
        trainer.train()
    saving.wait()
    assert steps(cluster, "finite/hf") == [1, 2]
