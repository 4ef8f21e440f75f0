"""Loading from an object store: without a cluster, `ckpt.load("s3://bucket/run@500")`, and what a
cluster's tier has not got any more.

Only the chunks that the caller's boxes need are fetched; each is verified (ckpt.objects.reader).
Where there is a cluster, ranks that read the same at the same time fetch it once
(together/chunks.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from ckpt.aio.first_touch import FirstTouch
from ckpt.base.errors import CkptError, Lost, NotFound, Refused
from ckpt.base.ids import CheckpointId, Rank, Step, check_run_name, check_step
from ckpt.base.units import US_PER_S, format_bytes
from ckpt.format.index_pages import IndexBox, IndexTensor
from ckpt.format.messages.loading import ConfirmLoad, LoadConfirmed
from ckpt.format.table import Meaning
from ckpt.format.tree import (
    DictNode,
    LeafNode,
    ListNode,
    Node,
    Path,
    ScalarNode,
    SequenceIndex,
    TupleNode,
    path_text,
)
from ckpt.objects.names import parse_stored
from ckpt.objects.reader import StoredCheckpoint, StoreStatistics, Together, open_stored
from ckpt.objects.source import Source, Wish
from ckpt.objects.stores import open_sink
from ckpt_client.connection import Connection
from ckpt_client.environment import RankPlace, find_place
from ckpt_client.load import load_counts
from ckpt_client.load.plan import BoxReads
from ckpt_client.load.together.chunks import StoreTogether
from ckpt_client.load.together.meeting import ANSWER_SLACK_S, Meeting, open_meeting, share_key
from ckpt_client.load.trees import LikeWalk, WholeWalk, own_tree, scalars_of
from ckpt_client.save.shards import Replicated
from ckpt_client.save.state import AnyArray
from ckpt_client.warn import warn

_log = logging.getLogger("ckpt.restore")


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
    connection: Connection,
    durable: str,
    run: str,
    step: int | None,
    like: object,
    place: RankPlace,
    reason: CkptError,
    *,
    launch_key: str | None,
    timeout_s: float,
    strict: bool,
    whole: bool,
) -> object:
    """A step from the object store, without a number the newest one there, because of why the tier
    cannot give it; warns.

    Raises that reason when the store has not got it either; Lost when other ranks of the launch
    have another generation, because the step was saved, or drained, again meanwhile.
    """
    context = connection.reader(durable)
    number = None if step is None else check_step(step)
    try:
        stored = open_stored(open_sink(context.durable), check_run_name(run), number)
    except NotFound:
        raise reason from None
    found = f"{run}@{stored.header.step}"
    text = f"{found} is loaded from {stored.url}: {reason.message}"
    warn(text)
    with ExitStack() as held:
        held.callback(stored.close)
        key = share_key(launch_key, place.world_size)
        together = None
        if key is not None:
            together = StoreTogether(held.enter_context(open_meeting(context, timeout_s)), key)
        state = load_from(
            stored, like, place.rank, place.world_size, together, strict=strict, whole=whole
        )
        _tell(stored)
        _confirm(connection, stored, number, place, timeout_s)
        return state


def _confirm(
    connection: Connection,
    stored: StoredCheckpoint,
    step: Step | None,
    place: RankPlace,
    timeout_s: float,
) -> None:
    """Ask whether all ranks of the launch load what this one has found in the store."""
    control, id = connection.control, CheckpointId(*stored.header.key)
    run = id.run
    join = control.join if step is None else control.join_to_read
    joined = join(run, place.rank, place.world_size)
    if place.world_size == 1 or joined is None or not joined.by_number:
        return
    key = (connection.cluster, run, joined.launch, place.rank, id.step)
    number = load_counts.next_load(key)
    turn = joined.turn if step is None else number
    question = ConfirmLoad(
        run, joined.launch, place.rank, turn, id, int(timeout_s * US_PER_S), step, stored=True
    )
    answer, _ = control.call(question, LoadConfirmed, timeout_s=timeout_s + ANSWER_SLACK_S)
    if answer.superseded:
        raise Lost(
            f"{id} was loaded from {stored.url}, but {answer.superseded}: two generations would "
            "meet in one job",
            hint="end all ranks and start them again",
        )
    load_counts.confirmed(key, number)
    if step is None:
        control.resolved(run, place.rank, place.world_size, turn)


def _tell(stored: StoredCheckpoint) -> None:
    found = stored.statistics()
    _log.info(
        "%s: %s were wanted, %s fetched, %s came from other ranks",
        stored.url,
        format_bytes(found.wanted_bytes),
        format_bytes(found.fetched_bytes),
        format_bytes(found.peer_bytes),
    )


class StoredReading:
    """What `Checkpoint` reads of a generation that the tier cannot give and stores hold. Close
    me."""

    def __init__(
        self,
        checkpoint: CheckpointId,
        stores: Sequence[str],
        reason: CkptError,
        meeting: Meeting | None,
        share_key: str | None,
    ) -> None:
        """From the first of the stores that has it, with ranks of that key, where they can meet.

        reason: why the tier cannot give it; raised when no store has it either.

        Raises Corrupt, Refused, Unavailable.
        """
        self._source = _first_holding(checkpoint, stores, reason)
        self._together: Together | None = None
        if meeting is not None and share_key is not None:
            self._together = StoreTogether(meeting, share_key)
        self.url = self._source.url
        self.index = SourceIndex(self._source)
        self._trees = self._source.trees()

    def ranks(self) -> list[Rank]:
        """Those that saved, ascending."""
        return sorted(self._trees)

    def documents(self, ranks: Iterable[Rank]) -> dict[Rank, Node]:
        """Their trees."""
        return {rank: self._trees[rank] for rank in ranks}

    def new_reads(self) -> BoxReads:
        return WishList()

    def read(self, reads: BoxReads) -> None:
        """Fill everything that was noted in what `new_reads` gave."""
        assert isinstance(reads, WishList)
        reads.fill_by(partial(self._source.read, together=self._together))
        _tell(self._source)

    def statistics(self) -> StoreStatistics:
        """Of all reads so far."""
        return self._source.statistics()

    def close(self) -> None:
        self._source.close()


def _first_holding(
    checkpoint: CheckpointId, stores: Sequence[str], reason: CkptError
) -> StoredCheckpoint:
    run, step, generation = checkpoint.run, checkpoint.step, checkpoint.generation
    for url in stores:
        with suppress(NotFound):
            return StoredCheckpoint.open(open_sink(url), run, step, generation)
    text = f"{reason.message}, and not to be found in {' or '.join(stores)}"
    raise type(reason)(text, hint=reason.hint)


def load_from(
    source: StoredCheckpoint,
    like: object,
    rank: Rank,
    world_size: int,
    together: Together | None = None,
    *,
    strict: bool,
    whole: bool,
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
    reads.fill_by(partial(source.read, together=together))
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
                return [
                    walk(child, (*path, SequenceIndex(at))) for at, child in enumerate(children)
                ]
            case TupleNode(children):
                return tuple(
                    walk(child, (*path, SequenceIndex(at))) for at, child in enumerate(children)
                )
            case ScalarNode(value):
                return Replicated(value) if index.is_replicated(path_text(path)) else value
            case LeafNode(name):
                array = own_tree(index, rank, node, reads)
                return Replicated(array) if index.is_replicated(name) else array

    state = walk(source.trees()[rank], ())
    reads.fill_by(source.read)
    return state


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
