"""A signal ends trainings under torchrun, Hugging Face and Lightning with a saved step.

The page's own command starts cold, at each landing for one of its two signals; what imports Hugging
Face or Lightning as well starts warm.
"""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

import ckpt
from tests.e2e.preempted import (
    PAGE,
    WAIT_S,
    ends,
    start,
    steps_said,
    wait_until_it_trains,
    write_script,
)
from tests.frameworks.test_torch_restarts import TORCHRUN as AGENT
from tests.frameworks.test_torch_restarts import under_torchrun
from tests.frameworks.warm import Warm
from tests.landing import has_turn, in_turn

TORCHRUN = (
    "torchrun --nproc-per-node 8 --shutdown-timeout 120"
    " --signals-to-handle SIGTERM,SIGINT,SIGUSR1 train.py"
)


def ranks_end(agent: subprocess.Popen[str]) -> list[int]:
    """The steps at which torchrun's ranks end; it fails, with 1 or by torch's abort at its exit."""
    out, _ = agent.communicate(timeout=WAIT_S)
    assert agent.returncode in (1, -signal.SIGABRT), out
    return steps_said(out)


def latest(cluster: str, run: str) -> int | None:
    with ckpt.open(cluster) as store:
        return store.latest(run)


@pytest.mark.parametrize(("number", "turn"), [(signal.SIGTERM, 0), (signal.SIGUSR1, 1)])
def test_torchrun_passes_a_signal_on_and_all_ranks_end_with_one_step(
    cluster: str, warm: Warm, tmp_path: Path, number: signal.Signals, turn: int
) -> None:
    assert TORCHRUN in PAGE.read_text()
    write_script(tmp_path)
    line = TORCHRUN.replace("8", "2 --standalone").split()
    if not has_turn(turn, every=2):
        line = warm.command(AGENT, *line[1:])
    resumes_at = latest(cluster, "gpt") or 0
    agent = start(cluster, tmp_path, *line, SPEAKS_AT=str(resumes_at + 20))
    try:
        wait_until_it_trains(agent, ranks=2)
        agent.send_signal(number)
        assert ranks_end(agent) == [latest(cluster, "gpt")] * 2
    finally:
        agent.terminate()
        agent.communicate()


NAMES = """
import os, sys, torch
from torch.utils.data import DataLoader, Dataset

run, folder = sys.argv[1:]

def say(line):  # At once: ranks have one stdout.
    os.write(1, f"{line}\\n".encode())

class Many(Dataset):
    asked = 0

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        self.asked += 1
        if self.asked == 40:
            say("trains")
        return self.item

"""
TRANSFORMERS = """
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from ckpt_torch.transformers import CkptCallback, fetch

ids = torch.arange(8)
Many.item = {"input_ids": ids, "labels": ids}
trainer = Trainer(
    model=GPT2LMHeadModel(GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=1)),
    args=TrainingArguments(
        output_dir=folder, max_steps=100_000, per_device_train_batch_size=1, save_strategy="no",
        report_to=[], disable_tqdm=True, use_cpu=True,
    ),
    train_dataset=Many(),
    callbacks=[CkptCallback(run, every=1_000_000, grace_s=60)],
)
trainer.train()
step = trainer.state.global_step
resumed = int(fetch(run, folder).rpartition("-")[2])
say(f"ended at {step} {resumed}")
"""
LIGHTNING = """
from lightning.pytorch import LightningModule, Trainer
from ckpt_torch.lightning import CkptIO, CkptPreemption, load

Many.item = torch.ones(4)

class Small(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 3)

    def training_step(self, batch, index):
        return self.net(batch).square().mean()

    def validation_step(self, batch, index):
        raise AssertionError("no time for that")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

ranks = int(os.environ.get("WORLD_SIZE", "1"))
trainer = Trainer(
    min_epochs=2, max_steps=100_000, accelerator="cpu", devices=ranks, logger=False,
    num_sanity_val_steps=0, enable_progress_bar=False, enable_model_summary=False,
    enable_checkpointing=False, default_root_dir=folder,
    plugins=[CkptIO(run)], callbacks=[CkptPreemption(run, grace_s=60)],
)
trainer.fit(Small(), DataLoader(Many()), DataLoader(Many()))
saved = trainer.global_step
if trainer.is_global_zero:  # It saves for all, and knows when that is committed.
    saved = load(run, "preempted.ckpt")["global_step"]
say(f"ended at {trainer.global_step} {saved}")
"""


@pytest.mark.parametrize("script", [TRANSFORMERS, LIGHTNING], ids=["transformers", "lightning"])
def test_a_signal_ends_a_training_with_a_saved_step(
    cluster: str, warm: Warm, tmp_path: Path, script: str
) -> None:
    fit = tmp_path / "fit.py"
    fit.write_text(NAMES + script)
    run = tmp_path.name
    process = start(cluster, tmp_path, *warm.command(fit, f"{cluster}/{run}", str(tmp_path)))
    try:
        wait_until_it_trains(process)
        process.send_signal(signal.SIGTERM)
        assert ends(process) == [latest(cluster, run)]
    finally:
        process.kill()


@pytest.mark.parametrize(
    "script",
    in_turn([TRANSFORMERS, LIGHTNING], every=2),
    ids=["transformers", "lightning"],
)
def test_all_ranks_under_torchrun_end_with_one_saved_step(
    cluster: str, warm: Warm, tmp_path: Path, script: str
) -> None:
    fit = tmp_path / "fit.py"
    fit.write_text(NAMES + script)
    run = tmp_path.name
    _, *agent, _ = TORCHRUN.replace("8", "2 --standalone").split()
    line = under_torchrun(warm, agent, fit, [f"{cluster}/{run}", str(tmp_path)])
    process = start(cluster, tmp_path, *line)
    try:
        wait_until_it_trains(process, ranks=2)
        process.send_signal(signal.SIGTERM)
        assert ranks_end(process) == [latest(cluster, run)] * 2
    finally:
        process.terminate()  # Not killed: its ranks would stay.
        process.communicate()
