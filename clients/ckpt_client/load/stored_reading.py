"""Reading from an object store: only the chunks that the wanted boxes need are fetched, each is
verified (ckpt.objects.reader). Ranks that can meet fetch what they share once (together/chunks.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from ckpt.aio.first_touch import FirstTouch
from ckpt.base.errors import NotFound
from ckpt.base.ids import Rank
from ckpt.base.units import format_bytes
from ckpt.format.index.pages import IndexBox, IndexTensor
from ckpt.format.index.rows import is_global_or_of
from ckpt.format.table import Meaning
from ckpt.format.tree import Node
from ckpt.objects.reader import StoredCheckpoint, StoreStatistics, Together
from ckpt.objects.source import Source, Wish
from ckpt.transfer.read_job import ReceiverStatistics
from ckpt_client.load.plan import BoxReads
from ckpt_client.save.arrays import AnyArray

_log = logging.getLogger("ckpt.restore")


class StoredReading:
    """One attempt; see ckpt_client.load.reading.Reading. Closes the checkpoint that it reads."""

    def __init__(self, stored: StoredCheckpoint, together: Together | None = None) -> None:
        """Raises Corrupt, Unavailable; it is closed then."""
        self._stored = stored
        self._together = together
        self.name = str(stored.header)
        self.world_size = stored.header.world_size
        self.index = SourceIndex(stored)
        self.sources: set[str] = set()
        self.tier_statistics: tuple[ReceiverStatistics, ...] = ()
        self.store_statistics: StoreStatistics | None = None
        try:
            self._trees = stored.trees()
        except BaseException:
            stored.close()
            raise

    def ranks(self) -> list[Rank]:
        return sorted(self._trees)

    def documents(self, ranks: Iterable[Rank]) -> dict[Rank, Node]:
        return {rank: self._trees[rank] for rank in ranks}

    def expect(self, wanted_bytes: int, *, in_pieces: bool) -> None:
        """Makes no difference to it."""

    def new_reads(self) -> BoxReads:
        return WishList()

    def read(self, reads: BoxReads) -> None:
        assert isinstance(reads, WishList)
        reads.fill_by(partial(self._stored.read, together=self._together))
        self.store_statistics = moved = self._stored.statistics()
        self.sources |= {"store", "peers"} if moved.peer_bytes else {"store"}
        _log.info(
            "%s: %s were wanted, %s fetched, %s came from other ranks",
            self._stored.url,
            format_bytes(moved.wanted_bytes),
            format_bytes(moved.fetched_bytes),
            format_bytes(moved.peer_bytes),
        )

    def close(self) -> None:
        self._stored.close()


class SourceIndex:
    """A source's tensors by name; see ckpt_client.load.plan.TensorIndex."""

    def __init__(self, source: Source) -> None:
        self._tensors = source.tensors()
        self._by_name: dict[str, list[IndexTensor]] = {}
        for tensor in self._tensors:
            self._by_name.setdefault(tensor.name, []).append(tensor)

    def variants(self, name: str) -> tuple[IndexTensor, ...]:
        if name not in self._by_name:
            raise NotFound(f"there is no tensor {name}")
        return tuple(self._by_name[name])

    def tensors(self) -> Iterable[IndexTensor]:
        return self._tensors

    def names_beyond(self, seen: Set[str], rank: Rank) -> Iterable[str]:
        return (
            name for name, forms in self._by_name.items()
            if name not in seen and any(is_global_or_of(rank, form) for form in forms)
        )  # fmt: skip

    def is_replicated(self, name: str) -> bool:
        """Whether all ranks that have the name have the same, and said so."""
        forms = self._by_name.get(name, ())
        return any(tensor.meaning is Meaning.REPLICATED for tensor in forms)


@dataclass(slots=True)
class WishList:
    """What one load reads from a source; see ckpt_client.load.plan.BoxReads."""

    wishes: list[Wish] = field(default_factory=list)
    copies: list[tuple[AnyArray, AnyArray]] = field(default_factory=list)
    """(destination, what was read aside for it)."""
    memory: FirstTouch = field(default_factory=FirstTouch)

    def add_box(
        self, tensor: IndexTensor, boxes: Sequence[IndexBox], offset: tuple[int, ...],
        array: AnyArray,
        prefer: Rank | None = None, replica: bool = False,
    ) -> None:  # fmt: skip
        memory = array
        if not array.flags.c_contiguous:
            memory = self.memory.array(array.shape, array.dtype)
            self.copies.append((array, memory))
        is_own = tensor.meaning is Meaning.OWN
        shared = not is_own and (replica or array.shape == tensor.global_shape)
        owner = boxes[0].rank if is_own else None
        self.wishes.append(Wish(tensor, owner, offset, memory, shared))

    def fill_by(self, read: Callable[[Sequence[Wish]], None]) -> None:
        """Everything, and copy what was read aside."""
        with self.memory:
            read(self.wishes)
        for target, source in self.copies:
            np.copyto(target, source, casting="no")
