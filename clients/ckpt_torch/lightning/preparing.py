"""Ahead of a fit's first save, and beside its steps: what that save would wait for."""

from __future__ import annotations

from lightning.pytorch import Trainer

from ckpt_torch.lightning.io import CkptIO


def prepare_fit(trainer: Trainer, io: CkptIO, *, sharded: bool, weights_only: bool = False) -> None:
    """Make this rank ready for the fit's saves, once an optimizer has stepped and has its moments;
    called again, it does nothing. Errors go to the log alone.

    sharded: every rank saves its part; else rank 0 saves all of it.
    weights_only: no optimizer is saved.

    What else a checkpoint holds (loops, callbacks, what hooks add) is small, and asked for by saves
    alone: a hook may do more than answer.
    """
    if io.is_ready or trainer.global_step == 0 or not (sharded or trainer.is_global_zero):
        return
    strategy = trainer.strategy
    state: dict[str, object] = {"state_dict": strategy.lightning_module_state_dict()}
    if not weights_only:
        moments = [strategy.optimizer_state(one) for one in trainer.optimizers]
        state["optimizer_states"] = moments
    io.prepare(state, no_dist=not sharded)
