"""What the README and docs/start.md show of frameworks is run, word for word: a training that
begins, and the same one that goes on. The names that a user's script has are given here.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from lightning.pytorch import LightningModule
from lightning.pytorch import Trainer as LightningTrainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import ckpt
import ckpt_torch
from tests.client.test_operations import shell
from tests.frameworks.gloo import Ranks
from tests.frameworks.test_torch_save import whole
from tests.frameworks.warm import Warm
from tests.pages import README, START, examples, run_examples, sessions

EVERY = 2


def steps(cluster: str, run: str) -> list[int]:
    with ckpt.open(cluster) as store:
        return [commit.step for commit in store.steps(run)]


def loop_job(until: int) -> tuple[list[int], Any]:
    """The steps that the page's loop took, and the whole weights behind them."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(8, 13), torch.nn.ReLU(), torch.nn.Linear(13, 4))
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    taken: list[int] = []
    space: dict[str, Any] = {}

    def train_one_step() -> None:
        # The same batch on all ranks, so that their number makes no difference.
        batch = torch.randn(16, 8, generator=torch.Generator().manual_seed(7))
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        taken.append(len(taken))

    space = {"model": model, "optimizer": optimizer, "dist": dist, "steps": until, "every": EVERY}
    (after,) = run_examples(README, "torch", space | {"train_one_step": train_one_step})
    assert after["step"] == until
    return taken, whole(dict(model.state_dict()))


def test_the_loop_goes_on_under_another_number_of_ranks(cluster: str, ranks: Ranks) -> None:
    environ = {"CKPT_STORE": cluster}
    first = ranks.run(4, loop_job, 4, environ=environ)
    assert [len(taken) for taken, _ in first] == [4] * 4
    second = ranks.run(2, loop_job, 6, environ=environ)
    assert [len(taken) for taken, _ in second] == [2] * 2
    assert steps(cluster, "gpt") == [2, 4, 6]
    # Without a step to take, the weights are those that were loaded: of the last step there is.
    again = ranks.run(4, loop_job, 6, environ=environ)
    assert [len(taken) for taken, _ in again] == [0] * 4
    assert again[0][1] == second[0][1] != first[0][1]


def test_the_start_page_goes_on_after_each_kill(warm: Warm, tmp_path: Path) -> None:
    """The trainer that is killed starts as a user's does, those that go on after it start warm."""
    ((script, _),) = examples(START, "start")
    (_, *lines) = sessions(START.read_text())
    with shell(tmp_path) as opened:
        (tmp_path / "scratch" / "train.py").write_text(script)
        opened.run(lines[0][0])
        opened.python(examples(START, "core")[0][0])
        for line, printed in lines[1:]:
            assert opened.run(line) == printed or not printed, line
            if "DIE_AT" in line:
                folders = warm.interpreter(tmp_path).parent, Path(sys.executable).parent
                opened.run(f"export PATH='{':'.join(map(str, folders))}:{os.environ['PATH']}'")


class Emptying:
    """torch's own; what was saved is zero afterwards, so that what is there then was loaded."""

    load = staticmethod(dcp.load)

    @staticmethod
    def save(state: dict[str, Any], **more: Any) -> None:
        dcp.save(state, **more)
        for tensor in state["model"].values():
            tensor.zero_()


def dcp_job() -> None:
    torch.manual_seed(4)
    model = fully_shard(torch.nn.Linear(8, 13))
    state = {"model": model.state_dict()}
    saved = model.weight.full_tensor().clone()
    names = {"ckpt_torch": ckpt_torch, "dcp": Emptying, "state": state, "step": 5}
    run_examples(README, "dcp", names)
    assert torch.equal(model.weight.full_tensor(), saved)


def test_dcp_writes_and_reads_with_one_argument_more(cluster: str, ranks: Ranks) -> None:
    ranks.run(2, dcp_job, environ={"CKPT_STORE": cluster})
    assert steps(cluster, "gpt-dcp") == [5]


class Classifier(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(4, 3)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


@pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers")
@pytest.mark.filterwarnings("ignore:.*litlogger.*")
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
def test_lightning_goes_on_from_the_newest_step(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CKPT_STORE", cluster)
    begun = []
    for resume, until in ((None, 100), ("mlp", 200)):
        trainer = partial(
            LightningTrainer,
            max_steps=until,
            accelerator="cpu",
            default_root_dir=tmp_path,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        names = {"Trainer": trainer, "ModelCheckpoint": ModelCheckpoint, "resume": resume}
        data = DataLoader(TensorDataset(torch.ones(50, 4)), batch_size=1)
        model = Classifier()
        monkeypatch.setattr(
            model, "on_train_start", lambda model=model: begun.append(model.global_step)
        )
        run_examples(README, "lightning", names | {"model": model, "data": data})
    assert begun == [0, 100]
    assert steps(cluster, "mlp") == [200]  # Lightning deletes what it does not keep.


class Text(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.arange(8)
        return {"input_ids": ids, "labels": ids}


def test_the_trainer_of_hugging_face_goes_on_from_the_newest_step(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CKPT_STORE", cluster)
    config = GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=1)
    for until, began in ((100, 0), (200, 100)):
        arguments = partial(
            TrainingArguments,
            max_steps=until,
            per_device_train_batch_size=1,
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        names = {"TrainingArguments": arguments, "Trainer": Trainer, "data": Text()}
        model = GPT2LMHeadModel(config)
        (after,) = run_examples(
            README, "transformers", names | {"model": model, "output_dir": str(tmp_path)}
        )
        trainer: Any = after["trainer"]
        assert trainer.state.global_step == until
        assert (tmp_path / "checkpoint-100").exists() == (began == 100)
    assert steps(cluster, "bert") == [100, 200]


def test_jax_restores_what_its_manager_saved(cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Here, since each of the ranks above would import it with this module.
    import jax
    import jax.numpy as jnp

    import ckpt_jax

    monkeypatch.setenv("CKPT_STORE", cluster)
    saved = {"w": jnp.arange(12.0).reshape(3, 4), "count": jnp.int32(4)}
    for step, state in ((4, saved), (5, jax.tree.map(jnp.zeros_like, saved))):
        names = {"ckpt_jax": ckpt_jax, "state": state, "step": step}
        (after,) = run_examples(README, "jax", names)
        restored: Any = after["state"]
        assert np.array_equal(restored["w"], saved["w"])
    assert steps(cluster, "line") == [4, 5]
