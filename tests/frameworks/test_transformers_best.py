"""`save_total_limit` and `load_best_model_at_end` act on the store as the Trainer acts on folders:
beside each training with a CkptCallback runs one of the Trainer's own.
"""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset
from transformers import (
    EarlyStoppingCallback,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)

import ckpt
from ckpt_torch.transformers import CkptCallback, fetch
from tests.frameworks.test_torch_restarts import under_torchrun
from tests.frameworks.warm import Warm
from tests.landing import in_turn

CONFIG = GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=1)
NAN = float("nan")


class Text(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = (torch.arange(8) + index) % 16
        return {"input_ids": ids, "labels": ids}


class StopEarly(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop |= state.global_step >= self.step


class Counted(GPT2LMHeadModel):
    """It counts its passes; its state holds them as a tensor that is new each time. It has running
    means as well, of what each rank sees.
    """

    def __init__(self, config: GPT2Config) -> None:
        super().__init__(config)
        self.passes = 0
        self.norm = torch.nn.BatchNorm1d(3, affine=False)
        self.register_forward_pre_hook(self.count)

    def count(self, *_: Any) -> None:
        self.passes += 1
        self.norm(torch.arange(6.0).view(2, 3) + int(os.environ.get("RANK", "0")))

    def get_extra_state(self) -> torch.Tensor:
        return torch.tensor(self.passes)

    def set_extra_state(self, state: torch.Tensor) -> None:
        self.passes = int(state)


@dataclass
class Trained:
    """How a training ended."""

    best: str | None
    weights: dict[str, torch.Tensor]
    folders: list[int]


def trained(
    folder: Path, scores: Sequence[float], *callbacks: Any, resumed: str | None = None, **told: Any
) -> Trained:
    """Its evaluations give these scores; it has dropout, and each step changes its rate."""
    set_seed(5)
    left: Iterator[float] = iter(scores)
    options = {
        "max_steps": 2 * len(scores), "eval_strategy": "steps", "eval_steps": 2,
        "save_strategy": "steps", "save_steps": 2, "metric_for_best_model": "score",
        "load_best_model_at_end": True, **told,
    }  # fmt: skip
    trainer = Trainer(
        model=Counted(CONFIG),
        args=TrainingArguments(
            output_dir=str(folder), per_device_train_batch_size=1, learning_rate=0.01,
            report_to=[], disable_tqdm=True, use_cpu=True, **options,
        ),
        train_dataset=Text(),
        eval_dataset=Text(),
        compute_metrics=lambda _: {"score": next(left), "name": "text"},
        callbacks=list(callbacks),
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=resumed)
    weights = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    return Trained(trainer.state.best_model_checkpoint, weights, folders(folder))


def folders(folder: Path) -> list[int]:
    return sorted(int(path.name.rpartition("-")[2]) for path in folder.glob("checkpoint-*"))


def steps(cluster: str, run: str) -> list[int]:
    with ckpt.open(cluster) as store:
        return [commit.step for commit in store.steps(run)]


def equal(one: Trained, other: Trained) -> bool:
    return all(torch.equal(value, other.weights[name]) for name, value in one.weights.items())


@pytest.mark.parametrize(
    ("limit", "scores"),
    in_turn(
        [
            (2, [0.1, 0.9, 0.3, 0.2, 0.5]),
            (3, [0.9, 0.1, 0.9, 0.2, 0.3]),
            (3, [0.9, 0.1, 0.2, 0.95, 0.3]),
            (2, [0.1, 0.2, 0.3]),
            (2, [NAN, 0.4, NAN, NAN]),
            (None, [0.1, 0.9, 0.3]),
        ],
        every=2,
    ),
)
def test_the_store_keeps_what_the_trainer_keeps_and_gives_the_best_step_at_the_end(
    cluster: str, tmp_path: Path, limit: int | None, scores: list[float]
) -> None:
    theirs = trained(tmp_path / "theirs", scores, save_total_limit=limit)
    run = f"best/{secrets.token_hex(4)}"
    callback = CkptCallback(f"{cluster}/{run}")
    ours = trained(tmp_path / "ours", scores, callback, save_total_limit=limit)
    assert steps(cluster, run) == theirs.folders
    assert ours.folders == []
    assert theirs.best is not None
    assert ours.best == f"{cluster}/{run}/{theirs.best.rpartition('-')[2]}"
    assert equal(ours, theirs)


def test_of_a_limit_of_one_the_newest_stays_beside_the_best(cluster: str, tmp_path: Path) -> None:
    scores = [0.1, 0.9, 0.3]
    theirs = trained(tmp_path / "theirs", scores, save_total_limit=1)
    run = "best/one"
    ours = trained(tmp_path / "ours", scores, CkptCallback(f"{cluster}/{run}"), save_total_limit=1)
    assert theirs.folders == [4]
    assert steps(cluster, run) == [4, 6]
    assert equal(ours, theirs)


def test_a_training_that_goes_on_knows_its_best_step_and_changes_no_bit(
    cluster: str, tmp_path: Path
) -> None:
    scores = [0.1, 0.9, 0.3, 0.2, 0.5, 0.4]
    straight = trained(tmp_path / "theirs", scores, load_best_model_at_end=False)
    assert straight.folders == [2, 4, 6, 8, 10, 12]
    run = f"{cluster}/best/resumed"
    told = {"save_total_limit": 2, "max_steps": 12, "load_best_model_at_end": False}
    trained(tmp_path / "a", scores[:3], CkptCallback(run), StopEarly(7), **told)
    folder = fetch(run, tmp_path)
    assert folder == str(tmp_path / "checkpoint-6")
    ours = trained(tmp_path / "b", scores[3:], CkptCallback(run), resumed=folder, **told)
    assert equal(ours, straight)
    assert steps(cluster, "best/resumed") == [4, 12]
    best = trained(
        tmp_path / "c", [0.6], CkptCallback(run), resumed=fetch(run, tmp_path),
        max_steps=14, save_total_limit=2,
    )  # fmt: skip
    assert best.best == f"{run}/4"
    with ckpt.open(cluster) as store:
        saved: Any = store.load("best/resumed", 4, whole=True)
        metrics = {commit.step: commit.metrics for commit in store.steps("best/resumed")}
    for name, value in best.weights.items():
        assert value.numpy().tobytes() == saved["model"][name].tobytes(), name
    assert metrics[4]["eval_score"] == pytest.approx(0.9)
    assert metrics[4]["best_model"] == 4
    assert metrics[14]["eval_score"] == pytest.approx(0.6)
    assert not {"best_model", "eval_name"} & set(metrics[14])


def test_epochs_and_early_stopping_end_with_the_step_that_the_trainer_has(
    cluster: str, tmp_path: Path
) -> None:
    scores = [0.1, 0.9, 0.3, 0.2, 0.5]
    told = {
        "max_steps": -1, "num_train_epochs": 5, "eval_strategy": "epoch", "save_strategy": "epoch",
        "save_total_limit": 2,
    }  # fmt: skip
    theirs = trained(tmp_path / "theirs", scores, EarlyStoppingCallback(2), **told)
    callback = CkptCallback(f"{cluster}/best/epochs")
    ours = trained(tmp_path / "ours", scores, callback, EarlyStoppingCallback(2), **told)
    assert theirs.folders == [16, 32]
    assert (steps(cluster, "best/epochs"), ours.folders) == ([16, 32], [])
    assert equal(ours, theirs)


def test_with_every_the_limit_acts_and_what_is_evaluated_meanwhile_is_known(
    cluster: str, tmp_path: Path
) -> None:
    callback = CkptCallback(f"{cluster}/best/every", every=2)
    told = {"load_best_model_at_end": False, "save_strategy": "no", "save_total_limit": 2}
    trained(tmp_path, [0.1, 0.9, 0.3], callback, **told)
    with ckpt.open(cluster) as store:
        scores = {one.step: one.metrics["eval_score"] for one in store.steps("best/every")}
    assert scores == {4: pytest.approx(0.9), 6: pytest.approx(0.3)}


def test_a_training_below_the_steps_of_its_run_is_warned(cluster: str, tmp_path: Path) -> None:
    run = f"{cluster}/best/again"
    trained(tmp_path / "a", [0.1, 0.2], CkptCallback(run), save_total_limit=2)
    with pytest.warns(UserWarning, match="has steps up to 4, and this training begins at 0"):
        trained(tmp_path / "b", [0.1], CkptCallback(run), save_total_limit=2)


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"save_strategy": "no", "load_best_model_at_end": False}, "'no'"),
        ({"save_strategy": "best"}, "'best' writes a folder"),
        ({"push_to_hub": True}, "push_to_hub pushes the Trainer's own folders"),
    ],
)
def test_what_leaves_no_saving_to_the_callback_is_refused(
    cluster: str, tmp_path: Path, told: dict[str, Any], why: str
) -> None:
    arguments = TrainingArguments(
        str(tmp_path), use_cpu=True, report_to=[],
        **{"save_strategy": "steps", "eval_strategy": "steps", **told},
    )  # fmt: skip
    trainer = CkptCallback(f"{cluster}/best/refused")
    with pytest.raises(ckpt.Refused, match=why) as refused:
        trainer.on_init_end(arguments, TrainerState(), TrainerControl())
    assert refused.value.hint


@pytest.mark.parametrize("every", [None, 2])
def test_callbacks_that_would_be_as_the_training_began_are_refused_by_name(
    cluster: str, tmp_path: Path, every: int | None
) -> None:
    """Early stopping came back with all its patience: the Trainer shows no callback another one."""
    run, back = f"{cluster}/best/patience", {"restore_callback_states_from_checkpoint": True}
    saves = {"save_strategy": "steps" if every is None else "no", "load_best_model_at_end": False}
    ours = CkptCallback(run, every=every)
    with pytest.raises(ckpt.Refused, match="EarlyStoppingCallback would be as when the training"):
        trained(tmp_path, [0.9], ours, EarlyStoppingCallback(3), **saves, **back)
    trained(tmp_path, [0.9], ours, **saves, **back)
    assert steps(cluster, "best/patience") == [2]


RANKS_SCRIPT = """
import os, sys
from pathlib import Path
import torch.distributed as dist
from ckpt_torch.transformers import CkptCallback
from tests.frameworks.test_transformers_best import trained

run, folder = sys.argv[1:]
ended = trained(Path(folder), [0.1, 0.9, 0.3, 0.2], CkptCallback(run), save_total_limit=2)
names = ("lm_head.weight", "norm.running_mean")
weight = "".join(ended.weights[name].numpy().tobytes().hex() for name in names)
os.write(1, f"{dist.get_rank()} of {dist.get_world_size()} {ended.best} {weight}\\n".encode())
"""


def test_all_ranks_end_with_the_best_step(cluster: str, tmp_path: Path, warm: Warm) -> None:
    script, run = tmp_path / "fit.py", f"{cluster}/best/ranks"
    script.write_text(RANKS_SCRIPT)
    agent = ["--standalone", "--nproc-per-node", "2"]
    command = under_torchrun(warm, agent, script, [run, str(tmp_path / "out")])
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    assert done.returncode == 0, done.stderr
    with ckpt.open(cluster) as store:
        kept = [commit.step for commit in store.steps("best/ranks")]
        saved: Any = store.load("best/ranks", 4, whole=True)
    model = saved["model"]
    weight = (model["lm_head.weight"].tobytes() + model["norm.running_mean"].tobytes()).hex()
    said = sorted(line for line in done.stdout.splitlines() if " of 2 " in line)
    assert said == [f"{rank} of 2 {run}/4 {weight}" for rank in range(2)]
    assert (kept, folders(tmp_path / "out")) == ([4, 8], [])
