"""`trees.json`: the ranks' trees, with every plain value, in JSON that loses nothing.

    {"trees": [{"ranks": [[first, last], ...], "tree": NODE}, ...]}

    NODE   null, true, false, "text", 12, 1.5      themselves (ints of any size, finite floats)
           {"tensor": "NAME"}                      an array, by its name in the manifest
           {"dict": [[KEY, NODE], ...]}            in the dict's own order
           {"list": [NODE, ...]}, {"tuple": [NODE, ...]}
           {"float": "7ff8000000000000"}           NaN and infinities: IEEE-754 bits, big-endian hex
           {"complex": [FLOAT, FLOAT]}             each as above
           {"bytes": "BASE64"}
    KEY    "text", true, false, 12 or {"tuple": [KEY, ...]}

Ranks whose trees are equal share one entry.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn, TypeAlias

from ckpt.base.errors import Corrupt
from ckpt.base.ids import Rank
from ckpt.base.limits import TREE_DEPTH_MAX
from ckpt.format.tree import DictNode, Key, LeafNode, ListNode, Node, ScalarNode, TupleNode

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


def encode_trees(trees: Mapping[Rank, Node]) -> bytes:
    """The document."""
    entries: list[dict[str, Json]] = []
    by_text: dict[str, dict[str, Json]] = {}
    for rank, tree in sorted(trees.items()):
        packed = _pack(tree)
        text = json.dumps(packed, separators=(",", ":"))
        entry = by_text.get(text)
        if entry is None:
            entry = by_text[text] = {"ranks": [], "tree": packed}
            entries.append(entry)
        ranks = entry["ranks"]
        assert isinstance(ranks, list)
        _add_rank(ranks, int(rank))
    return json.dumps({"trees": entries}, separators=(",", ":"), ensure_ascii=False).encode()


def decode_trees(raw: bytes) -> dict[Rank, Node]:
    """The inverse; raises Corrupt."""
    try:
        document = json.loads(raw, parse_constant=_no_constant)
        found: dict[Rank, Node] = {}
        for entry in document["trees"]:
            tree = _unpack(entry["tree"], 0)
            for first, last in entry["ranks"]:
                found.update((Rank(rank), tree) for rank in range(first, last + 1))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Corrupt(f"the document of trees does not parse: {error!r}") from None
    return found


def _add_rank(ranks: list[Json], rank: int) -> None:
    last = ranks[-1] if ranks else None
    if isinstance(last, list) and last[1] == rank - 1:
        last[1] = rank
    else:
        ranks.append([rank, rank])


def _pack(node: Node) -> Json:
    match node:
        case LeafNode(name):
            return {"tensor": name}
        case DictNode(items):
            return {"dict": [[_pack_key(key), _pack(child)] for key, child in items]}
        case ListNode(children):
            return {"list": [_pack(child) for child in children]}
        case TupleNode(children):
            return {"tuple": [_pack(child) for child in children]}
        case ScalarNode(complex() as value):
            return {"complex": [_pack_float(value.real), _pack_float(value.imag)]}
        case ScalarNode(float() as value):
            return _pack_float(value)
        case ScalarNode(bytes() as value):
            return {"bytes": base64.b64encode(value).decode()}
        case ScalarNode(value):
            assert value is None or isinstance(value, bool | int | str)
            return value


def _pack_float(value: float) -> Json:
    # json writes the shortest text that reads back as the same bits, also of -0.0.
    return value if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}


def _pack_key(key: Key) -> Json:
    return {"tuple": [_pack_key(part) for part in key]} if isinstance(key, tuple) else key


def _unpack(node: Json, depth: int) -> Node:
    if depth > TREE_DEPTH_MAX:
        raise ValueError("nested too deep")
    match node:
        case None | bool() | int() | float() | str():
            return ScalarNode(node)
        case {"tensor": str(name)}:
            return LeafNode(name)
        case {"dict": list(items)}:
            return DictNode(
                tuple((_unpack_key(pair[0]), _unpack(pair[1], depth + 1)) for pair in _pairs(items))
            )
        case {"list": list(children)}:
            return ListNode(tuple(_unpack(child, depth + 1) for child in children))
        case {"tuple": list(children)}:
            return TupleNode(tuple(_unpack(child, depth + 1) for child in children))
        case {"float": _}:
            return ScalarNode(_unpack_float(node))
        case {"complex": [real, imag]}:
            return ScalarNode(complex(_unpack_float(real), _unpack_float(imag)))
        case {"bytes": str(text)}:
            return ScalarNode(base64.b64decode(text, validate=True))
        case _:
            raise ValueError("a node that cannot be")


def _unpack_float(node: Json) -> float:
    match node:
        case float():
            return node
        case {"float": str(bits)}:
            (value,) = struct.unpack(">d", bytes.fromhex(bits))
            assert isinstance(value, float)
            return value
        case _:
            raise ValueError("a float that cannot be")


def _unpack_key(key: Json) -> Key:
    match key:
        case bool() | int() | str():
            return key
        case {"tuple": list(parts)}:
            return tuple(_unpack_key(part) for part in parts)
        case _:
            raise ValueError("a key that cannot be")


def _pairs(items: Sequence[Json]) -> Iterable[list[Json]]:
    for item in items:
        if not isinstance(item, list) or len(item) != 2:
            raise ValueError("an item of a dict is a pair")
        yield item


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")
