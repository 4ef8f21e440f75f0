"""Hugging Face's Trainer over a store: `CkptCallback` saves without a local copy; `fetch` resumes.

    Trainer(args=TrainingArguments(save_strategy="no", ...),
            callbacks=[CkptCallback("ckpt://10.0.0.1:7070/bert", every=100)])

    folder = fetch("ckpt://10.0.0.1:7070/bert", output_dir)     # None when there is nothing yet
    trainer.train(resume_from_checkpoint=folder)

    model = from_pretrained(AutoModelForCausalLM, "ckpt://10.0.0.1:7070/bert")   # for inference
    save_pretrained(model, "ckpt://10.0.0.1:7070/tuned/1")

The Trainer resumes from a folder of its own layout and from nothing else, so `fetch` writes one
from the newest committed step; nothing is written while training. A model needs no folder.
"""

from __future__ import annotations

import dataclasses
import json
import random
import re
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist

from ckpt.base.errors import NotFound, Refused
from ckpt.base.extras import needing
from ckpt_client.save.handle import Commit
from ckpt_client.store import Store
from ckpt_torch.fetched import put_folder
from ckpt_torch.place import find_guard, find_where
from ckpt_torch.saving import async_save, wait_for
from ckpt_torch.whole import whole_of

with needing("ckpt_torch.transformers"):
    from safetensors.torch import save_file
    from transformers import (
        AutoConfig,
        PreTrainedConfig,
        TrainerCallback,
        TrainerControl,
        TrainerState,
        TrainingArguments,
    )

if TYPE_CHECKING:
    from ckpt_client.preemption.guard import PreemptionGuard

Model = TypeVar("Model", bound=torch.nn.Module)


class CkptCallback(TrainerCallback):
    """I copy the training's state every so many steps; sending goes on beside the training.

    run: `ckpt://HOST:PORT/RUN`, `ckpt+local:///DIR/RUN`, or RUN in `store`, else in $CKPT_STORE's.
    every: how many steps lie between saves. The last step is saved as well, also of a training
        that stops early, unless the best weights took its place (`load_best_model_at_end`).
    check_finite: refuse a state with a tensor that holds NaN or infinity, by path.
    grace_s: how many seconds a process has from SIGTERM or SIGUSR1 to its kill. With it, all ranks
        end the training with one saved step once any of them gets such a signal
        (`Store.preemption`); without it signals do what they always did.
    """

    def __init__(
        self,
        run: str,
        *,
        every: int,
        store: Store | str | None = None,
        check_finite: bool = False,
        grace_s: float | None = None,
    ) -> None:
        self._run = run.rstrip("/")
        self._every = every
        self._store = store
        self._check_finite = check_finite
        self._grace_s = grace_s
        #: While a training runs that watches for signals.
        self._guard: PreemptionGuard | None = None
        self._saved_step = 0
        #: Saves that were handed over and are not known to be committed, oldest first.
        self._pending: list[Future[Commit]] = []

    def on_init_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Raises Refused for an output_dir that is a URL, which would become a folder here."""
        _check_is_folder(args.output_dir)

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Save when it is due, or when the training is to end. Raises Refused by path, and the
        error of an earlier save.
        """
        step = state.global_step
        preempted = self._guard is not None and self._guard.should_save(step)
        if preempted or step % self._every == 0 or step == state.max_steps:
            self._save(state, kwargs)
        if preempted:
            control.should_training_stop = True
        while self._pending and self._pending[0].done():
            self._pending.pop(0).result()

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Save the last step, and wait until everything is committed. Raises the first error."""
        if state.global_step > self._saved_step and not args.load_best_model_at_end:
            self._save(state, kwargs)
        self.wait()
        self._end_guard()

    def wait(self) -> None:
        """Until all saves are committed. Raises the first error."""
        wait_for(self._pending)

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """What it resumes from is saved. Raises Refused outside of the main thread, with
        `grace_s`.
        """
        self._saved_step = state.global_step
        self._end_guard()  # Of a training that raised.
        if self._grace_s is not None:
            self._guard = find_guard(self._run, self._store, self._grace_s)

    def _end_guard(self) -> None:
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.close()

    def _save(self, state: TrainerState, kwargs: dict[str, object]) -> None:
        model = cast(torch.nn.Module, kwargs["model"])
        optimizer = cast(torch.optim.Optimizer, kwargs["optimizer"])
        scheduler = cast(torch.optim.lr_scheduler.LRScheduler | None, kwargs.get("lr_scheduler"))
        rank = dist.get_rank() if dist.is_initialized() else 0
        inner = getattr(model, "module", model)
        held: dict[str, object] = {
            **_described(inner),
            "optimizer": optimizer.state_dict(),
            "rng": {str(rank): _random_states()},
        }
        if rank == 0:  # It says whose it is, so ranks differ; the Trainer writes this one alone.
            held["trainer_state"] = json.dumps(dataclasses.asdict(state), sort_keys=True)
        if scheduler is not None:
            held["scheduler"] = scheduler.state_dict()
        future = async_save(
            held,
            checkpoint_id=f"{self._run}/{state.global_step}",
            store=self._store,
            check_finite=self._check_finite,
        )
        self._pending.append(future)
        self._saved_step = state.global_step


def fetch(run: str, output_dir: str | Path, *, store: Store | str | None = None) -> str | None:
    """Write the newest committed step as a folder that `Trainer.train(resume_from_checkpoint=)`
    takes; returns its path, or None when nothing is committed.

    output_dir: where the folder `checkpoint-STEP` goes. One that was made of the same checkpoint
        stays, one that was made of another is replaced. Ranks may all call this: they get the
        same step.

    Raises Unavailable, Lost, and Refused for a folder of that name that somebody else made, and for
    an output_dir that is a URL.
    """
    _check_is_folder(output_dir)
    where = find_where(run, store)
    try:
        with where.store.resolve(where.run, where.step) as checkpoint:
            state = whole_of(checkpoint)
            info = checkpoint.info  # The same for all ranks of a launch.
    except NotFound:
        return None
    folder = Path(output_dir) / f"checkpoint-{info.checkpoint.step}"
    put_folder(folder, info, lambda aside: _write(state, aside))
    return str(folder)


def save_pretrained(
    model: torch.nn.Module, name: str, *, store: Store | str | None = None
) -> Commit:
    """Save a model and its configuration as a step, `ckpt://HOST:PORT/RUN/STEP` or RUN/STEP in
    `store`, and wait until it is committed. All ranks of a process group call it. Raises as `save`.
    """
    return async_save(_described(model), checkpoint_id=name, store=store).result()


def from_pretrained(
    kind: type[Model], name: str, *, store: Store | str | None = None, **options: object
) -> Model:
    """The model that `save_pretrained` or a CkptCallback has saved, from memory to memory.

    kind: a model's class, or an Auto class, such as AutoModelForCausalLM.
    name: `ckpt://HOST:PORT/RUN[/STEP]`, or RUN[/STEP] in `store`; the newest step without one.
    options: as the library's own from_pretrained takes them; `config` in place of the saved one.

    Raises NotFound, Unavailable, Lost; Refused when no configuration was saved and none is given.
    """
    where = find_where(name, store)
    with where.store.resolve(where.run, where.step) as checkpoint:
        state = whole_of(checkpoint)
    if not isinstance(state, dict) or "model" not in state:
        raise Refused(f"{name} holds no model of transformers", hint="see ckpt show --tensors")
    config = options.pop("config", None) or _configured(name, state)
    # Which class an Auto class stands for: asked of a model without memory.
    with torch.device("meta"):
        shell = kind.from_config(config) if hasattr(kind, "from_config") else kind(config)
    made = type(shell).from_pretrained(None, config=config, state_dict=state["model"], **options)
    made.config.name_or_path = made.name_or_path = name
    return cast(Model, made)


def _described(model: torch.nn.Module) -> dict[str, object]:
    """Its weights, and its configuration where it has one."""
    config = getattr(model, "config", None)
    if not isinstance(config, PreTrainedConfig):
        return {"model": model.state_dict()}
    return {"model": model.state_dict(), "config": config.to_json_string(use_diff=False)}


def _configured(name: str, state: dict[str, object]) -> PreTrainedConfig:
    if "config" not in state:
        raise Refused(f"{name} was saved without a configuration", hint="pass config=")
    values = json.loads(cast(str, state["config"]))
    return AutoConfig.for_model(**values)


def _check_is_folder(output_dir: str | Path | None) -> None:
    # One slash is what a Path leaves of two.
    if re.match(r"[a-z0-9+]+:/", str(output_dir)):
        raise Refused(
            f"output_dir={str(output_dir)!r} would become a folder of that name here",
            hint="name a folder of this machine; checkpoints go to the run of CkptCallback",
        )


def _write(state: object, folder: Path) -> None:
    """A folder as the Trainer writes it."""
    assert isinstance(state, dict), "as CkptCallback saves it"
    save_file(_unshared(state["model"]), folder / "model.safetensors", {"format": "pt"})
    torch.save(state["optimizer"], folder / "optimizer.pt")
    if "scheduler" in state:
        torch.save(state["scheduler"], folder / "scheduler.pt")
    alone = len(state["rng"]) == 1
    for rank, states in state["rng"].items():
        name = "rng_state.pth" if alone else f"rng_state_{rank}.pth"
        torch.save(_numpy_again(states), folder / name)
    (folder / "trainer_state.json").write_text(state["trainer_state"])


def _random_states() -> dict[str, object]:
    """What the Trainer keeps of its generators."""
    states: dict[str, object] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "cpu": torch.random.get_rng_state(),
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.random.get_rng_state()
    return states


def _numpy_again(states: dict[str, object]) -> dict[str, object]:
    kind, keys, *rest = cast(tuple[object, ...], states["numpy"])
    assert isinstance(keys, torch.Tensor)
    return {**states, "numpy": (kind, keys.numpy(), *rest)}


def _unshared(model: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """safetensors wants each tensor in memory of its own."""
    return {name: tensor.clone() for name, tensor in model.items()}
