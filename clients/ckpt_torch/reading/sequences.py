"""Lists and tuples of a state that the checkpoint has in another length.

Leaves are looked up by their paths: a list that is shorter here than in the checkpoint would come
back cut, an empty one as it was. So each is compared with the checkpoint's own. One of plain values
comes back whole, as long as it was saved: a history of losses grows. What holds tensors is filled
in place, so it must have as many items.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ckpt.base.errors import Refused
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
    leaf_names,
    path_text,
    step_text,
)
from ckpt_client.load.trees import children_of
from ckpt_client.save.state import unflatten
from ckpt_torch.boxes import is_tensor
from ckpt_torch.tree import PICKLE_KEY, VALUE_KEY, is_container, leaves

_KINDS: Final = {
    DictNode: "dict",
    ListNode: "list",
    TupleNode: "tuple",
    ScalarNode: "plain value",
    LeafNode: "tensor",
}


@dataclass(slots=True)
class SequenceWalk:
    """I compare a state with ranks' trees, one after the other."""

    plain: dict[str, Node] = field(default_factory=dict)
    """By name: plain data that takes the place of a list or tuple."""
    packed: set[str] = field(default_factory=set)
    """Names of lists and tuples that the checkpoint has in one piece, as DCP cuts them, or as a
    pickle."""
    unknown: list[tuple[Path, object]] = field(default_factory=list)
    """What no tree that was looked at has, and what it is here."""

    def look_into(self, tree: Node) -> None:
        """Compare with one more rank's tree what is unknown yet. Raises Refused by path."""
        unknown, self.unknown = self.unknown, []
        for path, here in unknown:
            self._compare(here, _node_at(tree, path), path)

    def _compare(self, here: object, stored: Node | None, path: Path) -> None:
        if stored is None:
            if _has_sequence(here):
                self.unknown.append((path, here))
        elif isinstance(here, Mapping):
            self._compare_mapping(here, stored, path)
        elif isinstance(here, list | tuple):
            self._compare_sequence(here, stored, path)

    def _compare_mapping(self, here: Mapping[Key, object], stored: Node, path: Path) -> None:
        if not isinstance(stored, DictNode):
            if path and not here:
                raise _other_kind(here, stored, path)
            return  # The first leaf below is absent there.
        inner = {key: child for key, child in here.items() if is_container(child)}
        known = {step_text(key): node for key, node in stored.items} if inner else {}
        for key, child in inner.items():
            self._compare(child, known.get(step_text(key)), (*path, key))

    def _compare_sequence(
        self, here: list[object] | tuple[object, ...], stored: Node, path: Path
    ) -> None:
        if isinstance(stored, DictNode) and [key for key, _ in stored.items] in _IN_ONE_PIECE:
            self.packed.add(path_text(path))
            return
        if not isinstance(stored, ListNode | TupleNode):
            raise _other_kind(here, stored, path)
        if len(stored.items) == len(here):
            for number, (child, node) in enumerate(zip(here, stored.items, strict=True)):
                self._compare(child, node, (*path, SequenceIndex(number)))
        elif _is_fixed(here) or any(True for _ in leaf_names(stored)):
            raise Refused(
                f"{path_text(path)}: {len(stored.items)} items in the checkpoint, {len(here)} here",
                hint="load into as many items, or take all with ckpt_torch.load_whole",
            )
        else:
            self.plain[path_text(path)] = stored


#: The keys of a dict that stands for one value.
_IN_ONE_PIECE: Final = ([VALUE_KEY], [PICKLE_KEY])


def plain_data(node: Node) -> object:
    """What a tree without tensors holds."""
    return unflatten(node, str)


def _has_sequence(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_sequence, value.values()))
    return isinstance(value, list | tuple)


def _is_fixed(here: object) -> bool:
    """Whether it has the length that its type says, or holds a tensor, which is not replaced."""
    return hasattr(here, "_fields") or any(is_tensor(leaf) for _, leaf in leaves(here))


def _node_at(tree: Node, path: Path) -> Node | None:
    for step in path:
        found = next((node for text, node in children_of(tree) if text == step_text(step)), None)
        if found is None:
            return None
        tree = found
    return tree


def _other_kind(here: object, stored: Node, path: Path) -> Refused:
    return Refused(
        f"{path_text(path)}: stored as a {_KINDS[type(stored)]}, "
        f"here it is a {type(here).__qualname__}"
    )
