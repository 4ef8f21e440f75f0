"""A rank's tree document: the shape of its state, its plain scalars, and the names of its tensors.

An envelope (`CKPT`, version 1, lz4) around MessagePack. A node is

    nil, bool, int, float64, str, bin   a scalar, as it is; ints from -2^63 to 2^64-1
    [0, name]                           a tensor: its name in the rank's table
    [1, key, node, key, node, ...]      a dict, in its own order
    [2, node, ...]                      a list
    [3, node, ...]                      a tuple
    [4, bin]                            another int: two's complement, little-endian
    [5, float64, float64]               a complex number

and a key is str, bool, int, [4, bin] or [3, key, ...] (a tuple). A float keeps its 64 bits.
Only exact types are taken: a subclass would come back as something else.

The text of a path names a tensor everywhere else. Its steps are joined by `/`:

    str key      itself, with `~` written `~0`, `/` `~1`, `,` in a tuple `~4`; a leading `#` `~2`,
                 a leading `=` `~3`, a leading `)` in a tuple `~5`; the empty text `~.`
    int key      `=3`, `=-1`
    bool key     `=true`, `=false`
    tuple key    `=(` each element as above and a `,` `)`
    position     `#3`
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Final, TypeAlias

import msgspec

from ckpt.base.errors import Corrupt, Refused
from ckpt.base.limits import TABLE_BYTES_MAX, TREE_DEPTH_MAX
from ckpt.format.checksum import Buffer
from ckpt.format.envelope import Packing, decode_body, unwrap, wrap

MAGIC: Final = b"CKPT"
VERSION: Final = 1

Key: TypeAlias = "str | int | bool | tuple[Key, ...]"
"""A dict's key; loading gives it back with its type."""
Scalar = None | bool | int | float | complex | str | bytes
"""A plain value; loading gives it back with its type and every bit."""


@dataclass(frozen=True, slots=True)
class SequenceIndex:
    """A step into a list or tuple, in a path."""

    position: int


Path: TypeAlias = "tuple[Key | SequenceIndex, ...]"


class LeafNode(msgspec.Struct, frozen=True, gc=False):
    """A tensor; `name` is its entry in the rank's table."""

    name: str


class ScalarNode(msgspec.Struct, frozen=True, gc=False):
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
    return _document(_pack(node, ()))


def decode_tree(document: Buffer) -> Node:
    """The inverse; raises Corrupt."""
    return _unpack(decode_body(_DECODER, unwrap(MAGIC, VERSION, document, TABLE_BYTES_MAX)), 0)


def leaf_names(node: Node) -> Iterable[str]:
    """Names of the tensors in a tree, in its order."""
    match node:
        case LeafNode(name):
            yield name
        case DictNode(items):
            for _, child in items:
                yield from leaf_names(child)
        case ListNode(children) | TupleNode(children):
            for child in children:
                yield from leaf_names(child)
        case ScalarNode():
            return


def path_text(path: Path) -> str:
    """The path as text; two paths never give the same one. The root is the empty text. Raises
    Refused by path for a step that no tree has, such as a float.
    """
    try:
        return "/".join(step_text(step) for step in path)
    except Refused:
        return reduce(below, path, "")  # It says where.


def below(name: str, step: Key | SequenceIndex) -> str:
    """`path_text` of a path with one more step, from its own: for whoever walks a tree."""
    try:
        return f"{name}/{step_text(step)}" if name else step_text(step)
    except Refused as error:
        raise Refused(f"{name or 'the state'}: {error.message}", hint=error.hint) from None


def names_below(name: str, keys: Iterable[Key]) -> list[str]:
    """`below` for each key of a dict, for thousands: the loops are C's where none has a mark."""
    steps = list(keys)
    if set(map(type, steps)) == {str}:
        text = "\n".join(("", *steps, ""))  # type: ignore[arg-type]
        if not any(mark in text for mark in _MARKS):
            above = f"{name}/" if name else ""
            return [above + step for step in steps]  # type: ignore[operator]
    return [below(name, step) for step in steps]


def step_text(step: Key | SequenceIndex) -> str:
    """One step of a path as text; `path_text` joins them by `/`."""
    if type(step) is str:
        return _escaped(step, ("#~2", "=~3"))
    if isinstance(step, SequenceIndex):
        return f"#{step.position}"
    return _key_text(step)


# --------------------------------------------------------------------------- encoding

_LEAF, _DICT, _LIST, _TUPLE, _BIG, _COMPLEX = range(6)

Packed: TypeAlias = "bool | int | float | str | bytes | list[Packed] | tuple[int, str] | None"
"""What MessagePack carries for a node or a key."""


def _document(packed: Packed) -> bytes:
    raw = msgspec.msgpack.encode(packed)
    if len(raw) > TABLE_BYTES_MAX:
        raise Refused(
            f"the state's tree takes {len(raw)} bytes without its tensors: "
            f"at most {TABLE_BYTES_MAX} are allowed",
            hint="store long texts and many numbers as arrays",
        )
    return wrap(MAGIC, VERSION, raw, Packing.LZ4)


def _pack(node: Node, path: Path) -> Packed:
    if len(path) > TREE_DEPTH_MAX:
        raise Refused(f"{_shown(path)}: nested deeper than {TREE_DEPTH_MAX}")
    if type(node) is LeafNode:
        return _LEAF, _pack_text(node.name, path)
    match node:
        case DictNode(items):
            if len({key for key, _ in items}) != len(items):
                raise Refused(f"{_shown(path)}: two keys are equal")
            packed: list[Packed] = [_DICT]
            for key, child in items:
                packed.append(_pack_key(key, path))
                if type(child) is LeafNode and child.name.isascii():  # As nearly all are.
                    # A tuple: Python's collector sees once that it is in no cycle.
                    packed.append((_LEAF, child.name))
                else:
                    packed.append(_pack(child, (*path, key)))
            return packed
        case ListNode(children):
            return [
                _LIST,
                *(_pack(child, (*path, SequenceIndex(i))) for i, child in enumerate(children)),
            ]
        case TupleNode(children):
            return [
                _TUPLE,
                *(_pack(child, (*path, SequenceIndex(i))) for i, child in enumerate(children)),
            ]
        case ScalarNode(value):
            return _pack_scalar(value, path)
        case LeafNode():
            raise AssertionError("packed above")


def _pack_scalar(value: Scalar, path: Path) -> Packed:
    # Exact types: bool is an int, and numpy's float64 is a float.
    if value is None or type(value) in (bool, float, bytes):
        return value  # type: ignore[return-value]
    if type(value) is int:
        return _pack_int(value)
    if type(value) is str:
        return _pack_text(value, path)
    if type(value) is complex:
        return [_COMPLEX, value.real, value.imag]
    raise Refused(f"{_shown(path)}: a {type(value).__name__} is no plain value")


def _pack_key(key: Key, path: Path, depth: int = 0) -> Packed:
    if type(key) is bool:
        return key
    if type(key) is int:
        return _pack_int(key)
    if type(key) is str:
        return _pack_text(key, path)
    if type(key) is tuple and depth < TREE_DEPTH_MAX:
        return [_TUPLE, *(_pack_key(part, path, depth + 1) for part in key)]
    raise Refused(
        f"{_shown(path)}: the key {key!r:.40} is a {type(key).__name__}, "
        "not text, int, bool or tuple"
    )


def _pack_int(value: int) -> Packed:
    if -(1 << 63) <= value < 1 << 64:
        return value
    return [_BIG, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)]


def _pack_text(text: str, path: Path) -> str:
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Refused(f"{_shown(path)}: the text {text[:40]!r} is not valid Unicode") from None
    return text


class TreeTemplate:
    """A tree whose document is written again and again, each time with other scalars.

    I never change: threads may encode with me at the same time.
    """

    def __init__(self, root: Node) -> None:
        """Raises Refused by path, as `encode_tree` does."""
        self._top = _slotted([_pack(root, ())], [root], (0,))
        self.document = _document(self._top.packed[0])
        """The document with the scalars that the tree had."""

    def encode(self, scalars: Iterable[Scalar]) -> bytes:
        """The document with these scalars, one for each, depth first. Raises Refused."""
        if not self._top.slots:
            return self.document
        return _document(_filled(self._top, iter(scalars))[0])


@dataclass(frozen=True, slots=True)
class _Slotted:
    """A packed container, and which of its places hold a scalar or a container that has some."""

    packed: list[Packed]
    slots: tuple[tuple[int, _Slotted | None], ...]
    """(place, the container there, or None for a scalar)."""


def _slotted(packed: list[Packed], children: Iterable[Node], places: Iterable[int]) -> _Slotted:
    slots: list[tuple[int, _Slotted | None]] = []
    pairs = zip(places, children, strict=True)
    others = [(place, child) for place, child in pairs if not isinstance(child, LeafNode)]
    for place, child in others:
        if isinstance(child, ScalarNode):
            slots.append((place, None))
        else:
            below = _slotted_node(packed[place], child)
            if below.slots:
                slots.append((place, below))
    return _Slotted(packed, tuple(slots))


def _slotted_node(packed: Packed, node: DictNode | ListNode | TupleNode) -> _Slotted:
    assert isinstance(packed, list)
    if isinstance(node, DictNode):
        return _slotted(packed, (child for _, child in node.items), range(2, len(packed), 2))
    return _slotted(packed, node.items, range(1, len(packed)))


def _filled(slotted: _Slotted, scalars: Iterator[Scalar]) -> list[Packed]:
    packed = slotted.packed.copy()
    for place, below in slotted.slots:
        packed[place] = (
            _pack_scalar(next(scalars), ()) if below is None else _filled(below, scalars)
        )
    return packed


# --------------------------------------------------------------------------- decoding

_DECODER: Final = msgspec.msgpack.Decoder(object)
_PLAIN: Final = (bool, int, float, str, bytes)


def _unpack(packed: object, depth: int) -> Node:
    if depth > TREE_DEPTH_MAX:
        raise Corrupt(f"tree document: nested deeper than {TREE_DEPTH_MAX}")
    if type(packed) is not list:
        if packed is None or type(packed) in _PLAIN:
            return ScalarNode(packed)  # type: ignore[arg-type]
        raise Corrupt("tree document: a node that cannot be")
    if (
        len(packed) == 2
        and packed[0] == _LEAF
        and type(packed[0]) is int
        and type(packed[1]) is str
    ):
        return LeafNode(packed[1])
    match packed:
        case [int(tag), *rest] if tag == _DICT and len(rest) % 2 == 0:
            keys = tuple([_unpack_key(key, 0) for key in rest[::2]])
            if len(set(keys)) != len(keys):
                raise Corrupt("tree document: two keys of a dict are equal")
            nodes = [_unpack(child, depth + 1) for child in rest[1::2]]
            return DictNode(tuple(zip(keys, nodes, strict=True)))
        case [int(tag), *rest] if tag == _LIST:
            return ListNode(tuple(_unpack(child, depth + 1) for child in rest))
        case [int(tag), *rest] if tag == _TUPLE:
            return TupleNode(tuple(_unpack(child, depth + 1) for child in rest))
        case [int(tag), bytes(digits)] if tag == _BIG:
            return ScalarNode(int.from_bytes(digits, "little", signed=True))
        case [int(tag), float(real), float(imag)] if tag == _COMPLEX:
            return ScalarNode(complex(real, imag))
        case _:
            raise Corrupt("tree document: a node that cannot be")


def _unpack_key(packed: object, depth: int) -> Key:
    if type(packed) is str:
        return packed
    if depth > TREE_DEPTH_MAX:
        raise Corrupt(f"tree document: a key nested deeper than {TREE_DEPTH_MAX}")
    match packed:
        case bool() | int():
            return packed
        case [int(tag), *rest] if tag == _TUPLE:
            return tuple(_unpack_key(part, depth + 1) for part in rest)
        case [int(tag), bytes(digits)] if tag == _BIG:
            return int.from_bytes(digits, "little", signed=True)
        case _:
            raise Corrupt("tree document: a key that cannot be")


# --------------------------------------------------------------------------- paths


def _key_text(key: Key) -> str:
    match key:
        case bool():
            return "=true" if key else "=false"
        case int():
            return f"={_digits(key)}"
        case str():
            return _escaped(key, ("#~2", "=~3", ")~5")).replace(",", "~4")
        case tuple():
            return "=(" + "".join(f"{_key_text(part)}," for part in key) + ")"
    # A caller's dict may have any: it is looked up here before it is checked.
    raise Refused(
        f"a key of type {type(key).__qualname__} cannot be stored: {key!r:.80}",
        hint="keys are str, int, bool or tuples of them",
    )


def _digits(value: int) -> str:
    # Python refuses to print very long ints in decimal, since that is slow; hex is linear.
    return str(value) if value.bit_length() < 1024 else hex(value)


def _escaped(text: str, leading: tuple[str, ...]) -> str:
    if not text:
        return "~."
    if "~" not in text and "/" not in text and text[0] not in "#=)":
        return text  # As nearly all are.
    text = text.replace("~", "~0").replace("/", "~1")
    for rule in leading:
        if text[0] == rule[0]:
            return rule[1:] + text[1:]
    return text


_MARKS: Final = ("~", "/", "\n#", "\n=", "\n)", "\n\n")
"""Of keys with a line break before each: what `_escaped` looks for. A key that has a line break of
its own may have one of these for nothing."""


def _shown(path: Path) -> str:
    """The path in an error, which must itself be printable."""
    text = path_text(path).encode(errors="backslashreplace").decode()
    return f"state[{text}]" if path else "state"
