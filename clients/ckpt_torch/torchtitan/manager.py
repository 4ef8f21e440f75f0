"""`CkptManager`: torchtitan's checkpointer over a store."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, get_args

import torch
import torch.nn as nn
from torchtitan.components.checkpointer import (
    DATALOADER,
    LR_SCHEDULER,
    MODEL,
    OPTIMIZER,
    BaseCheckpointManager,
    ModelWrapper,
)
from torchtitan.config import TORCH_DTYPE_MAP
from torchtitan.observability import structured_logger

from ckpt.base.errors import NotFound, Refused
from ckpt_client.save.handle import Commit
from ckpt_client.save.staged import Staged
from ckpt_client.warn import warn
from ckpt_torch.place import Where, find_where, find_who
from ckpt_torch.preparing import prepare_ahead
from ckpt_torch.saving import CommitFuture, async_save, refusing_together, wait_for
from ckpt_torch.torchtitan.initial import InitialLoad
from ckpt_torch.torchtitan.reading import fill_from, resolve_step
from ckpt_torch.torchtitan.states import TrainingStates

if TYPE_CHECKING:
    from torchtitan.components.dataloader import BaseDataLoader
    from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer
    from torchtitan.protocols.state_dict_adapter import BaseStateDictAdapter

_THEIR_FOLDER: Final = "checkpoint"
_Mode = Literal["disabled", "async", "async_with_pinned_mem"]


class CkptManager(BaseCheckpointManager):  # type: ignore[misc]
    """I save a torchtitan training as steps of one run, and resume it from the newest. All ranks
    call me at once; sending goes on beside the training, whatever the mode.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseCheckpointManager.Config):  # type: ignore[misc]
        """torchtitan's fields, and these.

        folder: the run, `ckpt://HOST:PORT/RUN`, `ckpt+local:///DIR/RUN`, or RUN in $CKPT_STORE's.
            The trainer's dump_folder is not put before it.
        keep_latest_k: the first save sets it in the store, in place of earlier rules of `ckpt keep`
            for the run; steps with a name, a pin or a reader stay as well. 0 sets no rule.

        Raises Refused for last_save_in_hf, and for a mode or an export_dtype that does not exist.
        """

        async_mode: _Mode = "disabled"
        """When a save returns: once it is committed ("disabled"), once the state is copied
        ("async"), or before that ("async_with_pinned_mem"): the trainer's optimizers wait then for
        what is left of the copy."""

        allow_pickle: bool = False
        """Keep and load objects that are no plain data as pickles."""

        def __post_init__(self) -> None:
            if self.last_save_in_hf:
                raise Refused(
                    "checkpoint.last_save_in_hf writes safetensors into a folder, not into a store",
                    hint="leave it out; `ckpt export RUN@STEP DIR --format dcp` makes the folder "
                    "that torchtitan's convert_to_hf.py takes",
                )
            # The command line checks these; in Python a wrong dtype would end the last save.
            _check_is_one_of("async_mode", self.async_mode, get_args(_Mode))
            _check_is_one_of("export_dtype", self.export_dtype, tuple(TORCH_DTYPE_MAP))
            BaseCheckpointManager.Config.__post_init__(self)

    def __init__(
        self,
        config: Config,
        *,
        dataloader: BaseDataLoader | None,
        model_parts: list[nn.Module],
        optimizers: OptimizersContainer,
        lr_schedulers: LRSchedulersContainer,
        states: dict[str, object],
        sd_adapter: BaseStateDictAdapter | None,
        base_folder: str = "",
    ) -> None:
        """As the trainer builds it. Raises Refused for a folder that names no run, and what
        opening the store raises.
        """
        self.enable = config.enable
        if not self.enable:
            return
        self.save_future: CommitFuture | None = None
        #: Saves that were handed over and are not known to be committed, oldest first.
        self._pending: list[Future[Commit]] = []
        self._config = config
        self._overlaps = config.async_mode == "async_with_pinned_mem"
        #: This process is ready for saves, or one went out.
        self._is_ready = False
        #: Of the last save, until the trainer has asked.
        self._staged: Staged | None = None
        self._where = _run_of(config.folder)
        self._rule_is_said = config.keep_latest_k == 0
        # The trainer's dict, as torchtitan's own managers do it.
        states |= {
            MODEL: ModelWrapper(model_parts),
            OPTIMIZER: optimizers,
            DATALOADER: dataloader,
            LR_SCHEDULER: lr_schedulers,
        }
        self._states = TrainingStates(states, config.exclude_from_loading)
        self._initial = InitialLoad(
            path=config.initial_load_path,
            model_only=config.initial_load_model_only,
            in_hf=config.initial_load_in_hf,
            quantized=config.initial_load_in_hf_quantized,
            adapter=sd_adapter,
            allow_pickle=config.allow_pickle,
        )

    # ----------------------------------------------------------------------- torchtitan's hooks

    @structured_logger.log_trace_span("checkpoint_save")  # type: ignore[misc]
    @torch.no_grad()
    def _save(self, curr_step: int, last_step: bool = False) -> bool:
        """Raises Refused by path for what cannot be stored, and the error of an earlier save, on
        all ranks.
        """
        if not self._is_due(curr_step, last_step):
            self._prepare(curr_step)
            return False
        self._is_ready = True
        structured_logger.add_step_tag("checkpoint_save")
        # Of those that failed, the save below speaks, on all ranks.
        self._pending = [future for future in self._pending if not future.done()]
        self._say_rule()
        self.save_future = async_save(
            self._to_save(last_step),
            checkpoint_id=f"{self._where.run}/{curr_step}",
            store=self._where.store,
            allow_pickle=self._config.allow_pickle,
            staging="overlap" if self._overlaps else "copy",
        )
        self._staged = self.save_future.staged
        self._pending.append(self.save_future)
        if last_step or self._config.async_mode == "disabled":
            self._wait_for_saving()
        return True

    @structured_logger.log_trace_span("checkpoint_load")  # type: ignore[misc]
    @torch.no_grad()
    def _load(self, step: int = -1) -> bool:
        """Raises NotFound for a step that is not there; Refused by path for what it lacks."""
        try:
            checkpoint = resolve_step(self._config.folder, None if step == -1 else step)
        except NotFound:
            if step != -1:
                raise
            return self._initial.fill(self._states)
        with checkpoint:
            self._warn_of_later_steps(checkpoint.step)
            fill_from(
                checkpoint,
                self._config.folder,
                self._states,
                model_only=checkpoint.step == 0,
                allow_pickle=self._config.allow_pickle,
            )
        return True

    def _maybe_wait_for_staging(self) -> None:
        """The trainer changes the state from here on."""
        staged, self._staged = self._staged, None
        if staged is not None:
            staged.follow()

    def _wait_for_saving(self) -> None:
        """Until all saves are committed. Raises the first error."""
        self.save_future = None
        wait_for(self._pending)

    def _close(self) -> None:
        """Wait for what was saved."""
        self._wait_for_saving()

    # ----------------------------------------------------------------------- inside

    def _warn_of_later_steps(self, step: int) -> None:
        newest = self._where.store.latest(self._where.run)
        if newest is not None and newest > step and find_who(None, no_dist=False).rank == 0:
            run = self._where.run
            warn(
                f"{run} has steps up to {newest}, and this training goes on from {step}: "
                "keep_latest_k keeps those with the highest numbers, and -1 resumes from them; "
                f"`ckpt rollback {run}@{step}` sets them aside"
            )

    def _is_due(self, step: int, last_step: bool) -> bool:
        config = self._config
        if config.load_only:
            return False
        first = step == 1 and config.enable_first_step_checkpoint
        return first or last_step or step % config.interval == 0

    def _prepare(self, step: int) -> None:
        """Once, when the optimizers have their moments: after a step."""
        if self._is_ready or self._config.load_only or step < 1:
            return
        self._is_ready = True
        prepare_ahead(
            self._states.whole(),
            checkpoint_id=self._where.run,
            store=self._where.store,
            allow_pickle=self._config.allow_pickle,
        )

    def _to_save(self, last_step: bool) -> dict[str, object]:
        if last_step and self._config.last_save_model_only:
            return self._states.exported(TORCH_DTYPE_MAP[self._config.export_dtype])
        return self._states.whole()

    def _say_rule(self) -> None:
        if self._rule_is_said:
            return
        who = find_who(None, no_dist=False)
        with refusing_together(None, who):
            if who.rank == 0:
                self._where.store.keep(self._where.run, last=self._config.keep_latest_k)
        self._rule_is_said = True


def _check_is_one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise Refused(f"checkpoint.{name}: {value!r} is none of {', '.join(choices)}")


def _run_of(folder: str) -> Where:
    """Raises Refused where it names no run of this training's own."""
    if folder == _THEIR_FOLDER:
        raise Refused(
            f"checkpoint.folder is torchtitan's default, {folder!r}: each training would find "
            "the steps of all others",
            hint="folder='ckpt://HOST:PORT/RUN', or RUN in the store that $CKPT_STORE names",
        )
    where = find_where(folder, None)
    if where.step is not None:
        raise Refused(f"checkpoint.folder {folder} names a step", hint="name the run alone")
    return where
