"""staging="overlap" under DCP, Lightning, Hugging Face and plain torch: each step's own state comes
back, because the next optimizer step waits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch.utils.data import DataLoader, Dataset, TensorDataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    TrainerCallback,
    TrainingArguments,
)
from transformers import Trainer as HuggingFaceTrainer

import ckpt
import ckpt_torch
from ckpt_client.save.staged import stagings_under_way
from ckpt_torch.lightning import CkptIO
from ckpt_torch.transformers import CkptCallback

STEPS = 4
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*litlogger.*"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set"),
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
]


def copied(tensors: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: one.detach().clone() for name, one in tensors.items()}


def check_equal(found: Any, wanted: dict[str, torch.Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, one in wanted.items():
        assert torch.equal(torch.as_tensor(found[name]), one), name


@pytest.mark.parametrize("guards_all", [False, True])
def test_a_guarded_optimizer_steps_after_the_copy(cluster: str, guards_all: bool) -> None:
    net = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)])
    optimizer = torch.optim.AdamW(net.parameters())
    run = f"{cluster}/guarded-{guards_all}"
    wanted, saves = [], []
    with ckpt_torch.guard() if guards_all else ckpt_torch.guard(optimizer) as guard:
        for step in range(STEPS):
            net(torch.ones(2, 512)).square().mean().backward()
            optimizer.step()
            wanted.append(copied(net.state_dict()))
            state = {"net": net.state_dict(), "optimizer": optimizer.state_dict()}
            name = f"{run}/{step}"
            saves.append(ckpt_torch.async_save(state, checkpoint_id=name, staging="overlap"))
        assert guard.waited_s >= 0
    for save in saves:
        save.result(60)
    for step in range(STEPS):
        found = {"net": copied(net.state_dict())}
        ckpt_torch.load(found, checkpoint_id=f"{run}/{step}", timeout_s=60)
        check_equal(found["net"], wanted[step])


def test_a_guard_that_is_removed_waits_no_more_and_others_are_refused() -> None:
    net = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters())
    guard = ckpt_torch.guard(optimizer, net)
    hooks = len(optimizer._optimizer_step_pre_hooks), len(net._forward_pre_hooks)
    guard.remove()
    guard.remove()
    assert hooks == (1, 1)
    assert not optimizer._optimizer_step_pre_hooks
    assert not net._forward_pre_hooks
    wrong: Any = "sgd"
    with pytest.raises(ckpt.Refused, match="str cannot be guarded; give optimizers"):
        ckpt_torch.guard(optimizer, wrong)
    assert not optimizer._optimizer_step_pre_hooks


def test_dcp_hears_when_the_state_may_change(cluster: str) -> None:
    for step in (1, 2):
        state = {"a": torch.full((1 << 20,), float(step)), "n": step}
        writer = ckpt_torch.CkptWriter(f"{cluster}/dcp-overlap/{step}")
        stager = ckpt_torch.CkptStager(writer, staging="overlap")
        response: Any = dcp.async_save(state, storage_writer=writer, async_stager=stager)
        stager.synchronize_staging()
        response.staging_completion.result()
        state["a"].zero_()
        response.upload_completion.result()
        found: dict[str, Any] = {"a": torch.zeros(1 << 20), "n": 0}
        ckpt_torch.load(found, checkpoint_id=f"{cluster}/dcp-overlap/{step}")
        assert found["n"] == step
        assert bool((found["a"] == step).all())


class Net(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)])

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


class Remember(Callback):
    """What the model was after each step."""

    def __init__(self) -> None:
        self.states: dict[int, dict[str, torch.Tensor]] = {}

    def on_train_batch_end(self, trainer: Trainer, module: LightningModule, *_: Any) -> None:
        self.states[trainer.global_step] = copied(module.state_dict())


def test_lightning_goes_on_beside_the_copy(cluster: str, tmp_path: Path) -> None:
    remember, io = Remember(), CkptIO(f"{cluster}/lightning-overlap", staging="overlap")
    trainer = Trainer(
        max_epochs=1, accelerator="cpu", plugins=[io], logger=False, default_root_dir=tmp_path,
        callbacks=[remember, ModelCheckpoint(tmp_path, every_n_train_steps=1, save_top_k=-1)],
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Net(), DataLoader(TensorDataset(torch.ones(STEPS, 256))))
    with ckpt.open(cluster) as store:
        for step, wanted in remember.states.items():
            whole: Any = store.load("lightning-overlap", step, whole=True)
            check_equal(whole["state_dict"], wanted)
    assert sorted(remember.states) == list(range(1, STEPS + 1))
    with pytest.raises(ckpt.Refused, match="staging='never'"):
        CkptIO(f"{cluster}/lightning-overlap", staging="never")


class Sentences(Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": torch.tensor([index + 1, 2, 3]), "labels": index % 2}


class Notice(TrainerCallback):
    """What the model was after each step, and what was under way when it changed."""

    def __init__(self) -> None:
        self.states: dict[int, dict[str, torch.Tensor]] = {}

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.states[state.global_step] = copied(kwargs["model"].state_dict())


def test_hugging_face_goes_on_beside_the_copy(cluster: str, tmp_path: Path) -> None:
    small = BertConfig(
        vocab_size=16, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=8,
    )  # fmt: skip
    notice, run = Notice(), f"{cluster}/hf-overlap"
    HuggingFaceTrainer(
        BertForSequenceClassification(small),
        TrainingArguments(
            str(tmp_path), max_steps=STEPS, per_device_train_batch_size=1, use_cpu=True,
            save_strategy="no", report_to=[], disable_tqdm=True,
        ),
        train_dataset=Sentences(),
        callbacks=[notice, CkptCallback(run, every=1, staging="overlap")],
    ).train()  # fmt: skip
    for step, wanted in notice.states.items():
        found = {"model": copied(wanted)}
        ckpt_torch.load(found, checkpoint_id=f"{run}/{step}")
        check_equal(found["model"], wanted)
    assert sorted(notice.states) == list(range(1, STEPS + 1))
    assert not list(stagings_under_way())
