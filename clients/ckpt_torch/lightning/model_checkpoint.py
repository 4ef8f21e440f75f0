"""A ModelCheckpoint that looks in the store whether a path is taken."""

from __future__ import annotations

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from lightning.pytorch.strategies import Strategy

from ckpt.base.errors import Aborted, CkptError
from ckpt_torch.lightning.io import CkptIO
from ckpt_torch.lightning.paths import FilePath
from ckpt_torch.lightning.preparing import prepare_fit
from ckpt_torch.lightning.strategy import CkptModelParallelStrategy


class CkptModelCheckpoint(ModelCheckpoint):
    """Lightning's own ModelCheckpoint, for use with CkptIO: a path that another callback, an
    earlier save or an earlier training of the run has taken gets `-v1`, `-v2`, as with files.
    Lightning's class looks only among local files, finds none, and saves over it.

    After the first step I make the process ready for saves, unless the fit saves only once.
    """

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: object,
        batch: object,
        batch_idx: int,
    ) -> None:
        """Save when it is due, as Lightning's own."""
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        io = _io_of(trainer.strategy)
        by_itself = isinstance(trainer.strategy, CkptModelParallelStrategy)
        if io is not None and not by_itself and self._saves_again(trainer):
            prepare_fit(trainer, io, sharded=False, weights_only=self.save_weights_only)

    def _saves_again(self, trainer: Trainer) -> bool:
        """Memory for a second save beside the first is not needed by a fit of one epoch."""
        within = self._every_n_train_steps > 0 or self._train_time_interval is not None
        return within or trainer.max_epochs != 1

    def file_exists(self, filepath: FilePath, trainer: Trainer) -> bool:
        """Whether the path is taken; rank 0 asks for all. Raises what it met on every rank, or the
        others would wait for it: Unavailable, Refused, Aborted for what is no error of ckpt's.
        """
        io = _io_of(trainer.strategy)
        if io is None:
            return super().file_exists(filepath, trainer)
        asked = _asked(io, filepath) if trainer.is_global_zero else False
        told: bool | CkptError = trainer.strategy.broadcast(asked)
        if isinstance(told, CkptError):
            raise told
        return told

    def _find_last_checkpoints(self, trainer: Trainer) -> set[str]:
        """What Lightning calls for ckpt_path="last": it takes what is returned for files, and
        begins from scratch where there is none. Raises Refused once the run has a step, with what
        to write; Unavailable.
        """
        io = _io_of(trainer.strategy)
        if io is not None:
            io.refuse_last()
        return super()._find_last_checkpoints(trainer)

    def _link_checkpoint(self, trainer: Trainer, filepath: str, linkpath: str) -> None:
        """What Lightning calls for save_last="link": there is no file to link to."""
        io = _io_of(trainer.strategy)
        if io is None:
            super()._link_checkpoint(trainer, filepath, linkpath)
        elif isinstance(trainer.strategy.checkpoint_io, AsyncCheckpointIO):
            # Its thread may not have begun the save that the link would be to.
            self._save_checkpoint(trainer, linkpath)
        elif trainer.is_global_zero:
            io.link(linkpath, to=filepath)


def _asked(io: CkptIO, filepath: FilePath) -> bool | CkptError:
    try:
        return io.is_taken(filepath)
    except CkptError as error:
        return error.with_traceback(None)
    except Exception as error:
        return Aborted(f"rank 0 cannot tell whether {filepath} is taken: {error!r}")


def _io_of(strategy: Strategy) -> CkptIO | None:
    if isinstance(strategy, CkptModelParallelStrategy):
        return strategy.io
    io = strategy.checkpoint_io
    if isinstance(io, AsyncCheckpointIO):
        io = io.checkpoint_io
    return io if isinstance(io, CkptIO) else None
