"""Hugging Face's Trainer: the last step is saved however a training ends; a full disk is left as
it was.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import ckpt
from ckpt_torch.transformers import CkptCallback, fetch

FETCH_WITH_SMALL_FILES = """
import resource, sys
from ckpt_torch.transformers import fetch
resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
fetch(*sys.argv[1:])
"""


class Text(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.arange(8)
        return {"input_ids": ids, "labels": ids}


class StopEarly(TrainerCallback):
    """As early stopping does: after the step's own callbacks."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop |= state.global_step >= self.step


def trained(run: str, folder: Path, stop: int, resumed: str | None = None) -> None:
    config = GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=1)
    Trainer(
        model=GPT2LMHeadModel(config),
        args=TrainingArguments(
            output_dir=str(folder),
            max_steps=9,
            per_device_train_batch_size=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=Text(),
        callbacks=[CkptCallback(run, every=2), StopEarly(stop)],
    ).train(resume_from_checkpoint=resumed)


@pytest.fixture
def stopped(cluster: str, tmp_path: Path) -> str:
    """A run whose training was stopped between two saves."""
    run = f"hf/{tmp_path.name}"
    trained(f"{cluster}/{run}", tmp_path, 3)
    return run


def steps(cluster: str, run: str) -> list[int]:
    with ckpt.open(cluster) as store:
        return [commit.step for commit in store.steps(run)]


def test_a_training_that_stops_early_has_its_last_step_and_goes_on_from_it(
    cluster: str, stopped: str, tmp_path: Path
) -> None:
    assert steps(cluster, stopped) == [2, 3]
    folder = fetch(f"{cluster}/{stopped}", tmp_path)
    assert folder == str(tmp_path / "checkpoint-3")
    trained(f"{cluster}/{stopped}", tmp_path, 5, resumed=folder)
    assert steps(cluster, stopped) == [2, 3, 4, 5]


def test_a_folder_that_cannot_be_written_whole_leaves_nothing(
    cluster: str, stopped: str, tmp_path: Path
) -> None:
    before = set(tmp_path.iterdir())
    command = (sys.executable, "-c", FETCH_WITH_SMALL_FILES, f"{cluster}/{stopped}", str(tmp_path))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert set(tmp_path.iterdir()) == before
