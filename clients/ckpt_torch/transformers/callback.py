"""`CkptCallback`: a Trainer that saves into a store."""

from __future__ import annotations

import dataclasses
import json
from concurrent.futures import Future
from typing import TYPE_CHECKING, cast

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.training_args import ParallelMode

from ckpt.base.errors import Refused
from ckpt_client.save.handle import Commit
from ckpt_client.save.staged import stagings_under_way
from ckpt_client.save.turn import staging_overlaps
from ckpt_client.store import Store
from ckpt_torch.measured import collected
from ckpt_torch.place import find_guard, find_where, find_who
from ckpt_torch.preparing import prepare_ahead
from ckpt_torch.reading.loading import load
from ckpt_torch.saving import async_save, refusing_together, wait_for
from ckpt_torch.transformers.folder import check_is_folder
from ckpt_torch.transformers.limit import BEST, SaveLimit, best_step
from ckpt_torch.transformers.pretrained import described
from ckpt_torch.transformers.random_states import random_states

if TYPE_CHECKING:
    from ckpt_client.preemption.guard import PreemptionGuard


class CkptCallback(TrainerCallback):
    """I copy the training's state whenever it is due to be saved; sending goes on beside the
    training.

    run: `ckpt://HOST:PORT/RUN`, `ckpt+local:///DIR/RUN`, or RUN in `store`, else in $CKPT_STORE's.
    every: how many steps lie between saves. The last step is saved as well, even if the training
        stops early, unless the best weights took its place (`load_best_model_at_end`). None:
        `save_strategy` and `save_steps` say when, and I save in place of the Trainer, which then
        writes no folder; `load_best_model_at_end` then loads from the store.
    check_finite: refuse a state with a tensor that holds NaN or infinity, and name its path.
    grace_s: how many seconds a process has from SIGTERM or SIGUSR1 to its kill. With it, all ranks
        end the training with one saved step once any of them gets such a signal
        (`Store.preemption`); without it signals do what they always did.
    staging: with `overlap` the training goes on before the state is copied, and the Trainer's next
        optimizer step waits for the rest of the copy. Anything else that changes the state earlier,
        such as a BatchNorm's forward, ends the save with an error that names it: see
        `ckpt_torch.async_save`.

    With `save_total_limit` the store keeps that many steps of the run, the best among them, in
    place of earlier rules of `ckpt keep`. With `metric_for_best_model` a step that is evaluated is
    saved after the evaluation, with its results as `metrics`.
    """

    def __init__(
        self,
        run: str,
        *,
        every: int | None = None,
        store: Store | str | None = None,
        check_finite: bool = False,
        grace_s: float | None = None,
        staging: str = "copy",
    ) -> None:
        staging_overlaps(staging)  # Refuses what is neither.
        self._staging = staging
        self._run = run.rstrip("/")
        self._every = every
        self._store = store
        self._check_finite = check_finite
        self._grace_s = grace_s
        #: While a training runs that watches for signals.
        self._guard: PreemptionGuard | None = None
        self._saved_step = 0
        #: This process is ready for saves, or one went out.
        self._is_ready = False
        #: Saves that were handed over and are not known to be committed, oldest first.
        self._pending: list[Future[Commit]] = []
        #: On rank 0, while a training runs that has `save_total_limit`.
        self._limit: SaveLimit | None = None
        #: The best step among those that were saved.
        self._best: int | None = None
        #: What was measured of a step whose save waits until its evaluation is over.
        self._measured: dict[str, object] | None = None

    # ----------------------------------------------------------------------- the Trainer's events

    def on_init_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Raises Refused for an output_dir that is a URL, which would become a folder here; without
        `every` for a `save_strategy` that leaves no saving to me; and for callbacks that are to
        have their states back from what I alone save.
        """
        check_is_folder(args.output_dir)
        if self._every is None:
            _check_leaves_saving(args)
        if self._every is None or args.save_strategy.value == "no":
            _check_restores_none(args, state)

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """What it resumes from is saved. Raises Refused outside of the main thread, with
        `grace_s`; and as `on_init_end`.
        """
        self.on_init_end(args, state, control)
        self._saved_step, self._measured, self._is_ready = state.global_step, None, False
        self._limit = self._best = None
        if args.metric_for_best_model is not None and state.global_step > 0:
            self._best = best_step(find_where(self._run, self._store), state.global_step)
        count = args.save_total_limit or 0
        if count > 0 and find_who(None, no_dist=False).rank == 0:
            self._limit = SaveLimit(find_where(self._run, self._store), count, state.global_step)
        self._end_guard()  # Of a training that raised.
        if self._grace_s is not None:
            self._guard = find_guard(self._run, self._store, self._grace_s)

    def on_epoch_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Save what was evaluated at the end of the epoch before."""
        self._save_evaluated(args, state, kwargs)

    def on_step_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Save what was evaluated after the step before."""
        self._save_evaluated(args, state, kwargs)

    def on_pre_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """The state changes next, so whatever is still to be copied is copied first."""
        for staged in stagings_under_way():
            staged.follow()

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Save when a save is due, or when the training is to end; after the first step, make this
        process ready for saves. Raises Refused by path, and the error of an earlier save.
        """
        due = self._is_due(state, control)
        if self._guard is not None and self._guard.should_save(state.global_step):
            self._save(args, state, kwargs)  # An evaluation may take longer than there is time.
            control.should_training_stop = True
        elif due:
            self._save_or_evaluate(args, state, control, kwargs)
        elif not self._is_ready and not self._saves_once(state):
            self._is_ready = True  # The optimizer has its moments now.
            held = self._held(args, state, kwargs)
            prepare_ahead(held, checkpoint_id=self._run, store=self._store)
        while self._pending and self._pending[0].done():
            self._pending.pop(0).result()

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Note what was measured. Which step is the best is known when the Trainer continues."""
        if self._measured is not None:
            self._measured.update(cast(dict[str, object], kwargs["metrics"]))

    def on_epoch_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Save what was evaluated after the last step, and where `save_strategy` is `epoch`."""
        self._save_evaluated(args, state, kwargs)
        if self._every is None and self._is_due(state, control):
            self._save_or_evaluate(args, state, control, kwargs)

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        """Save the last step, wait until everything is committed, and load the best step where that
        is asked for and no folder of the Trainer's has it. Raises the first error; NotFound when
        the best step was deleted.
        """
        self._save_evaluated(args, state, kwargs)
        # From a folder, which the Trainer has written.
        is_loaded = args.load_best_model_at_end and state.best_model_checkpoint is not None
        if self._every is not None and state.global_step > self._saved_step and not is_loaded:
            self._save(args, state, kwargs)
        self.wait()
        if self._limit is not None:
            self._limit.say(self._best)
        if args.load_best_model_at_end and not is_loaded and self._best is not None:
            self._load_best(state, self._best, kwargs)
        self._end_guard()

    def wait(self) -> None:
        """Until all saves are committed. Raises the first error."""
        wait_for(self._pending)

    # ----------------------------------------------------------------------- when

    def _is_due(self, state: TrainerState, control: TrainerControl) -> bool:
        """Whether this step is to be saved by me. What I save, the Trainer does not."""
        step = state.global_step
        if self._every is not None:
            return step % self._every == 0 or step == state.max_steps
        due, control.should_save = control.should_save, False
        return due and step > self._saved_step

    def _saves_once(self, state: TrainerState) -> bool:
        """At the end alone: memory for a second save beside the first is not needed."""
        return self._every is not None and self._every >= state.max_steps

    def _save_or_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        kwargs: dict[str, object],
    ) -> None:
        if control.should_evaluate and args.metric_for_best_model is not None:
            self._measured = {}
        else:
            self._save(args, state, kwargs)

    def _save_evaluated(
        self, args: TrainingArguments, state: TrainerState, kwargs: dict[str, object]
    ) -> None:
        """Now the Trainer has said which step is the best, and its scheduler has its turn."""
        measured, self._measured = self._measured, None
        if measured is None:
            return
        if state.best_global_step == state.global_step:
            self._best = measured[BEST] = state.global_step
        watched = f"eval_{args.metric_for_best_model}".replace("eval_eval_", "eval_", 1)
        self._save(args, state, kwargs, collected(measured, (BEST, watched)))

    def _end_guard(self) -> None:
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.close()

    # ----------------------------------------------------------------------- what

    def _save(
        self,
        args: TrainingArguments,
        state: TrainerState,
        kwargs: dict[str, object],
        metrics: dict[str, float] | None = None,
    ) -> None:
        if self._limit is not None:
            with refusing_together(None, find_who(None, no_dist=False)):
                self._limit.say(self._best, state.global_step)
        future = async_save(
            self._held(args, state, kwargs),
            checkpoint_id=f"{self._run}/{state.global_step}",
            store=self._store,
            check_finite=self._check_finite,
            metrics=metrics,
            staging=self._staging,
        )
        self._pending.append(future)
        self._saved_step, self._is_ready = state.global_step, True

    def _held(
        self, args: TrainingArguments, state: TrainerState, kwargs: dict[str, object]
    ) -> dict[str, object]:
        """What is saved."""
        optimizer = cast(torch.optim.Optimizer, kwargs["optimizer"])
        scheduler = cast(torch.optim.lr_scheduler.LRScheduler | None, kwargs.get("lr_scheduler"))
        who = find_who(None, no_dist=False)
        generators = torch.cuda.random if torch.cuda.is_available() else None
        of_all = args.parallel_mode is ParallelMode.DISTRIBUTED
        held: dict[str, object] = {
            **described(_inner(kwargs), who.rank),
            "optimizer": optimizer.state_dict(),
            "rng": {str(who.rank): random_states(generators, of_all=of_all)},
        }
        if who.rank == 0:  # As the Trainer, which writes this one's alone.
            # It says whose it is, so ranks differ.
            held["trainer_state"] = json.dumps(dataclasses.asdict(state), sort_keys=True)
            # Accelerate's optimizer has one where it trains in float16.
            scaler: torch.amp.GradScaler | None = getattr(optimizer, "scaler", None)
            if scaler is not None and scaler.is_enabled():
                held["scaler"] = scaler.state_dict()
        if scheduler is not None:
            held["scheduler"] = scheduler.state_dict()
        return held

    def _load_best(self, state: TrainerState, best: int, kwargs: dict[str, object]) -> None:
        """Fill the model in place, on all ranks."""
        name = f"{self._run}/{best}"
        weights = _inner(kwargs).state_dict()
        load({"model": weights}, checkpoint_id=name, store=self._store)
        # As the Trainer does: not all that a model gives out is its own memory.
        _inner(kwargs).load_state_dict(weights, strict=False)
        state.best_model_checkpoint = name


def _inner(kwargs: dict[str, object]) -> torch.nn.Module:
    model = cast(torch.nn.Module, kwargs["model"])
    return cast(torch.nn.Module, getattr(model, "module", model))


def _check_leaves_saving(args: TrainingArguments) -> None:
    """Raises Refused where a callback without `every` could not save in the Trainer's place."""
    strategy = args.save_strategy.value
    if strategy == "no":
        raise Refused(
            "CkptCallback without every= saves as save_strategy says, and that is 'no'",
            hint="every=100, or save_strategy='steps' with save_steps=100",
        )
    if strategy == "best":
        raise Refused(
            "save_strategy='best' writes a folder whatever callbacks say",
            hint="save_strategy='steps', save_total_limit=1: the best and the newest stay",
        )
    if args.push_to_hub:
        raise Refused(
            "push_to_hub pushes the Trainer's own folders, and with CkptCallback it writes none",
            hint="push at the end with trainer.push_to_hub(), or give every= to save twice",
        )


def _check_restores_none(args: TrainingArguments, state: TrainerState) -> None:
    """Raises Refused where callbacks would get back what they had when the training began: only
    the Trainer can ask them, and does so as it writes a folder.
    """
    stateful = sorted(set(state.stateful_callbacks or ()) - {TrainerControl.__name__})
    if args.restore_callback_states_from_checkpoint and stateful:
        raise Refused(
            f"restore_callback_states_from_checkpoint: {', '.join(stateful)} would be as when the "
            "training began, since the Trainer shows CkptCallback no other callback's state",
            hint="leave it out; where the state matters, such as the patience of an early stop, "
            "let the Trainer write folders as well: every= with its own save_strategy",
        )
