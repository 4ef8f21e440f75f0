"""Lightning over a store: `CkptIO`, a CheckpointIO; `CkptModelParallelStrategy` for FSDP2 and TP.

    io = CkptIO("ckpt://10.0.0.1:7070/gpt")
    Trainer(plugins=[io], ...)                                           single device, DDP
    Trainer(strategy=CkptModelParallelStrategy(io), ...)                 sharded, each rank its part

A checkpoint's step is the trainer's global step. The path that Lightning gives names it: the number
after `step=`, or `last`, which is the newest. Saves go on beside the training; `teardown` waits.
"""

from __future__ import annotations

import os
import re
from concurrent.futures import Future
from typing import Final

from lightning.fabric.plugins.io.checkpoint_io import CheckpointIO
from lightning.pytorch.strategies.model_parallel import ModelParallelStrategy
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from ckpt.base.errors import NotFound, Refused
from ckpt_client.save.handle import Commit
from ckpt_client.store import Store
from ckpt_torch.loading import load
from ckpt_torch.place import find_where
from ckpt_torch.saving import async_save, wait_for
from ckpt_torch.whole import load_whole

FilePath = str | os.PathLike[str]
_STEP: Final = re.compile(r"step[=_-]?([0-9]+)")
CHECKED: Final = ("state_dict", "optimizer_states")
_LAST: Final = re.compile(r"(?<![a-zA-Z])last(?![a-zA-Z])")


class CkptIO(CheckpointIO):
    """I keep a trainer's checkpoints as steps of one run.

    run: `ckpt://HOST:PORT/RUN`, `ckpt+local:///DIR/RUN`, or RUN in `store`, else in $CKPT_STORE's.
    allow_pickle: keep what is not plain data as pickles, for callbacks and hyperparameters that
        need it; else it is refused by path.
    check_finite: refuse a model or optimizer state with a tensor that holds NaN or infinity, by
        path. Callbacks keep such values of their own: ModelCheckpoint an infinite `kth_value`.
    """

    def __init__(
        self,
        run: str,
        *,
        store: Store | str | None = None,
        allow_pickle: bool = False,
        check_finite: bool = False,
    ) -> None:
        self._run = run.rstrip("/")
        self._store = store
        self._allow_pickle = allow_pickle
        self._check_finite = check_finite
        #: Saves that were handed over and are not known to be committed, oldest first.
        self._pending: list[Future[Commit]] = []

    def save_checkpoint(
        self, checkpoint: dict[str, object], path: FilePath, storage_options: object | None = None
    ) -> None:
        """Copy the checkpoint of one process that holds all of it."""
        self.save(checkpoint, no_dist=True)

    def load_checkpoint(
        self, path: FilePath, map_location: object | None = None, weights_only: bool | None = None
    ) -> dict[str, object]:
        """The checkpoint as new CPU tensors. Raises what `load_whole` and an earlier save do."""
        self.wait()
        state = load_whole(self.name_of(path), store=self._store, allow_pickle=self._allow_pickle)
        assert isinstance(state, dict)
        return state

    def remove_checkpoint(self, path: FilePath) -> None:
        """Delete that step, if it is there; a path without a step deletes nothing."""
        self.wait()
        where = find_where(self.name_of(path), self._store)
        if where.step is None:
            return
        try:
            where.store.delete(where.run, where.step)
        except NotFound:
            return

    def teardown(self) -> None:
        """Wait until everything is committed. Raises the first error that ended a save."""
        self.wait()

    # ----------------------------------------------------------------------- for strategies too

    def save(self, checkpoint: dict[str, object], *, no_dist: bool) -> None:
        """Copy what this rank holds; with `no_dist` it is alone."""
        step = checkpoint.get("global_step")
        if not isinstance(step, int):
            raise Refused("the checkpoint has no global_step", hint="save through a Trainer")
        future = async_save(
            checkpoint,
            checkpoint_id=f"{self._run}/{step}",
            store=self._store,
            no_dist=no_dist,
            allow_pickle=self._allow_pickle,
            check_finite=CHECKED if self._check_finite else False,
        )
        self._pending.append(future)

    def load_into(self, state: dict[str, object], path: FilePath) -> int:
        """Fill a sharded state, on all ranks; returns its step, the same for all."""
        self.wait()
        return load(
            state,
            checkpoint_id=self.name_of(path),
            store=self._store,
            allow_pickle=self._allow_pickle,
        )

    def load_rest(self, step: int, without: tuple[str, ...]) -> dict[str, object]:
        """The plain part of a sharded checkpoint."""
        whole = self.load_checkpoint(f"{self._run}/{step}")
        return {key: value for key, value in whole.items() if key not in without}

    def name_of(self, path: FilePath) -> str:
        """The checkpoint that a path of Lightning's means. Raises Refused."""
        text = os.fspath(path).rstrip("/")
        name = text.rpartition("/")[2]
        if text == self._run:
            return self._run
        found = _STEP.search(name) or re.fullmatch(r"([0-9]+)", name)
        if found is not None:
            return f"{self._run}/{int(found[1])}"
        if _LAST.search(name):
            return self._run
        raise Refused(f"{text} names no step", hint="keep step=NUMBER or `last` in the file's name")

    def wait(self) -> None:
        """Until all saves are committed. Raises the first error."""
        wait_for(self._pending)


class CkptModelParallelStrategy(ModelParallelStrategy):
    """ModelParallelStrategy whose ranks save and load their own shards through a CkptIO.

    The number of ranks and the sharding may differ between save and load.
    """

    def __init__(self, io: CkptIO, **options: object) -> None:
        super().__init__(save_distributed_checkpoint=True, **options)
        self._io = io

    def save_checkpoint(
        self,
        checkpoint: dict[str, object],
        filepath: FilePath,
        storage_options: object | None = None,
    ) -> None:
        """Every rank copies its shards."""
        self._io.save(checkpoint, no_dist=False)

    def load_checkpoint(
        self, checkpoint_path: FilePath, weights_only: bool | None = None
    ) -> dict[str, object]:
        """Every rank reads what it holds; returns what is neither model nor optimizer."""
        assert self.model is not None
        model = get_model_state_dict(self.model)
        moments = [get_optimizer_state_dict(self.model, one) for one in self.optimizers]
        state: dict[str, object] = {"state_dict": model, "optimizer_states": list(moments)}
        step = self._io.load_into(state, checkpoint_path)
        set_model_state_dict(self.model, model)
        for optimizer, moment in zip(self.optimizers, moments, strict=True):
            set_optimizer_state_dict(self.model, optimizer, optim_state_dict=moment)
        return self._io.load_rest(step, ("state_dict", "optimizer_states"))

    def remove_checkpoint(self, filepath: FilePath) -> None:
        """Delete that step, once."""
        if self.is_global_zero:
            self._io.remove_checkpoint(filepath)

    def teardown(self) -> None:
        self._io.teardown()
        super().teardown()
