"""A callback that ends a fit with one saved step when the process of any rank is asked to end."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Final

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from ckpt_client.preemption.guard import PreemptionGuard
from ckpt_client.preemption.signals import Handler
from ckpt_client.store import GRACE_S, SIGNALS, Store
from ckpt_torch.place import find_guard

FILE_NAME: Final = "preempted.ckpt"


class CkptPreemption(Callback):
    """Once any rank gets SIGTERM or SIGUSR1, all ranks save `preempted.ckpt` below the trainer's
    `default_root_dir` after the same batch, and `fit` returns; `trainer.should_stop` is True.

    Lightning's own handlers of these signals, which end each rank where it is, or save and requeue
    under Slurm, do nothing meanwhile.

    run: as CkptIO's; where the ranks find each other.
    grace_s: how many seconds a process has from the signal to its kill.
    """

    def __init__(
        self, run: str, *, grace_s: float = GRACE_S, store: Store | str | None = None
    ) -> None:
        self._run = run.rstrip("/")
        self._grace_s = grace_s
        self._store = store
        self._guard: PreemptionGuard | None = None
        #: The guard's, by signal: Lightning puts its own over them before the training begins.
        self._handlers: Mapping[int, Handler] = {}
        #: Of the validation that would follow a stop.
        self._limit_val_batches: int | float | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Raises Refused outside of the main thread, and as `Store.preemption`."""
        if stage != "fit":
            return
        self._end()  # Of a fit that raised.
        self._guard = find_guard(self._run, self._store, self._grace_s)
        numbers = [getattr(signal, name) for name in SIGNALS]
        self._handlers = {number: signal.getsignal(number) for number in numbers}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Signals come to the guard."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: object,
        batch: object,
        batch_idx: int,
    ) -> None:
        """Save and stop where all ranks do. Raises what saving raises."""
        if self._guard is None or not self._guard.should_save(trainer.global_step):
            return
        trainer.save_checkpoint(os.path.join(trainer.default_root_dir, FILE_NAME))
        trainer.should_stop = True
        # Neither the least that the fit should take nor a validation is worth the time.
        trainer.fit_loop.min_epochs = trainer.fit_loop.epoch_loop.min_steps = None
        self._limit_val_batches, trainer.limit_val_batches = trainer.limit_val_batches, 0

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Signals do again what they did before."""
        if self._limit_val_batches is not None:
            trainer.limit_val_batches, self._limit_val_batches = self._limit_val_batches, None
        self._end()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """The fit has ended."""
        self._end()

    def _end(self) -> None:
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.close()
