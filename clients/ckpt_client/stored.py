"""Loading from an object store, without a cluster: `ckpt.load("s3://bucket/run@500")`.

Only the chunks that the caller's boxes need are fetched; each is verified (ckpt.objects.reader).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ckpt.base.errors import CkptError, NotFound, Refused
from ckpt.base.ids import Rank, check_run_name, check_step
from ckpt.format.index import Box, IndexTensor
from ckpt.format.table import Meaning
from ckpt.format.tree import (
    DictNode,
    Index,
    LeafNode,
    ListNode,
    Node,
    Path,
    ScalarNode,
    TupleNode,
    path_text,
)
from ckpt.objects.names import parse_stored
from ckpt.objects.reader import StoredCheckpoint, open_stored
from ckpt.objects.source import Source, Wish
from ckpt.objects.stores import open_sink
from ckpt_client.declare import Replicated
from ckpt_client.environment import Place, find_place
from ckpt_client.restore_trees import LikeWalk, WholeWalk, own_tree, scalars_of
from ckpt_client.state import AnyArray


def open_url(url: str, options: Mapping[str, object] | None = None) -> StoredCheckpoint:
    """The committed checkpoint of `STORE/RUN@STEP`; without a step the newest. Close it.

    Raises Refused, NotFound, Corrupt, Unavailable.
    """
    store, run, step = parse_stored(url)
    return open_stored(open_sink(store, options), run, step)


def load(
    url: str,
    like: object = None,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    strict: bool = True,
    whole: bool = False,
    storage_options: Mapping[str, object] | None = None,
) -> object:
    """As `Checkpoint.load`: this rank's own tree, what `like` asks for, or the union of all
    ranks."""
    if whole and like is not None:
        raise Refused("like= and whole= exclude each other")
    place = find_place(rank, world_size)
    stored = open_url(url, storage_options)
    try:
        return load_from(stored, like, place.rank, place.world_size, strict=strict, whole=whole)
    finally:
        stored.close()


def load_instead(
    store: str,
    run: str,
    step: int | None,
    like: object,
    place: Place,
    reason: CkptError,
    *,
    strict: bool,
    whole: bool,
) -> object:
    """A step from the object store, without a number the newest one there, because of why the tier
    cannot give it; warns.

    All ranks find the same one: a run of which the tier has nothing that can be loaded is drained
    no further. Raises that reason when the store has not got it either.
    """
    number = None if step is None else check_step(step)
    try:
        stored = open_stored(open_sink(store), check_run_name(run), number)
    except NotFound:
        raise reason from None
    found = f"{run}@{stored.header.step}"
    warnings.warn(
        f"{found} is loaded from {stored.url}: {reason.message}", UserWarning, stacklevel=4
    )
    try:
        return load_from(stored, like, place.rank, place.world_size, strict=strict, whole=whole)
    finally:
        stored.close()


def load_from(
    source: Source, like: object, rank: Rank, world_size: int, *, strict: bool, whole: bool
) -> object:
    """The tree that is asked for, filled."""
    index, reads, trees = SourceIndex(source), WishList(), source.trees()
    if whole:
        state = WholeWalk(index, reads).merge(trees)
    elif like is not None:
        reader = rank if rank in trees else min(trees)
        walk = LikeWalk(index, reader, scalars_of(trees[reader]), reads, strict)
        state = walk.fill(like)
    else:
        state = _own(source, index, reads, trees, rank, world_size)
    source.read(reads.wishes)
    reads.finish()
    return state


def _own(
    source: Source,
    index: SourceIndex,
    reads: WishList,
    trees: Mapping[Rank, Node],
    rank: Rank,
    world_size: int,
) -> object:
    saved_by = source.header.world_size
    if world_size != saved_by or rank not in trees:
        raise Refused(
            f"{source.header} was saved by {saved_by} ranks; you are rank {rank} of {world_size}",
            hint="pass rank= and world_size=, a like= tree, or whole=True",
        )
    return own_tree(index, rank, trees[rank], reads)


def declared_tree(source: Source, rank: Rank) -> object:
    """A rank's tree with all that it declared, to be saved again: Shard, Shards, Replicated."""
    index, reads = SourceIndex(source), WishList()

    def walk(node: Node, path: Path) -> object:
        match node:
            case DictNode(items):
                return {key: walk(child, (*path, key)) for key, child in items}
            case ListNode(children):
                return [walk(child, (*path, Index(at))) for at, child in enumerate(children)]
            case TupleNode(children):
                return tuple(walk(child, (*path, Index(at))) for at, child in enumerate(children))
            case ScalarNode(value):
                return Replicated(value) if index.is_replicated(path_text(path)) else value
            case LeafNode(name):
                array = own_tree(index, rank, node, reads)
                return Replicated(array) if index.is_replicated(name) else array

    state = walk(source.trees()[rank], ())
    source.read(reads.wishes)
    reads.finish()
    return state


class SourceIndex:
    """A source's tensors by name; see ckpt_client.restore_plan.TensorIndex."""

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

    def is_replicated(self, name: str) -> bool:
        """Whether all ranks that have the name have the same, and said so."""
        forms = self._by_name.get(name, ())
        return any(tensor.meaning is Meaning.REPLICATED for tensor in forms)


@dataclass(slots=True)
class WishList:
    """What one load reads from a source; see ckpt_client.restore_plan.Reads."""

    wishes: list[Wish] = field(default_factory=list)
    copies: list[tuple[AnyArray, AnyArray]] = field(default_factory=list)
    """(destination, what was read aside for it)."""

    def add_box(
        self, tensor: IndexTensor, boxes: Sequence[Box], offset: tuple[int, ...], array: AnyArray,
        prefer: Rank | None = None, replica: bool = False,
    ) -> None:  # fmt: skip
        memory = array
        if not array.flags.c_contiguous:
            memory = np.empty(array.shape, array.dtype)
            self.copies.append((array, memory))
        owner = boxes[0].rank if tensor.meaning is Meaning.OWN else None
        self.wishes.append(Wish(tensor, owner, offset, memory))

    def finish(self) -> None:
        """Everything was read: copy what was read aside."""
        for target, source in self.copies:
            np.copyto(target, source, casting="no")
