"""The three trees that a load can return: a rank's own, one that looks like another, the union of
all ranks'.

Each walk makes the arrays and notes what fills them; the bytes come afterwards, all at once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

from ckpt.base.errors import Refused
from ckpt.base.ids import Rank
from ckpt.format.index.pages import IndexBox, IndexTensor
from ckpt.format.index.rows import boxes_of
from ckpt.format.table import Meaning
from ckpt.format.tree import (
    DictNode,
    Key,
    LeafNode,
    ListNode,
    Node,
    Path,
    ScalarNode,
    SequenceIndex,
    TupleNode,
    below,
    names_below,
    path_text,
    step_text,
)
from ckpt_client.load.plan import (
    BoxReads,
    TensorIndex,
    address_of,
    checked_dtype,
    in_place,
    new_array,
    tensor_of_rank,
    variants_of,
)
from ckpt_client.save.arrays import AnyArray
from ckpt_client.save.shards import Box, PerRank, Replicated, Shard, Shards, check_box
from ckpt_client.save.state import unflatten

NAMES_SHOWN_MAX: Final = 8
_SCALARS: Final = frozenset((bool, int, float, complex, str, bytes, type(None)))
_CONTAINERS: Final = (dict, list, tuple, Replicated)


def own_tree(index: TensorIndex, rank: Rank, root: Node, reads: BoxReads) -> object:
    """The rank's tree as it was saved: Shards as Shard, replicas and own leaves as arrays."""

    def leaf(name: str) -> object:
        tensor, boxes = tensor_of_rank(index, name, rank)
        arrays = []
        for box in boxes:
            array = new_array(reads, tensor, box.shape)
            reads.add_box(tensor, (box,), box.offset, array, rank)
            arrays.append(array)
        if tensor.meaning is not Meaning.SHARD:
            return arrays[0]
        shards = [
            Shard(array, tensor.global_shape, box.offset)
            for box, array in zip(boxes, arrays, strict=True)
        ]
        return shards[0] if len(shards) == 1 else Shards(tuple(shards))

    return unflatten(root, leaf)


# --------------------------------------------------------------------------- like

Filled = tuple[IndexTensor, Sequence[IndexBox], tuple[int, ...], AnyArray]
"""(tensor, its boxes that are read, the offset in it, the caller's own memory)."""


@dataclass(slots=True)
class LikeWalk:
    """I walk a caller's `like` tree. `rank`: whose own leaves and plain values are meant."""

    index: TensorIndex
    rank: Rank
    scalars: Mapping[str, ScalarNode]
    """Plain values of that rank's tree, by path."""
    reads: BoxReads
    strict: bool
    seen: set[str] = field(default_factory=set)
    """Paths that the like tree names."""
    absent: list[str] = field(default_factory=list)
    """Those of them of which the checkpoint has nothing."""
    filled: list[Filled] = field(default_factory=list)
    twins: list[tuple[Filled, str]] = field(default_factory=list)
    """Names of memory that another one fills, and that one's: nothing is read for them here."""
    #: By the id of the array that has the memory: the first that is filled there.
    _owners: dict[int, Filled] = field(default_factory=dict)
    #: Of owners with several arrays.
    _places: dict[Hashable, Filled] = field(default_factory=dict)

    def fill(self, like: object) -> object:
        """The tree with its Boxes replaced by arrays and its plain values by those stored."""
        state = self._visit(like, "")
        if self.strict:
            self._check_keys()
        return state

    def _check_keys(self) -> None:
        beyond = self.index.names_beyond(self.seen, self.rank)
        problems = []
        if self.absent:
            problems.append(f"the checkpoint has no {listed(self.absent)}")
        surplus = sorted({*beyond, *(self.scalars.keys() - self.seen)})
        if surplus:
            problems.append(f"like does not name {listed(surplus)}")
        if problems:
            raise Refused("; ".join(problems), hint="strict=False loads what is there")

    def _visit(self, value: object, name: str) -> object:
        """name: the value's path as text."""
        if isinstance(value, Replicated):
            return self._visit(value.tree, name)
        if type(value) is dict:
            pairs = list(value.items())
            names = names_below(name, [key for key, _ in pairs])
            return {
                key: self._visit(child, inner)
                for inner, (key, child) in zip(names, pairs, strict=True)
            }
        if type(value) is list or type(value) is tuple:
            items = [
                self._visit(child, below(name, SequenceIndex(i))) for i, child in enumerate(value)
            ]
            return items if type(value) is list else tuple(items)
        self.seen.add(name)
        if type(value) in _SCALARS:
            return self._scalar(value, name)
        variants = variants_of(self.index, name)
        if name in self.scalars and not (_is_none(self.scalars[name]) and are_global(variants)):
            raise Refused(f"{name}: stored as a plain value, like has a {type(value).__qualname__}")
        if not variants:
            self.absent.append(name)
            return value
        return self._tensor(value, name, variants)

    def _scalar(self, value: object, name: str) -> object:
        stored = self.scalars.get(name)
        if stored is not None:
            return stored.value
        if variants_of(self.index, name):
            raise Refused(f"{name}: stored as an array, like has a {type(value).__qualname__}")
        self.absent.append(name)
        return value

    def _tensor(self, value: object, name: str, variants: Sequence[IndexTensor]) -> object:
        tensor, boxes = self._choose(name, variants)
        whole = tensor.global_shape
        if isinstance(value, Box):
            box_inside(name, value.offset, value.shape, whole)
            array = new_array(self.reads, tensor, value.shape)
            self.reads.add_box(tensor, boxes, value.offset, array, self.rank)
            return array
        if isinstance(value, Shards):
            for shard in value.boxes:
                self._tensor(shard, name, variants)
            return value
        if isinstance(value, Shard):
            array = in_place(name, value.array)
            if value.global_shape != whole:
                raise Refused(
                    f"{name}: stored with global shape {whole}, like has {value.global_shape}"
                )
            offset = value.offset
        else:
            array = in_place(name, value)
            if array.shape != whole:
                raise Refused(
                    f"{name}: stored with shape {whole}, like has {array.shape}",
                    hint="a Shard or a Box takes a part",
                )
            offset = (0,) * array.ndim
        checked_dtype(name, tensor, array)
        filled = tensor, boxes, offset, array
        if array.nbytes and self._is_filled(filled):
            return value
        self.reads.add_box(tensor, boxes, offset, array, self.rank)
        self.filled.append(filled)
        return value

    def _is_filled(self, filled: Filled) -> bool:
        """Whether another name fills exactly this memory, as where one array has two names. One
        that another library than numpy lent is not known again.
        """
        array = filled[-1]
        owner = id(array if array.base is None else array.base)
        first = self._owners.setdefault(owner, filled)
        if first is filled:
            return False  # As nearly always: its address, which costs more, is not asked for.
        self._places.setdefault(_place_of(first[-1]), first)
        other = self._places.setdefault(_place_of(array), filled)
        if other is filled:
            return False
        self.twins.append((filled, other[0].name))
        return True

    def _choose(
        self, name: str, variants: Sequence[IndexTensor]
    ) -> tuple[IndexTensor, Sequence[IndexBox]]:
        """The tensor that is meant, and the boxes that may be read for it."""
        for tensor in variants:
            if tensor.meaning is not Meaning.OWN:
                return tensor, tensor.boxes
            mine = boxes_of(tensor.boxes, self.rank)
            if mine:
                return tensor, mine
        if len(variants) == 1 and len(variants[0].boxes) == 1:
            return variants[0], variants[0].boxes
        owners = sorted(box.rank for tensor in variants for box in tensor.boxes)
        raise Refused(
            f"{name}: belongs to ranks {owners[:NAMES_SHOWN_MAX]}, not to rank {self.rank}",
            hint="load with rank= and the saved world_size=, or with whole=True",
        )


def check_lengths(like: object, stored: Node | None, path: Path = ()) -> None:
    """Raises Refused by path for a list or tuple of which the checkpoint has more items than
    `like`: what is missing there may not be what comes last.
    """
    if isinstance(like, Replicated):
        check_lengths(like.tree, stored, path)
    inner: dict[Key | SequenceIndex, object] = {}
    if type(like) is dict:
        inner = {key: child for key, child in like.items() if type(child) in _CONTAINERS}
    elif isinstance(stored, ListNode | TupleNode) and (type(like) is list or type(like) is tuple):
        here = cast(Sequence[object], like)
        if len(stored.items) > len(here):
            raise Refused(
                f"{path_text(path) or 'root'}: {len(stored.items)} items in the checkpoint, "
                f"{len(here)} here",
                hint="ask for as many items as were saved",
            )
        inner = {SequenceIndex(n): one for n, one in enumerate(here) if type(one) in _CONTAINERS}
    there = dict(children_of(stored)) if inner and stored is not None else {}
    for key, child in inner.items():
        check_lengths(child, there.get(step_text(key)), (*path, key))


def children_of(node: Node) -> Iterator[tuple[str, Node]]:
    """What lies directly below, each with its step as text."""
    if isinstance(node, DictNode):
        yield from ((step_text(key), child) for key, child in node.items)
    elif isinstance(node, ListNode | TupleNode):
        yield from ((step_text(SequenceIndex(n)), child) for n, child in enumerate(node.items))


def scalars_of(root: Node) -> dict[str, ScalarNode]:
    """A tree's plain values, by path."""
    found: dict[str, ScalarNode] = {}

    def visit(node: Node, path: Path) -> None:
        match node:
            case DictNode(items):
                for key, child in items:
                    if type(child) is not LeafNode:
                        visit(child, (*path, key))
            case ListNode(items) | TupleNode(items):
                for position, child in enumerate(items):
                    if type(child) is not LeafNode:
                        visit(child, (*path, SequenceIndex(position)))
            case ScalarNode():
                found[path_text(path)] = node
            case LeafNode():
                return

    visit(root, ())
    return found


def _place_of(array: AnyArray) -> Hashable:
    """Equal for arrays that are the same elements of the same memory."""
    return address_of(array), array.dtype, array.shape, array.strides


def _is_none(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.value is None


def are_global(variants: Sequence[IndexTensor]) -> bool:
    """Whether a rank's None at this name says that it holds nothing of a global tensor; else it is
    a value.
    """
    return bool(variants) and all(tensor.meaning is Meaning.SHARD for tensor in variants)


def box_inside(
    name: str, offset: tuple[int, ...], shape: tuple[int, ...], whole: tuple[int, ...]
) -> None:
    """Raises Refused by name unless the box lies within the tensor."""
    try:
        check_box("Box", shape, whole, offset)
    except Refused as error:
        raise Refused(f"{name}: {error.message}") from None


def listed(names: Sequence[str]) -> str:
    """The first few of them, and how many more there are."""
    shown = ", ".join(name or "root" for name in names[:NAMES_SHOWN_MAX])
    more = len(names) - NAMES_SHOWN_MAX
    return f"{shown} and {more} more" if more > 0 else shown


# --------------------------------------------------------------------------- whole


@dataclass(slots=True)
class WholeWalk:
    """I merge all ranks' trees: global tensors as whole arrays, what belongs to ranks as
    PerRank."""

    index: TensorIndex
    reads: BoxReads

    def merge(self, roots: Mapping[Rank, Node]) -> object:
        """The union; where ranks' trees differ in kind, PerRank of their parts."""
        return self._merge(sorted(roots.items()), ())

    def _merge(self, nodes: list[tuple[Rank, Node]], path: Path) -> object:
        nodes = self._holding(nodes, path)
        kinds = {type(node) for _, node in nodes}
        if len(kinds) > 1:
            return self._apart(nodes)
        match nodes[0][1]:
            case DictNode():
                return self._merge_dicts(nodes, path)
            case ListNode() | TupleNode():
                return self._merge_sequences(nodes, path)
            case ScalarNode():
                return self._merge_scalars(nodes, path)
            case LeafNode(name):
                return self._merge_leaves(name, [rank for rank, _ in nodes])

    def _holding(self, nodes: list[tuple[Rank, Node]], path: Path) -> list[tuple[Rank, Node]]:
        """Those that have some of a global tensor, where the others have None."""
        leaves = [one for one in nodes if isinstance(one[1], LeafNode)]
        others = [node for _, node in nodes if not isinstance(node, LeafNode)]
        if not leaves or not others or not all(map(_is_none, others)):
            return nodes
        return leaves if are_global(variants_of(self.index, path_text(path))) else nodes

    def _merge_dicts(self, nodes: list[tuple[Rank, Node]], path: Path) -> object:
        merged: dict[object, list[tuple[Rank, Node]]] = {}
        paths: dict[object, Path] = {}
        for rank, node in nodes:
            assert isinstance(node, DictNode)
            for key, child in node.items:
                # 1 and True are equal as keys of a dict, and different keys of a tree.
                merged.setdefault((type(key), key), []).append((rank, child))
                paths[type(key), key] = (*path, key)
        return {
            paths[key][-1]: self._merge(children, paths[key]) for key, children in merged.items()
        }

    def _merge_sequences(self, nodes: list[tuple[Rank, Node]], path: Path) -> object:
        items = [node.items for _, node in nodes if isinstance(node, ListNode | TupleNode)]
        if len({len(each) for each in items}) > 1:
            return self._apart(nodes)
        ranks = [rank for rank, _ in nodes]
        merged = [
            self._merge(list(zip(ranks, children, strict=True)), (*path, SequenceIndex(position)))
            for position, children in enumerate(zip(*items, strict=True))
        ]
        return merged if isinstance(nodes[0][1], ListNode) else tuple(merged)

    def _merge_scalars(self, nodes: list[tuple[Rank, Node]], path: Path) -> object:
        values = {int(rank): node.value for rank, node in nodes if isinstance(node, ScalarNode)}
        forms = variants_of(self.index, path_text(path))
        if any(tensor.meaning is Meaning.REPLICATED for tensor in forms):
            return values[int(nodes[0][0])]
        return PerRank(values)

    def _merge_leaves(self, name: str, ranks: Sequence[Rank]) -> object:
        tensor, _ = tensor_of_rank(self.index, name, ranks[0])
        if tensor.meaning is not Meaning.OWN:
            array = new_array(self.reads, tensor, tensor.global_shape)
            self.reads.add_box(tensor, tensor.boxes, (0,) * array.ndim, array)
            return array
        return PerRank({int(rank): self._own(name, rank) for rank in ranks})

    def _own(self, name: str, rank: Rank) -> object:
        return own_tree(self.index, rank, LeafNode(name), self.reads)

    def _apart(self, nodes: list[tuple[Rank, Node]]) -> object:
        return PerRank(
            {int(rank): own_tree(self.index, rank, node, self.reads) for rank, node in nodes}
        )
