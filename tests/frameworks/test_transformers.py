"""Hugging Face's Trainer: the last step is saved however a training ends; a full disk is left as
it was; a fetched folder is of the generation that was asked for.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.trainer_pt_utils import safe_globals, set_rng_state_for_device

import ckpt
import ckpt_torch
from ckpt_torch.place import Who
from ckpt_torch.staging.known import recall
from ckpt_torch.transformers import CkptCallback, fetch, from_pretrained, save_pretrained
from ckpt_torch.transformers.random_states import random_states
from tests.frameworks.warm import Warm

FETCH_WITH_SMALL_FILES = """
import resource, sys
from ckpt_torch.transformers import fetch
resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
fetch(*sys.argv[1:])
"""
FETCH_AND_DIE = """
import os, signal, sys
from ckpt_torch.transformers import folder
folder.save_file = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
folder.fetch(*sys.argv[1:])
"""

CONFIG = GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=1)


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


class IsReady(TrainerCallback):
    """Notes after which steps this process is ready for saves."""

    def __init__(self, store: ckpt.Store) -> None:
        self.store, self.steps = store, list[int]()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if recall(self.store, Who(0, 1, None, False)) is not None:
            self.steps.append(state.global_step)


@pytest.mark.parametrize(("every", "ready_at"), [(3, [1, 2, 3, 4]), (1, [1, 2, 3, 4]), (4, [4])])
def test_a_training_is_ready_for_its_first_save_after_its_first_step(
    cluster: str, tmp_path: Path, every: int, ready_at: list[int]
) -> None:
    """But where only the last step is saved: a second save's memory is not needed."""
    run = f"hf-ready-{every}"
    with ckpt.open(cluster, launch=run) as store:
        looks = IsReady(store)
        training(tmp_path, 4, [CkptCallback(run, every=every, store=store), looks]).train()
        assert looks.steps == ready_at
        assert [commit.step for commit in store.steps(run)][-1] == 4


def test_what_cannot_be_made_ready_is_in_the_log_and_the_training_goes_on(
    cluster: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = "hf-odd"
    with ckpt.open(cluster, launch=run) as store:
        odd = training(tmp_path, 4, [CkptCallback(run, every=3, store=store), Odd()])
        odd.train()
        assert [commit.step for commit in store.steps(run)] == [3, 4]
    assert [r.getMessage() for r in caplog.records if "is not prepared" in r.getMessage()]


class Odd(TrainerCallback):
    """The optimizer's state holds what no store takes, until the second step."""

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        kwargs["optimizer"].param_groups[0]["odd"] = object() if state.global_step < 1 else 1


def training(folder: Path, steps: int, callbacks: list[TrainerCallback]) -> Trainer:
    return Trainer(
        model=GPT2LMHeadModel(CONFIG),
        args=TrainingArguments(
            output_dir=str(folder), max_steps=steps, per_device_train_batch_size=1,
            save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True,
        ),
        train_dataset=Text(),
        callbacks=callbacks,
    )  # fmt: skip


def trained(run: str, folder: Path, stop: int, resumed: str | None = None) -> None:
    callbacks = [CkptCallback(run, every=2), StopEarly(stop)]
    training(folder, 9, callbacks).train(resume_from_checkpoint=resumed)


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


def test_a_training_with_a_gradient_scaler_goes_on_with_the_scale_that_it_had(
    cluster: str, tmp_path: Path
) -> None:
    """As one in float16 has it: began at its first scale, the next steps would be other ones."""

    def scaled(name: str, steps: int, resumed: str | None = None) -> dict[str, Any]:
        callback = CkptCallback(f"{cluster}/hf/{name}", every=3)
        trainer = training(tmp_path / name, steps, [callback])
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=4)
        trainer.accelerator.scaler = scaler
        trainer.train(resume_from_checkpoint=resumed)
        return scaler.state_dict()

    straight, half = scaled("straight", 6), scaled("half", 3)
    assert (straight["scale"], straight["_growth_tracker"], half["scale"]) == (128.0, 2, 64.0)
    folder = fetch(f"{cluster}/hf/half", tmp_path / "fetched")
    assert scaled("half", 6, folder) == straight


class Devices:
    """Two devices' generators, with the calls of `torch.cuda.random`; the second is this rank's."""

    def __init__(self, seed: int) -> None:
        self.each = [torch.Generator().manual_seed(seed + n) for n in range(2)]

    def get_rng_state(self) -> torch.Tensor:
        return self.each[1].get_state()

    def get_rng_state_all(self) -> list[torch.Tensor]:
        return [one.get_state() for one in self.each]

    def set_rng_state(self, state: torch.Tensor) -> None:
        self.each[1].set_state(state)

    def set_rng_state_all(self, states: list[torch.Tensor]) -> None:
        for one, state in zip(self.each, states, strict=True):
            one.set_state(state)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_rank_s_devices_draw_what_they_would_have_drawn(
    cluster: str, tmp_path: Path, ranks: int
) -> None:
    """The Trainer logs an error for states that it cannot give back, and goes on with others."""
    name, was, now = f"{cluster}/hf-random-{ranks}/1", Devices(5), Devices(90)
    kept = random_states(was, of_all=ranks > 1)
    state = {"model": {}, "optimizer": {}, "trainer_state": "{}"}
    ckpt_torch.save({**state, "rng": {str(n): kept for n in range(ranks)}}, checkpoint_id=name)
    folder = fetch(name, tmp_path)
    assert folder is not None
    file = Path(folder) / ("rng_state.pth" if ranks == 1 else "rng_state_1.pth")
    with safe_globals():
        found = torch.load(file, weights_only=True)
    set_rng_state_for_device("CUDA", SimpleNamespace(random=now), found, ranks > 1)
    for mine, theirs in list(zip(now.each, was.each, strict=True))[2 - ranks :]:
        assert torch.equal(torch.rand(9, generator=mine), torch.rand(9, generator=theirs))


@pytest.mark.parametrize("kind", [AutoModelForCausalLM, GPT2LMHeadModel])
def test_a_trained_model_comes_back_for_use_without_a_folder(
    cluster: str, stopped: str, kind: Any
) -> None:
    model = from_pretrained(kind, f"{cluster}/{stopped}")
    with ckpt.open(cluster) as store:
        saved: Any = store.load(stopped, 3, whole=True)
    assert isinstance(model, GPT2LMHeadModel)
    assert not model.training
    for name, value in model.state_dict().items():
        assert value.numpy().tobytes() == saved["model"][name].tobytes(), name
    older = from_pretrained(kind, f"{cluster}/{stopped}/2")
    assert not torch.equal(older.lm_head.weight, model.lm_head.weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_is_saved_and_comes_back_bit_for_bit(
    cluster: str, tmp_path: Path, dtype: torch.dtype
) -> None:
    model = GPT2LMHeadModel(CONFIG).to(dtype)
    name = f"{cluster}/tuned-{dtype}"
    saved = save_pretrained(model, f"{name}/7", metrics={"accuracy": 0.5})
    assert (saved.step, saved.metrics) == (7, {"accuracy": 0.5})
    again = from_pretrained(AutoModelForCausalLM, name)
    told = {"dtype": str(dtype).removeprefix("torch."), "_name_or_path": name}
    assert again.config.to_dict() == {**model.config.to_dict(), **told}
    for key, value in model.state_dict().items():
        assert again.state_dict()[key].dtype == dtype
        assert torch.equal(again.state_dict()[key], value), key
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning")
def test_a_compiled_model_comes_back_as_the_one_in_it(cluster: str) -> None:
    """torch.compile puts `_orig_mod.` before the names of its weights."""
    model = GPT2LMHeadModel(CONFIG)
    model.transformer.h[0] = torch.compile(model.transformer.h[0])
    save_pretrained(torch.compile(model), f"{cluster}/compiled/7")
    again = from_pretrained(AutoModelForCausalLM, f"{cluster}/compiled")
    plain = {name.replace("_orig_mod.", ""): value for name, value in model.state_dict().items()}
    assert again.state_dict().keys() == plain.keys()
    for name, value in again.state_dict().items():
        assert torch.equal(value, plain[name]), name


def test_weights_of_which_the_model_knows_no_name_are_refused(cluster: str) -> None:
    """As those of a PEFT model or under DDP are; the library would fill a model at random."""
    model = torch.nn.Module()
    model.config, model.base_model = CONFIG, GPT2LMHeadModel(CONFIG)
    save_pretrained(model, f"{cluster}/wrapped/7")
    with pytest.raises(
        ckpt.Refused, match=r"no weight of a GPT2LMHeadModel.* base_model\."
    ) as error:
        from_pretrained(AutoModelForCausalLM, f"{cluster}/wrapped")
    assert "ckpt_torch.load" in error.value.hint


def test_what_holds_no_model_or_no_configuration_is_refused_by_name(cluster: str) -> None:
    with ckpt.open(cluster) as store:
        store.save("plain", 1, {"x": 1}).wait(60.0)
        store.save("bare", 1, {"model": {"w": torch.ones(2).numpy()}}).wait(60.0)
    with pytest.raises(ckpt.Refused, match="plain holds no model"):
        from_pretrained(AutoModelForCausalLM, f"{cluster}/plain")
    with pytest.raises(ckpt.Refused, match="bare was saved without a configuration"):
        from_pretrained(AutoModelForCausalLM, f"{cluster}/bare")


def test_an_output_dir_that_is_a_url_is_refused_with_what_to_write(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ckpt.Refused, match="would become a folder") as refused:
        trained(f"{cluster}/hf/url", Path("ckpt:/10.0.0.1:7070/run"), 1)
    assert "CkptCallback" in refused.value.hint
    with pytest.raises(ckpt.Refused, match="would become a folder"):
        fetch(f"{cluster}/hf/url", "ckpt://10.0.0.1:7070/run")


def test_a_folder_that_cannot_be_written_whole_leaves_nothing(
    cluster: str, stopped: str, warm: Warm, tmp_path: Path
) -> None:
    script, folder = tmp_path / "fetch.py", tmp_path / "folder"
    script.write_text(FETCH_WITH_SMALL_FILES)
    folder.mkdir()
    command = warm.command(script, f"{cluster}/{stopped}", str(folder))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert list(folder.iterdir()) == []


def test_a_folder_of_another_generation_or_run_is_replaced(
    cluster: str, stopped: str, tmp_path: Path
) -> None:
    first = Path(fetch(f"{cluster}/{stopped}", tmp_path) or "")
    kept = (first / "ckpt.json").stat().st_ino
    assert fetch(f"{cluster}/{stopped}", tmp_path) == str(first)
    assert (first / "ckpt.json").stat().st_ino == kept
    before = (first / "model.safetensors").read_bytes()
    with ckpt.open(cluster) as store:
        store.delete(stopped, 3)
    torch.manual_seed(1)
    trained(f"{cluster}/{stopped}", tmp_path, 3)
    assert fetch(f"{cluster}/{stopped}", tmp_path) == str(first)
    again = (first / "model.safetensors").read_bytes()
    torch.manual_seed(2)
    trained(f"{cluster}/{stopped}-other", tmp_path, 3)
    assert fetch(f"{cluster}/{stopped}-other", tmp_path) == str(first)
    other = (first / "model.safetensors").read_bytes()
    assert len({before, again, other}) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-3"]


def test_a_folder_that_somebody_else_made_is_refused_and_stays(
    cluster: str, stopped: str, tmp_path: Path
) -> None:
    theirs = tmp_path / "checkpoint-3" / "model.safetensors"
    theirs.parent.mkdir()
    theirs.write_text("precious")
    with pytest.raises(ckpt.Refused, match=r"checkpoint-3 is there, and was not made of .*@3#"):
        fetch(f"{cluster}/{stopped}", tmp_path)
    assert theirs.read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-3"]


def test_what_a_killed_fetch_left_goes_with_the_next_one_and_what_is_written_stays(
    cluster: str, stopped: str, warm: Warm, tmp_path: Path
) -> None:
    script, folder = tmp_path / "fetch.py", tmp_path / "folder"
    script.write_text(FETCH_AND_DIE)
    folder.mkdir()
    command = warm.command(script, f"{cluster}/{stopped}", str(folder))
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    (left,) = folder.glob(".checkpoint-3-*")
    lock = os.open(left, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    fetch(f"{cluster}/{stopped}", folder)
    assert left.exists()
    os.close(lock)
    fetch(f"{cluster}/{stopped}", folder)
    assert [path.name for path in folder.iterdir()] == ["checkpoint-3"]
