"""Loading from an object store without a cluster: `ckpt.load("s3://bucket/run@500")`."""

from __future__ import annotations

from collections.abc import Mapping

from ckpt.base.errors import Refused
from ckpt.base.ids import Rank
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
from ckpt.objects.reader import StoredCheckpoint, open_stored
from ckpt.objects.sinks.stores import open_sink
from ckpt.objects.source import Source
from ckpt_client.environment import find_place
from ckpt_client.load.reading import load_tree
from ckpt_client.load.stored_reading import SourceIndex, StoredReading, WishList
from ckpt_client.load.trees import own_tree
from ckpt_client.save.shards import Replicated


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
    reading = StoredReading(open_url(url, storage_options))
    try:
        return load_tree(reading, place.rank, place.world_size, like, strict=strict, whole=whole)
    finally:
        reading.close()


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
