"""Sharded models: every rank saves and loads its own part."""

from __future__ import annotations

from lightning.pytorch.strategies.model_parallel import ModelParallelStrategy
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from ckpt_torch.lightning.io import CkptIO, given_with
from ckpt_torch.lightning.paths import FilePath
from ckpt_torch.lightning.preparing import prepare_fit


class CkptModelParallelStrategy(ModelParallelStrategy):
    """ModelParallelStrategy whose ranks save and load their own shards through a CkptIO.

    The number of ranks and the sharding may differ between save and load.
    """

    def __init__(self, io: CkptIO, **options: object) -> None:
        super().__init__(save_distributed_checkpoint=True, **options)
        self._io = io

    @property
    def io(self) -> CkptIO:
        """What every rank saves through; Lightning's `checkpoint_io` is not asked."""
        return self._io

    def on_train_batch_start(self, batch: object, batch_idx: int) -> None:
        """After the first step, make this process ready for saves."""
        super().on_train_batch_start(batch, batch_idx)
        assert self.lightning_module is not None
        prepare_fit(self.lightning_module.trainer, self._io, sharded=True)

    def save_checkpoint(
        self,
        checkpoint: dict[str, object],
        filepath: FilePath,
        storage_options: object | None = None,
    ) -> None:
        """Every rank copies its shards, rank 0 also all else. storage_options: as of CkptIO."""
        metrics = given_with(storage_options)
        self._io.save(checkpoint, filepath, no_dist=False, metrics=metrics, model=self.model)

    def load_checkpoint(
        self, checkpoint_path: FilePath, weights_only: bool | None = None
    ) -> dict[str, object]:
        """Every rank reads what it holds; returns what is neither model nor optimizer."""
        assert self.model is not None
        model = get_model_state_dict(self.model)
        moments = [get_optimizer_state_dict(self.model, one) for one in self.optimizers]
        state: dict[str, object] = {"state_dict": model}
        if moments:  # A validation or a test has no optimizers, and takes the model alone.
            state["optimizer_states"] = list(moments)
        step = self._io.load_into(state, checkpoint_path)
        set_model_state_dict(self.model, model)
        for optimizer, moment in zip(self.optimizers, moments, strict=True):
            set_optimizer_state_dict(self.model, optimizer, optim_state_dict=moment)
        return self._io.load_rest(step, ("state_dict", "optimizer_states"))

    def remove_checkpoint(self, filepath: FilePath) -> None:
        """Take that path away, once."""
        if self.is_global_zero:
            self._io.remove_checkpoint(filepath)

    def teardown(self) -> None:
        self._io.teardown()
        super().teardown()
