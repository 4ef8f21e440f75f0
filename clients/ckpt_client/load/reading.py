"""What a load takes from a checkpoint, wherever its bytes lie: a rank's own tree, what `like` asks
for, or all ranks' trees as one.

A Reading is one attempt. The tier's is TierReading, an object store's StoredReading; which of them
a load has is decided in tier_or_store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ckpt.aio.collector import collector_paused
from ckpt.base.errors import Refused
from ckpt.base.ids import Rank
from ckpt.base.units import counted
from ckpt.format.tree import Node
from ckpt.transfer.read_job import ReceiverStatistics
from ckpt_client.load.plan import (
    BoxReads,
    ItemPlaces,
    TensorIndex,
    address_of,
    new_array,
    overlapping,
)
from ckpt_client.load.trees import (
    Filled,
    LikeWalk,
    WholeWalk,
    check_lengths,
    own_tree,
    scalars_of,
)
from ckpt_client.save.arrays import AnyArray

if TYPE_CHECKING:
    from ckpt.objects.reader import StoreStatistics


class Reading(Protocol):
    """Reads one generation, until it is closed."""

    @property
    def name(self) -> str:
        """Of the checkpoint, for messages."""

    @property
    def world_size(self) -> int:
        """How many ranks saved it."""

    @property
    def index(self) -> TensorIndex:
        """Its tensors. Raises Corrupt, Unavailable."""

    @property
    def sources(self) -> set[str]:
        """Where bytes came from so far: `peers`, `stager`, `store`, `tier`."""

    @property
    def tier_statistics(self) -> tuple[ReceiverStatistics, ...]:
        """Of its reads from the tier, and from ranks that read it too."""

    @property
    def store_statistics(self) -> StoreStatistics | None:
        """Of its reads from an object store."""

    def ranks(self) -> list[Rank]:
        """Those that saved, ascending."""

    def documents(self, ranks: Iterable[Rank]) -> Mapping[Rank, Node]:
        """Their trees. Raises as `read`."""

    def expect(self, wanted_bytes: int, *, in_pieces: bool) -> None:
        """Make ready for reading so much, into many small arrays or few; before anything is read.
        It may become less."""

    def new_reads(self) -> BoxReads:
        """To note in it what to read."""

    def read(self, reads: BoxReads) -> None:
        """Fill everything that was noted; verified. Raises Corrupt, Unavailable."""

    def close(self) -> None:
        """Let its connections and memory go. What it counted stays."""


def load_tree(
    reading: Reading,
    rank: Rank | None,
    world_size: int | None,
    like: object = None,
    *,
    strict: bool = True,
    whole: bool = False,
) -> object:
    """The tree that is asked for, filled. Takes and raises what `Checkpoint.load` does.

    rank, world_size: the caller's, if that is known.
    """
    if whole:
        return _whole_tree(reading)
    if like is not None:
        return _like_tree(reading, rank, like, strict)
    return _own_tree(reading, rank, world_size)


def _own_tree(reading: Reading, rank: Rank | None, world_size: int | None) -> object:
    saved_by = reading.world_size
    if rank is None or world_size != saved_by or rank not in reading.ranks():
        caller = "nobody in particular" if rank is None else f"rank {rank} of {world_size}"
        raise Refused(
            f"{reading.name} was saved by {counted(saved_by, 'rank')}; you are {caller}",
            hint="pass rank= and world_size=, a like= tree, or whole=True",
        )
    root = reading.documents([rank])[rank]
    reads = reading.new_reads()
    with collector_paused():
        state = own_tree(reading.index, rank, root, reads)
    reading.read(reads)
    return state


def _like_tree(reading: Reading, rank: Rank | None, like: object, strict: bool) -> object:
    ranks = reading.ranks()
    reader = rank if rank is not None and rank in ranks else ranks[0]
    root = reading.documents([reader])[reader]
    scalars = scalars_of(root)
    reads = reading.new_reads()
    with collector_paused():
        walk = LikeWalk(reading.index, reader, scalars, reads, strict)
        state = walk.fill(like)
    check_lengths(like, root)
    reading.read(reads)
    for twin, name in walk.twins:
        _compare(reading, reader, twin, name)
    _check_shared(reading, reader, walk.filled)
    return state


def _check_shared(reading: Reading, rank: Rank, filled: Sequence[Filled]) -> None:
    """Raises Refused naming two arrays of `like` in whose common memory the checkpoint has two
    things: what was read last would have won.
    """

    arrays = [array for *_, array in filled]
    if _are_apart(arrays):
        return

    def place(number: int) -> ItemPlaces:
        array = arrays[number]
        return ItemPlaces(address_of(array), array.shape, array.strides, array.itemsize)

    spans = [(*_reach(array), n) for n, array in enumerate(arrays) if array.nbytes]
    table = np.array(spans, np.int64).reshape(-1, 3)
    for number, other in overlapping([table], place).items():
        _compare(reading, rank, filled[number], filled[other][0].name)


def _compare(reading: Reading, rank: Rank, filled: Filled, other: str) -> None:
    """Read it aside. Raises Refused where its memory, which `other` fills as well, is not that."""
    tensor, boxes, offset, array = filled
    reads = reading.new_reads()
    aside = new_array(reads, tensor, array.shape)
    reads.add_box(tensor, boxes, offset, aside, rank)
    reading.read(reads)
    if _bits(aside) != _bits(array):
        raise Refused(
            f"{tensor.name} and {other} share memory here, and differ in the checkpoint",
            hint="load into arrays that share none, or leave out the name that is not wanted",
        )


def _are_apart(arrays: Iterable[AnyArray]) -> bool:
    """Whether each is in memory that numpy gave to it alone; what others lent is not known."""
    owners = [array if array.base is None else array.base for array in arrays]
    theirs = all(isinstance(owner, np.ndarray) and owner.flags.owndata for owner in owners)
    return theirs and len(set(map(id, owners))) == len(owners)


def _reach(array: AnyArray) -> tuple[int, int]:
    """From its lowest byte to the end of its highest one."""
    start = address_of(array)
    if array.flags.c_contiguous:
        return start, start + array.nbytes
    steps = [(size - 1) * step for size, step in zip(array.shape, array.strides, strict=True)]
    low = start + sum(step for step in steps if step < 0)
    return low, start + sum(step for step in steps if step > 0) + array.itemsize


def _bits(array: AnyArray) -> bytes:
    """NaN equals itself, and 0.0 is not -0.0."""
    return array.tobytes()


def _whole_tree(reading: Reading) -> object:
    roots = reading.documents(reading.ranks())
    reads = reading.new_reads()
    with collector_paused():
        state = WholeWalk(reading.index, reads).merge(roots)
    reading.read(reads)
    return state
