"""A callback that gives each save what the trainer has measured."""

from __future__ import annotations

from typing import Final

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from ckpt_torch.measured import collected

KEY: Final = "ckpt_metrics"
"""Where a checkpoint has them on its way to CkptIO, which takes them out."""


class CkptMetrics(Callback):
    """Each step is saved with its `metrics`: the finite numbers of `trainer.callback_metrics`. If
    there are more than a step has room for, those that a ModelCheckpoint monitors come first.

    A number belongs to the first step that is saved after it was measured: a validation's, which
    the trainer goes on to show, is not given to later steps. With `save_weights_only` Lightning
    asks no callback, so such a step has no metrics.
    """

    def __init__(self) -> None:
        #: What the trainer showed at the last save, by name. Kept, as what is measured again is
        #: another object, also when it is the same number.
        self._shown: dict[str, object] = {}
        #: Likewise, at the last save of an earlier step: one step may be saved to several paths,
        #: and be validated in between.
        self._before: dict[str, object] = {}
        self._step: int | None = None

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, object]
    ) -> None:
        """Put them into the checkpoint."""
        if trainer.global_step != self._step:
            self._before, self._step = self._shown, trainer.global_step
        self._shown = dict(trainer.callback_metrics)
        measured = {
            name: value
            for name, value in self._shown.items()
            if value is not self._before.get(name)
        }
        monitored = [
            each.monitor
            for each in trainer.checkpoint_callbacks
            if isinstance(each, ModelCheckpoint) and each.monitor is not None
        ]
        checkpoint[KEY] = collected(measured, monitored)
