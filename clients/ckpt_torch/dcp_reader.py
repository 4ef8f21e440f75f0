"""`CkptReader`: DCP's StorageReader over a store, for dcp.load.

Metadata is made from the index. Each rank reads the ranges of its own plan, each byte once; what
several ranks' plans name, one of them reads from the tier (ckpt_client.load.together.sharing).
"""

from __future__ import annotations

import dataclasses
import io
from collections import Counter
from collections.abc import Iterable

import msgspec
import torch
from torch.autograd.graph import increment_version
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader

from ckpt.base.errors import CkptError, Refused
from ckpt.format.dtypes import dtype_of
from ckpt.format.index.pages import IndexTensor
from ckpt.format.tree import path_text
from ckpt_client.load.checkpoint import Checkpoint
from ckpt_client.load.contents import Contents, Want
from ckpt_client.load.plan import check_places
from ckpt_client.save.arrays import AnyArray
from ckpt_client.save.staged import wait_for_stagings
from ckpt_client.step_url import parse_step_url
from ckpt_client.store import Store
from ckpt_torch.dcp_names import DcpPath, parse_name, unpack_value
from ckpt_torch.place import CheckpointName, find_where, find_who
from ckpt_torch.reading.device_reads import DeviceReads, DeviceWant
from ckpt_torch.reading.twins import check_twins, find_twins
from ckpt_torch.tensors import as_array, as_shape, is_apart, torch_dtype
from ckpt_torch.tree import MARK_KEY, PICKLE_KEY, VALUE_KEY

_SUFFIXES = (VALUE_KEY, PICKLE_KEY)


class CkptReader(StorageReader):
    """I read a checkpoint that CkptWriter wrote, for dcp.load.

    path, store: as CkptWriter's; a path without a step means the newest.
    allow_pickle: load objects that were saved as pickles; this runs whatever code they name.
    """

    def __init__(
        self,
        path: CheckpointName | None = None,
        *,
        store: Store | str | None = None,
        allow_pickle: bool = False,
    ) -> None:
        self.checkpoint_id = path
        self._store = store
        self._allow_pickle = allow_pickle
        self._checkpoint: Checkpoint | None = None
        #: DCP's name of an item -> its path in the state, without suffix. `read_metadata` fills
        #: this and the next.
        self._paths: dict[str, DcpPath] = {}
        #: Items that are no tensors -> the suffix of their stored name: how they are to be read.
        self._suffixes: dict[str, str] = {}

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_checkpoint": None}

    # ----------------------------------------------------------------------- DCP's calls, in order

    def reset(self, checkpoint_id: CheckpointName | None = None) -> None:
        """A new load begins."""
        if checkpoint_id is not None:
            self.checkpoint_id = checkpoint_id
        self._close()

    def read_metadata(self, *args: object, **_: object) -> Metadata:
        """What the checkpoint holds. It is pinned against deletion until `read_data` is done.

        No parameter may be called kwargs: DCP would ask a rank whose first call failed for metadata
        of its own, and that rank would take no further part in DCP's collectives.

        Raises NotFound, Unavailable, Lost; Refused for one that DCP's planner did not lay out.
        """
        self._close()
        where = find_where(self.checkpoint_id, self._store)
        who = find_who(None, no_dist=False)
        self._checkpoint = where.store.resolve(
            where.run, where.step, rank=who.rank, world_size=who.world_size
        )
        return self._checkpoint.read(self._metadata)

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: object, **kwargs: object
    ) -> None:
        """Does nothing: `read_metadata` has checked everything."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Tell every rank which of its items others read too."""
        wanted = Counter(_source(item) for plan in plans for item in plan.items)
        return [
            dataclasses.replace(
                plan, storage_data=[wanted[_source(item)] > 1 for item in plan.items]
            )
            for plan in plans
        ]

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> torch.futures.Future[None]:
        """Read everything, straight into the planner's tensors, or through a ring of host memory if
        these lie on a device. Raises Refused for pickles that are not allowed, and for names that
        share memory here and differ in the checkpoint; Unavailable, Lost; Aborted when a device
        fails.
        """
        if self._checkpoint is None:
            self.read_metadata()
        assert self._checkpoint is not None
        items = plan.items
        self._check_pickles(items)
        shared = plan.storage_data or [False] * len(items)
        replicas = {id(item) for item, also in zip(items, shared, strict=True) if also}
        wait_for_stagings()
        values = self._checkpoint.read(
            lambda contents: self._fill(contents, items, planner, replicas)
        )
        for item, stream in values:
            planner.load_bytes(item, stream)
        self._close()
        future: torch.futures.Future[None] = torch.futures.Future()
        future.set_result(None)
        return future

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: CheckpointName) -> bool:
        """Whether it names a checkpoint as we write them."""
        try:
            parse_step_url(str(checkpoint_id))
        except CkptError:
            return False
        return True

    # ----------------------------------------------------------------------- inside

    def _close(self) -> None:
        checkpoint, self._checkpoint = self._checkpoint, None
        if checkpoint is not None:
            checkpoint.close()

    def _metadata(self, contents: Contents) -> Metadata:
        first = contents.ranks()[0]
        mark = path_text((MARK_KEY,))
        if mark not in contents.values(first):
            raise Refused(
                f"{self.checkpoint_id!s} was not saved through CkptWriter",
                hint="load it with ckpt_torch.load, or Store.load",
            )
        found: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
        self._paths, self._suffixes = {}, {}
        for tensor in contents.tensors():
            if tensor.name == mark:
                continue
            path = parse_name(tensor.name)
            if path[-1] in _SUFFIXES:
                path, suffix = path[:-1], str(path[-1])
                self._suffixes[_fqn(path)] = suffix
                found[_fqn(path)] = BytesStorageMetadata()
            else:
                found[_fqn(path)] = _tensor_metadata(tensor)
            self._paths[_fqn(path)] = path
        return Metadata(
            state_dict_metadata=found,
            planner_data=dict(self._paths),
            storage_data={},
            storage_meta=StorageMeta(checkpoint_id=self.checkpoint_id),
        )

    def _check_pickles(self, items: Iterable[ReadItem]) -> None:
        names = sorted(
            item.storage_index.fqn
            for item in items
            if self._suffixes.get(item.storage_index.fqn) == PICKLE_KEY
        )
        if names and not self._allow_pickle:
            raise Refused(
                f"{', '.join(names[:8])}: stored as a pickle, which runs code when loaded",
                hint="pass allow_pickle to CkptReader if you trust whoever saved it",
            )

    def _fill(
        self,
        contents: Contents,
        items: Iterable[ReadItem],
        planner: LoadPlanner,
        replicas: set[int],
    ) -> list[tuple[ReadItem, io.BytesIO]]:
        wants: list[Want] = []
        landed: list[tuple[ReadItem, torch.Tensor]] = []
        places: list[tuple[torch.Tensor, Want]] = []
        objects: list[tuple[ReadItem, AnyArray]] = []
        for item in items:
            also = id(item) in replicas
            if item.type is LoadItemType.BYTE_IO:
                want = self._object(contents, item.storage_index)
                objects.append((item, want.array))
                wants.append(msgspec.structs.replace(want, replica=also))
                continue
            target = planner.resolve_tensor(item).detach()
            landed.append((item, target))
            want = msgspec.structs.replace(self._tensor(item, target), replica=also)
            places.append((target, want))
        filled, twins = find_twins(places)
        apart: list[DeviceWant] = []
        for target, want in filled:
            if is_apart(target.device):
                apart.append(DeviceWant.of(contents, target, want))
            else:
                wants.append(want)
        # Torch does not see that these are filled: see ckpt_torch.reading.loading.
        increment_version([target for _, target in landed])
        with DeviceReads(target for _, target in landed) as devices:
            devices.fill(contents, wants, apart)
            devices.wait_copied()
        check_twins(contents, twins)
        for item, target in landed:
            planner.commit_tensor(item, target)
        return [(item, self._stream(item, array)) for item, array in objects]

    def _tensor(self, item: ReadItem, target: torch.Tensor) -> Want:
        index = item.storage_index
        begin = index.offset if index.offset is not None else (0,) * target.ndim
        offset = tuple(a + b for a, b in zip(begin, item.storage_offsets, strict=True))
        try:
            array = as_shape(target) if is_apart(target.device) else as_array(target)
        except Refused as error:
            raise Refused(f"{index.fqn}: {error.message}", hint=error.hint) from None
        if not target.is_contiguous():
            check_places(index.fqn, target.shape, target.stride())
        return Want(path_text(self._paths[index.fqn]), array, offset)

    def _object(self, contents: Contents, index: MetadataIndex) -> Want:
        name = path_text((*self._paths[index.fqn], self._suffixes[index.fqn]))
        (tensor,) = contents.variants(name)
        array: AnyArray = contents.new_array(tensor.global_shape, dtype_of(tensor.dtype))
        return Want(name, array, (0,) * array.ndim)

    def _stream(self, item: ReadItem, array: AnyArray) -> io.BytesIO:
        """What the planner expects: an object as torch.save wrote it."""
        if self._suffixes[item.storage_index.fqn] == PICKLE_KEY:
            return io.BytesIO(array.tobytes())
        stream = io.BytesIO()
        torch.save(unpack_value(array), stream)
        stream.seek(0)
        return stream


def _source(item: ReadItem) -> tuple[object, ...]:
    """The part of the checkpoint that an item is read from."""
    index = item.storage_index
    return index.fqn, index.offset, tuple(item.storage_offsets), tuple(item.lengths)


def _fqn(path: DcpPath) -> str:
    return ".".join(map(str, path))


def _tensor_metadata(tensor: IndexTensor) -> TensorStorageMetadata:
    """As one chunk, however ranks cut it: a commit says that they hold all of it, and what lies
    where is found when it is read. DCP's planner walks over all chunks of each tensor on each rank.
    """
    whole = ChunkStorageMetadata(
        torch.Size([0] * len(tensor.global_shape)), torch.Size(tensor.global_shape)
    )
    return TensorStorageMetadata(
        properties=TensorProperties(dtype=torch_dtype(tensor.dtype)),
        size=whole.sizes,
        chunks=[whole],
    )
