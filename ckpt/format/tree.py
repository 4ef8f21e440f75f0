"""A rank's tree document: the shape of its state, its plain scalars, and the names of its tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from ckpt.format.checksum import Buffer

Key = Union[str, int, bool, tuple["Key", ...]]
"""A dict's key; comes back with its type."""
Scalar = None | bool | int | float | complex | str | bytes
"""Comes back with its type and every bit."""


@dataclass(frozen=True, slots=True)
class Index:
    """A step into a list or tuple, in a path."""

    position: int


Path = tuple[Key | Index, ...]


@dataclass(frozen=True, slots=True)
class LeafNode:
    """A tensor; `name` is its entry in the rank's table."""

    name: str


@dataclass(frozen=True, slots=True)
class ScalarNode:
    """A plain value that lies in this document."""

    value: Scalar


@dataclass(frozen=True, slots=True)
class ListNode:
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class TupleNode:
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class DictNode:
    """Items in the dict's own order."""

    items: tuple[tuple[Key, Node], ...]


Node = DictNode | ListNode | TupleNode | ScalarNode | LeafNode


def encode_tree(node: Node) -> bytes:
    """The document; raises Refused by path for what has no exact encoding."""
    raise NotImplementedError


def decode_tree(document: Buffer) -> Node:
    """The inverse; raises Corrupt."""
    raise NotImplementedError


def path_text(path: Path) -> str:
    """The path as text; two paths never give the same one."""
    raise NotImplementedError
