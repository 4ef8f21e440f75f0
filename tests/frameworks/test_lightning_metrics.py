"""What Lightning measures goes with the step, so that `ckpt keep --best` judges it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from torch.utils.data import DataLoader, TensorDataset

import ckpt
from ckpt_torch.lightning import CkptIO, CkptMetrics

pytestmark = [
    pytest.mark.filterwarnings("ignore:The .*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*litlogger.*"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
]


class Measured(LightningModule):
    """Two batches an epoch. `val` is best in the second one, and `broken` is never a number."""

    VALUES = (0.9, 0.3, 0.5)

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(4, 3)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        self.log("broken", float("nan"))
        self.log("train", float(self.global_step))
        return self.net(batch[0]).square().mean()

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        self.log("val", self.VALUES[self.current_epoch])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def fit(folder: Path, io: object, *callbacks: Any) -> Trainer:
    trainer = Trainer(
        max_epochs=3, accelerator="cpu", plugins=[io], callbacks=list(callbacks), logger=False,
        num_sanity_val_steps=0, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=folder,
    )  # fmt: skip
    data = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=4)
    trainer.fit(Measured(), data, data)
    return trainer


def told(cluster: str, run: str) -> dict[int, dict[str, float]]:
    with ckpt.open(cluster) as store:
        return {one.step: dict(one.metrics) for one in store.steps(run)}


def test_a_step_has_what_was_measured_of_it_and_nothing_of_an_earlier_one(
    cluster: str, tmp_path: Path
) -> None:
    run = f"measured/{tmp_path.name}"
    saves = [
        ModelCheckpoint(tmp_path / "best", monitor="val", save_top_k=-1, save_last=True),
        ModelCheckpoint(tmp_path / "all", every_n_train_steps=1, save_top_k=-1),
    ]
    fit(tmp_path, CkptIO(f"{cluster}/{run}"), CkptMetrics(), *saves)
    found = told(cluster, run)
    assert {step: each["train"] for step, each in found.items()} == {n: n - 1 for n in range(1, 7)}
    assert {step: each.get("val") for step, each in found.items()} == {
        1: None, 2: pytest.approx(0.9), 3: None, 4: pytest.approx(0.3), 5: None,
        6: pytest.approx(0.5),
    }  # fmt: skip
    with ckpt.open(cluster) as store:
        whole: Any = store.load(run, 4, whole=True)
    assert "ckpt_metrics" not in whole


def test_asynccheckpointio_saves_what_was_measured_when_it_was_asked(
    cluster: str, tmp_path: Path
) -> None:
    kept = ModelCheckpoint(tmp_path, monitor="val", save_top_k=-1)
    fit(tmp_path, AsyncCheckpointIO(CkptIO(f"{cluster}/measured-async")), CkptMetrics(), kept)
    found = {step: each["val"] for step, each in told(cluster, "measured-async").items()}
    assert found == {2: pytest.approx(0.9), 4: pytest.approx(0.3), 6: pytest.approx(0.5)}


def test_a_save_by_hand_takes_metrics_and_refuses_what_it_does_not_know(
    cluster: str, tmp_path: Path
) -> None:
    io = CkptIO(f"{cluster}/by-hand")
    trainer = fit(tmp_path, io, ModelCheckpoint(tmp_path, save_top_k=0))
    for bad, why in (({"metrics": {"acc": float("nan")}}, "is nan"), ({"speed": 1}, "metrics and")):
        with pytest.raises(ckpt.Refused, match=why):
            trainer.save_checkpoint(tmp_path / "final.ckpt", storage_options=bad)
    trainer.save_checkpoint(tmp_path / "final.ckpt", storage_options={"metrics": {"acc": 0.75}})
    io.teardown()
    assert told(cluster, "by-hand") == {6: {"acc": 0.75}}
