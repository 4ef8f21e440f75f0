"""NVIDIA Resiliency Extension's local checkpoints in a store: `CkptCheckpointManager`.

    manager = CkptCheckpointManager("ckpt://10.0.0.1:7070/gpt/local", allow_pickle=True)
    if manager.find_latest() != -1:
        state, _ = manager.load()
    manager.save(state, iteration)

A step is there for all ranks or for none, and survives the loss of targets; no rank needs the host
or the disk on which it saved, and none keeps copies of others: replication groups are not needed.
"""

from __future__ import annotations

from typing import TypedDict, cast

import torch
import torch.distributed as dist

from ckpt.base.errors import Busy, CkptError, NotFound, Refused
from ckpt.base.extras import needing
from ckpt_client.save.arrays import AnyArray
from ckpt_client.store import Store
from ckpt_torch.place import find_where
from ckpt_torch.tensors import as_array, from_array
from ckpt_torch.tree import PICKLE_KEY, pickled, unpickled

with needing("ckpt_torch.nvrx"):
    from nvidia_resiliency_ext.checkpointing.local.base_state_dict import TensorAwareStateDict
    from nvidia_resiliency_ext.checkpointing.local.ckpt_managers.base_manager import (
        BaseCheckpointManager,
        CheckpointingException,
        CkptID,
    )


class _Stored(TypedDict):
    """A rank's part of a step."""

    tensors: list[AnyArray]
    hollow: dict[str, AnyArray]
    """What is left without them, under the key of pickles."""


class CkptCheckpointManager(BaseCheckpointManager):  # type: ignore[misc]
    """I keep a training's local checkpoints as steps of one run. All ranks call me at once.

    run: `ckpt://HOST:PORT/RUN`, `ckpt+local:///DIR/RUN`, or RUN in `store`, else in $CKPT_STORE's.
    session_id: tells trainings apart, below the run.
    allow_pickle: must be True: what the package hands over besides tensors is an object, stored as
        a pickle and loaded as one.
    keep: how many of the newest steps stay when a save has succeeded.

    The world size of a load must be that of the save, as everywhere in the package: steps of
    another one are not found. Raises Refused without `allow_pickle`, and for `keep` below 1.
    """

    def __init__(
        self,
        run: str,
        session_id: str = "",
        *,
        store: Store | str | None = None,
        allow_pickle: bool = False,
        keep: int = 1,
    ) -> None:
        super().__init__(session_id)
        if not allow_pickle:
            raise Refused(
                f"{run}: a TensorAwareStateDict without its tensors is stored as a pickle",
                hint="pass allow_pickle=True if you trust whoever saves there",
            )
        if keep < 1:
            raise Refused(f"keep={keep}: at least the newest step stays")
        self._name = "/".join(filter(None, (run.rstrip("/"), session_id)))
        self._store = store
        self._keep = keep
        #: Set once I have left for the package's own process, which has no process group to ask.
        self._world_size: int | None = None

    def __getstate__(self) -> dict[str, object]:
        if isinstance(self._store, Store):
            raise Refused(
                "an open store cannot go to another process",
                hint="give CkptCheckpointManager the store's URL, or a whole ckpt:// path",
            )
        return {**self.__dict__, "_world_size": self.world_size}

    @property
    def world_size(self) -> int:
        """Of the default process group; 1 without one."""
        if self._world_size is not None:
            return self._world_size
        return dist.get_world_size() if dist.is_initialized() else 1

    # ----------------------------------------------------------------------- the package's calls

    def _my_ckpt_ids(self) -> list[CkptID]:
        """This rank's part of every committed step."""
        store, run = self._place()
        return [
            (commit.step, self.rank, self.session_id)
            for commit in store.steps(run)
            if commit.world_size == self.world_size
        ]

    def _save(self, state_dict: TensorAwareStateDict, ckpt_id: CkptID) -> None:
        """Returns when the step is committed: when all ranks' parts are on stable storage."""
        iteration, rank, _ = ckpt_id
        store, run = self._place()
        tensors = state_dict.pop_tensors()
        try:
            state: _Stored = {
                "tensors": [_array(number, tensor) for number, tensor in enumerate(tensors)],
                "hollow": {PICKLE_KEY: pickled(state_dict)},
            }
        finally:
            state_dict.insert_tensors(tensors)
        store.save(run, iteration, state, rank=rank, world_size=self.world_size).wait()

    def _load(self, ckpt_id: CkptID) -> TensorAwareStateDict:
        """Raises CheckpointingException."""
        iteration, rank, _ = ckpt_id
        store, run = self._place()
        try:
            found = store.load(run, iteration, rank=rank, world_size=self.world_size)
        except CkptError as error:
            raise CheckpointingException(f"{run}@{iteration}, rank {rank}: {error}") from error
        state = cast(_Stored, found)
        hollow = cast(TensorAwareStateDict, unpickled(state["hollow"][PICKLE_KEY]))
        hollow.insert_tensors([from_array(array) for array in state["tensors"]])
        return hollow

    def _cleanup(self, iteration: int) -> None:
        """One rank deletes what is not kept; a step that is being read goes the next time."""
        if self.rank != 0:
            return
        store, run = self._place()
        for commit in store.steps(run)[: -self._keep]:
            if commit.step < iteration:
                try:
                    store.delete(run, commit.step)
                except (Busy, NotFound):
                    continue

    def _cleanup_failed_save(self, iteration: int) -> None:
        """What was not committed is not there."""

    # ----------------------------------------------------------------------- inside

    def _place(self) -> tuple[Store, str]:
        where = find_where(self._name, self._store)
        if where.step is not None:
            raise Refused(f"{self._name} names a step", hint="name the run alone")
        return where.store, where.run


def _array(number: int, tensor: torch.Tensor) -> AnyArray:
    try:
        return as_array(tensor)
    except Refused as error:
        raise Refused(f"tensors/#{number}: {error.message}", hint=error.hint) from None
