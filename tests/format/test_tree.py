"""Tree documents keep every type and every bit; path texts tell all paths apart."""

from __future__ import annotations

import math
import struct
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt.base.errors import Corrupt, Refused
from ckpt.base.limits import TREE_DEPTH_MAX
from ckpt.format.envelope import Packing, wrap
from ckpt.format.tree import (
    MAGIC,
    DictNode,
    Key,
    LeafNode,
    ListNode,
    Node,
    Path,
    Scalar,
    ScalarNode,
    SequenceIndex,
    TupleNode,
    below,
    decode_tree,
    encode_tree,
    names_below,
    path_text,
)
from tests.format.strategies import flipped, masks, positions, read_or_refused

big_ints = st.integers(-(1 << 200), 1 << 200)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), big_ints, st.floats(), st.complex_numbers(),
    st.text(), st.binary(),
)  # fmt: skip
keys = st.recursive(
    st.one_of(st.text(), st.integers(), big_ints, st.booleans()),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=6,
)


def dict_nodes(nodes: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    return st.dictionaries(keys, nodes, max_size=4).map(lambda d: DictNode(tuple(d.items())))


trees = st.recursive(
    st.one_of(scalars.map(ScalarNode), st.text(min_size=1).map(LeafNode)),
    lambda inner: st.one_of(
        dict_nodes(inner),
        st.lists(inner, max_size=4).map(lambda items: ListNode(tuple(items))),
        st.lists(inner, max_size=4).map(lambda items: TupleNode(tuple(items))),
    ),
    max_leaves=20,
)


def exact(value: object) -> object:
    """A form in which equality means: the same types, and the same bits of floats."""
    match value:
        case DictNode(items):
            return ("dict", *((exact(key), exact(node)) for key, node in items))
        case ListNode(nodes) | TupleNode(nodes):
            return (type(value).__name__, *map(exact, nodes))
        case ScalarNode(scalar):
            return ("scalar", exact(scalar))
        case tuple():
            return ("tuple", *map(exact, value))
        case float():
            return ("float", struct.pack("<d", value))
        case complex():
            return ("complex", exact(value.real), exact(value.imag))
        case _:
            return (type(value).__name__, value)


@given(trees)
def test_a_tree_comes_back_with_all_its_types_and_bits(tree: Node) -> None:
    assert exact(decode_tree(encode_tree(tree))) == exact(tree)


@pytest.mark.parametrize(
    "bits", [0x7FF8000000000001, 0xFFF8DEADBEEF0001, 0x7FF0000000000001, 1 << 63]
)
def test_every_bit_of_a_float_is_kept(bits: int) -> None:
    value = struct.unpack("<d", bits.to_bytes(8, "little"))[0]
    for scalar in (value, complex(value, value)):
        found = decode_tree(encode_tree(ScalarNode(scalar)))
        assert exact(found) == exact(ScalarNode(scalar))
    assert math.copysign(1, value) == (-1 if bits >> 63 else 1)


@given(st.binary(max_size=300))
def test_random_bytes_are_refused_or_read(noise: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_tree(noise)
    read_or_refused(decode_tree, wrap(MAGIC, 1, noise, Packing.LZ4))


@given(trees, positions, masks)
def test_a_damaged_document_is_refused(tree: Node, position: int, mask: int) -> None:
    with pytest.raises(Corrupt):
        decode_tree(flipped(encode_tree(tree), position, mask))


@pytest.mark.parametrize(
    "hostile",
    [
        [], [9], [0], [0, 1], [1, "a"], [1, 2.5, None],
        [1, "a", None, "a", None], [1, 1, None, True, None],
        [4, "a"], [5, 1.0], {"a": 1}, [1, [3, None], 1], [[]], msgspec.msgpack.Ext(1, b"x"),
    ],
    ids=lambda hostile: "Ext" if isinstance(hostile, msgspec.msgpack.Ext) else repr(hostile),
)  # fmt: skip
def test_a_node_that_cannot_be_is_refused(hostile: object) -> None:
    with pytest.raises(Corrupt):
        decode_tree(wrap(MAGIC, 1, msgspec.msgpack.encode(hostile), Packing.LZ4))


def nested(depth: int) -> Node:
    node: Node = ScalarNode(1)
    for _ in range(depth):
        node = ListNode((node,))
    return node


def test_depth_is_bounded_on_both_sides() -> None:
    assert decode_tree(encode_tree(nested(TREE_DEPTH_MAX))) == nested(TREE_DEPTH_MAX)
    with pytest.raises(Refused, match="deeper"):
        encode_tree(nested(TREE_DEPTH_MAX + 1))
    for bomb in (b"\x92\x02" * (TREE_DEPTH_MAX + 1) + b"\xc0", b"\x92\x02" * 100_000 + b"\xc0"):
        with pytest.raises(Corrupt):
            decode_tree(wrap(MAGIC, 1, bomb, Packing.LZ4))


@pytest.mark.parametrize(
    ("scalar", "word"),
    [("\ud800", "Unicode"), (np.float64(1), "float64"), (np.int32(1), "int32"), ({1}, "set")],
    ids=["lone surrogate", "float64", "int32", "set"],
)
def test_what_has_no_exact_encoding_is_refused_by_path(scalar: Scalar, word: str) -> None:
    node = DictNode((("opt", ListNode((ScalarNode(1), ScalarNode(scalar)))),))
    with pytest.raises(Refused, match=word) as refusal:
        encode_tree(node)
    assert "opt/#1" in refusal.value.message


@pytest.mark.parametrize("key", ["\udfff", None, 1.5, (1, None)], ids=repr)
def test_a_key_that_cannot_be_stored_is_refused(key: Key) -> None:
    with pytest.raises(Refused):
        encode_tree(DictNode(((key, ScalarNode(1)),)))


# --------------------------------------------------------------------------- paths

paths = st.lists(st.one_of(keys, st.integers(0, 1000).map(SequenceIndex)), max_size=5).map(tuple)


def parsed(text: str) -> list[object]:
    """The path of a text, exact: written from the docstring's table, not from the code."""
    return [parsed_step(part) for part in text.split("/")] if text else []


def parsed_step(text: str) -> object:
    if text.startswith("#"):
        return ("SequenceIndex", SequenceIndex(int(text[1:])))
    key, rest = parsed_key(text, inner=False)
    assert rest == ""
    return key


def parsed_key(text: str, inner: bool) -> tuple[object, str]:
    if text.startswith("=("):
        parts, text = [], text[2:]
        while not text.startswith(")"):
            part, text = parsed_key(text, inner=True)
            assert text[0] == ","
            parts.append(part)
            text = text[1:]
        return ("tuple", *parts), text[1:]
    word, comma, rest = text.partition(",") if inner else (text, "", "")
    rest = comma + rest
    if word in ("=true", "=false"):
        return ("bool", word == "=true"), rest
    if word.startswith("="):
        return ("int", int(word[1:], 0)), rest
    if word == "~.":
        return ("str", ""), rest
    for mark, char in (
        ("~5", ")"),
        ("~4", ","),
        ("~3", "="),
        ("~2", "#"),
        ("~1", "/"),
        ("~0", "~"),
    ):
        word = word.replace(mark, char)
    return ("str", word), rest


@given(paths)
def test_a_path_can_be_told_from_its_text(path: Path) -> None:
    assert parsed(path_text(path)) == [exact(step) for step in path]


def test_paths_read_like_paths() -> None:
    assert path_text(("model", "layers", SequenceIndex(0), "w")) == "model/layers/#0/w"
    assert (
        path_text(("a/b", 3, True, ("x", -1), "#1", "", "=")) == "a~1b/=3/=true/=(x,=-1,)/~21/~./~3"
    )
    assert path_text(()) == ""


@pytest.mark.parametrize("key", [None, 1.5, b"a", np.int64(1), ("a", None)])
def test_a_step_that_no_tree_has_is_refused_by_its_path(key: Any) -> None:
    """Text stood for it, that of another key or none."""
    for path, above in (((key, "w"), "the state"), (("a", "b", key), "a/b")):
        with pytest.raises(Refused, match=rf"^{above}: a key of type \w+ cannot be stored"):
            path_text(path)
        with pytest.raises(Refused, match=rf"^{above}: a key of type"):
            below("" if above == "the state" else above, key)
    assert path_text((1 << 20_000,)).startswith("=0x1000")


@given(st.lists(keys | st.integers(0, 99).map(SequenceIndex)))
def test_a_path_grows_by_a_step_as_its_text_does(path: list[Key | SequenceIndex]) -> None:
    name = ""
    for step in path:
        name = below(name, step)
    assert name == path_text(tuple(path))


@given(st.sampled_from(["", "a", "a/=3"]), st.lists(keys | st.text("a~/#=)\n,", max_size=3)))
def test_all_keys_of_a_dict_are_named_as_each_of_them(name: str, some: list[Key]) -> None:
    assert names_below(name, some) == [below(name, key) for key in some]


@pytest.mark.parametrize("key", ["", "#", "=1", ")", "~", "/", "\n#", "\n", 1, ("a",)])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_odd_key_among_plain_ones_is_named_as_alone(key: Key, place: int) -> None:
    some: list[Key] = ["weight", "bias\n"]
    some.insert(place, key)
    assert names_below("model", some) == [path_text(("model", one)) for one in some]


def test_a_key_that_no_tree_has_is_refused_among_others() -> None:
    with pytest.raises(Refused, match=r"^a/b: a key of type float cannot be stored"):
        names_below("a/b", ["c", 1.5])  # type: ignore[list-item]
