"""`CkptWriter`: DCP's StorageWriter over a store, for dcp.save and dcp.async_save.

    planner --items of this rank--> Store.save (raw bytes, no file) --> finish waits for the commit

The store commits once all ranks' bytes are on stable storage; `finish` only waits for that. The
index is the metadata; no pickle of it is kept.
"""

from __future__ import annotations

import dataclasses
import io
import logging
import multiprocessing
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import SupportsFloat, cast

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import (
    SavePlan,
    SavePlanner,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult

from ckpt.base.errors import CkptError, Refused
from ckpt_client.save.arrays import AnyArray
from ckpt_client.save.handle import Commit, Save
from ckpt_client.save.shards import Shard, Shards
from ckpt_client.step_url import parse_step_url
from ckpt_client.store import Store
from ckpt_torch.dcp_names import (
    MARK_VERSION,
    Tree,
    pack_pickle,
    pack_value,
    path_of,
    put,
)
from ckpt_torch.dcp_tries import WatchedPlanner, begin_try, end_tries
from ckpt_torch.place import CheckpointName, Step, find_step
from ckpt_torch.staging.copying import TorchCopier
from ckpt_torch.staging.stand_ins import StandIns
from ckpt_torch.tree import MARK_KEY

_log = logging.getLogger("ckpt.save")


class CkptWriter(StorageWriter):
    """I write one checkpoint after another, for dcp.save and dcp.async_save. In PROCESS mode DCP
    pickles me for its own process.

    path: the checkpoint, as `ckpt_torch.save` names it; or give checkpoint_id= to dcp.save.
    store: a Store or its URL, when path is only RUN/STEP; else $CKPT_STORE. PROCESS mode takes
        no open Store.
    allow_pickle: store objects that are not plain data, as DCP does; else they are refused by name.
    check_finite: refuse a tensor that holds NaN or infinity, by name, before its rank stages.
    metrics: what was measured at the step, as `ckpt_torch.save` takes it; set `writer.metrics =
        {...}` before the next step. A rank refuses, as it stages, what is no finite number.
    overwrite: False refuses, on all ranks, a step that is committed already; True saves it again.
    """

    def __init__(
        self,
        path: CheckpointName | None = None,
        *,
        store: Store | str | None = None,
        allow_pickle: bool = False,
        check_finite: bool = False,
        metrics: Mapping[str, SupportsFloat] | None = None,
        overwrite: bool = True,
    ) -> None:
        self.checkpoint_id = path
        self.commit: Commit | None = None
        """Of the last save for which `finish` was called; that is on DCP's coordinator rank."""
        self._store = store
        self.allow_pickle = allow_pickle
        self.check_finite = check_finite
        self.metrics = metrics
        self.overwrite = overwrite
        self._save_id = uuid.uuid4().hex
        self._rank = 0
        self._collective = True
        #: The save under way, from `write_data` until the next `reset`.
        self._save: Save | None = None
        #: A save that a stager of DCP staged before DCP began to plan it; `write_data` takes it.
        self._adopted: Save | None = None

    def __getstate__(self) -> dict[str, object]:
        if isinstance(self._store, Store):
            raise Refused(
                "an open store cannot go to another process",
                hint="give CkptWriter the store's URL, or a whole ckpt:// path",
            )
        return {**self.__dict__, "_save": None, "_adopted": None, "commit": None}

    # ----------------------------------------------------------------------- DCP's calls, in order

    def reset(self, checkpoint_id: CheckpointName | None = None) -> None:
        """A new save begins."""
        if checkpoint_id is not None and str(checkpoint_id) != str(self.checkpoint_id):
            self.checkpoint_id = checkpoint_id
            self._adopted = None
        self._save_id = uuid.uuid4().hex
        self._save = None

    def set_up_storage_writer(self, is_coordinator: bool, *args: object, **kwargs: object) -> None:
        """The rank comes as a keyword, because the parameter is called kwargs."""
        self._rank = int(cast(int, kwargs.get("rank", 0)))
        self._collective = bool(kwargs.get("use_collectives", True))

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Return the plan as it is, also an unusable one, which stands for a cached plan. Raises
        Refused for a step that must not be overwritten.
        """
        if not self.overwrite and self._adopted is None:
            self.step_to_save()
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Tell every rank how many ranks there are."""
        return [dataclasses.replace(plan, storage_data=len(plans)) for plan in plans]

    def write_data(
        self, plan: SavePlan, planner: SavePlanner
    ) -> torch.futures.Future[list[WriteResult]]:
        """Copy this rank's items into the arena; sending goes on after that."""
        with self._logging():
            self._save, self._adopted = self._adopted, None
            if self._save is None:
                self._save = self._staged(plan, planner)
                self._save.mark_told()  # DCP raises on all ranks what one of them raises.
        future: torch.futures.Future[list[WriteResult]] = torch.futures.Future()
        future.set_result([_result(item) for item in plan.items])
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Wait for the commit. May be called again. Raises the error that ended the save, and
        Refused when the plan left out what the metadata names.
        """
        written = {result.index.fqn for each in results for result in each}
        left_out = sorted(set(metadata.state_dict_metadata) - written)
        with self._logging():
            if left_out and self._collective:
                raise Refused(f"no rank wrote {', '.join(left_out[:8])}")
            if self._save is None:
                raise Refused("finish without a save")
            self.commit = self._save.wait()
        metadata.storage_meta = self._meta()

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: CheckpointName) -> bool:
        """Whether it names a checkpoint as we write them."""
        try:
            return parse_step_url(str(checkpoint_id)).step is not None
        except CkptError:
            return False

    def storage_meta(self) -> StorageMeta | None:
        """DCP asks for this first, on every rank, before its planner does anything."""
        if self._adopted is None:  # What a stager has staged counts by itself.
            begin_try(self._name())
        return self._meta()

    def watch(self, planner: SavePlanner) -> SavePlanner:
        """Return the planner to give to dcp.save: ranks that have staged hear of what it raises.

        For use_collectives=False, with which DCP itself says nothing to the others.
        """
        return WatchedPlanner(planner, self._tell_planner_error)

    # ----------------------------------------------------------------------- for a stager

    def step(self) -> Step:
        """The step that this writer's path names."""
        return find_step(self.checkpoint_id, self._store)

    def step_to_save(self) -> Step:
        """The same. Raises Refused where it is committed already, and `overwrite` is False."""
        step = self.step()
        if not self.overwrite and any(
            commit.step == step.number for commit in step.store.steps(step.run)
        ):
            raise Refused(
                f"{step.run}@{step.number} is committed already, and overwrite=False",
                hint="save another step, or overwrite=True, which replaces it",
            )
        return step

    def adopt(self, save: Save) -> None:
        """Note that this is staged already: the next `write_data` copies nothing.

        When DCP never comes that far, it has raised on all ranks.
        """
        save.mark_told()
        self._adopted = save

    # ----------------------------------------------------------------------- inside

    def _meta(self) -> StorageMeta:
        return StorageMeta(checkpoint_id=self.checkpoint_id, save_id=self._save_id)

    def _name(self) -> str:
        store = self._store if isinstance(self._store, str | None) else id(self._store)
        return f"{self.checkpoint_id!s} in {store}"

    @contextmanager
    def _logging(self) -> Iterator[None]:
        """Beside the training DCP has a future for an error, and nobody may ask it."""
        try:
            yield
        except Exception as error:
            in_main = threading.current_thread() is threading.main_thread()
            if not in_main or multiprocessing.parent_process() is not None:
                _log.error("rank %s: %s is not saved: %s", self._rank, self.checkpoint_id, error)
            raise

    def _staged(self, plan: SavePlan, planner: SavePlanner) -> Save:
        step, world_size = self.step(), self._world_size(plan)
        self._make_up(step, world_size)
        with step.turn(self._rank, world_size) as turn:
            step.store.check_for_errors()
            turn.say(self.metrics)
            stand_ins = StandIns()
            packing = turn.lay_out(self._tree(plan, planner, stand_ins))
            if self.check_finite:
                stand_ins.check_all_finite(packing)
            packing = stand_ins.replaced(packing)
            turn.take(packing)
            copier = TorchCopier(packing.arrays)
        return turn.stage(copier)

    def _make_up(self, step: Step, world_size: int) -> None:
        """Tries of the step that DCP gave up here count, as they may have staged elsewhere."""
        why = Refused("an earlier try ended in DCP before it was staged")
        for _ in range(end_tries(self._name())):
            step.turn(self._rank, world_size).refuse(why)

    def _tell_planner_error(self, error: Exception, plan: SavePlan | None) -> None:
        if self._adopted is not None:
            return  # Staged whole, whatever the planner makes of it.
        with suppress(CkptError):
            step = self.step()
            if plan is None:
                rank = dist.get_rank() if dist.is_initialized() else 0
                world_size = dist.get_world_size() if dist.is_initialized() else 1
            else:
                rank, world_size = self._rank, self._world_size(plan)
            self._make_up(step, world_size)
            step.turn(rank, world_size).refuse(error)

    def _world_size(self, plan: SavePlan) -> int:
        if self._collective and isinstance(plan.storage_data, int):
            return plan.storage_data
        return dist.get_world_size() if dist.is_initialized() else 1

    def _tree(self, plan: SavePlan, planner: SavePlanner, stand_ins: StandIns) -> Tree:
        tree: Tree = {MARK_KEY: MARK_VERSION}
        shards: dict[str, list[Shard]] = {}
        for item in plan.items:
            fqn = item.index.fqn
            if item.type is WriteItemType.BYTE_IO:
                put(tree, path_of(fqn, plan.planner_data), self._value(item, planner))
            else:
                shards.setdefault(fqn, []).append(_shard(item, planner, stand_ins))
        for fqn, boxes in shards.items():
            leaf = boxes[0] if len(boxes) == 1 else Shards(tuple(boxes))
            put(tree, path_of(fqn, plan.planner_data), leaf)
        return tree

    def _value(self, item: WriteItem, planner: SavePlanner) -> object:
        try:
            stream = cast(io.BytesIO, planner.resolve_data(item))
        except Exception as error:  # Whatever its own `__reduce__` raises.
            raise Refused(
                f"{item.index.fqn}: an object that cannot be pickled: {error}",
                hint="leave it out of the state dict, or keep its state as dicts and numbers",
            ) from None
        packed = pack_value(stream)
        if packed is None and not self.allow_pickle:
            raise Refused(
                f"{item.index.fqn}: not plain data",
                hint="keep its state as dicts, lists, numbers and text, or allow_pickle",
            )
        if packed is None:
            packed = pack_pickle(stream)
        return {key: _whole(array) for key, array in packed.items()}


def _shard(item: WriteItem, planner: SavePlanner, stand_ins: StandIns) -> Shard:
    tensor = cast(torch.Tensor, planner.resolve_data(item)).detach()
    data = item.tensor_data
    assert data is not None, "an item that is not bytes is a tensor"
    try:
        return Shard(stand_ins.array(tensor), tuple(data.size), tuple(data.chunk.offsets))
    except Refused as error:
        raise Refused(f"{item.index.fqn}: {error.message}", hint=error.hint) from None


def _whole(array: AnyArray) -> Shard:
    return Shard(array, array.shape, (0,) * array.ndim)


def _result(item: WriteItem) -> WriteResult:
    index: MetadataIndex = item.index
    return WriteResult(index=index, size_in_bytes=_item_bytes(item), storage_data=None)


def _item_bytes(item: WriteItem) -> int:
    if item.tensor_data is None:
        return item.bytes_io_data.nbytes if item.bytes_io_data is not None else 0
    count = 1
    for extent in cast(Sequence[int], item.tensor_data.chunk.sizes):
        count *= extent
    return count * item.tensor_data.properties.dtype.itemsize
