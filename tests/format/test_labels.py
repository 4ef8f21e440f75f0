"""Labels: names and the pin of a committed generation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ckpt.base.errors import Corrupt, Refused
from ckpt.base.ids import CheckpointId, Generation, RunName, Step
from ckpt.format.documents.labels import (
    LABELS_BYTES_MAX,
    NAME_BYTES_MAX,
    NAMES_MAX,
    Labels,
    aside_name,
    check_given,
    check_name,
    check_names,
    decode_labels,
    encode_labels,
    is_aside,
)
from tests.format.strategies import checkpoints, flipped, masks, positions, read_or_refused

LABELS = Labels(
    "c0ffee", CheckpointId(RunName("r"), Step(1), Generation(1, 1)), Generation(2, 7), ("a", "b"),
    pinned=True,
)  # fmt: skip
words = st.text(st.characters(min_codepoint=0xA0, codec="utf-8"), min_size=1, max_size=200)


@given(checkpoints, st.sets(words.filter(lambda word: not word.isdecimal()), max_size=9))
def test_labels_come_back_equal(checkpoint: CheckpointId, names: set[str]) -> None:
    labels = replace(LABELS, checkpoint=checkpoint, names=tuple(sorted(names)))
    assert decode_labels(encode_labels(labels) + bytes(99)) == labels


def test_the_largest_fit() -> None:
    names = tuple(sorted(f"{number:04}".rjust(NAME_BYTES_MAX, "x") for number in range(NAMES_MAX)))
    labels = replace(LABELS, cluster="c" * 64, names=check_names(names))
    document = encode_labels(labels)
    assert len(document) <= LABELS_BYTES_MAX
    assert decode_labels(document) == labels
    with pytest.raises(Refused, match="33 names"):
        check_names((*names, "one more"))


@given(positions, masks)
def test_a_flipped_bit_is_seen(position: int, mask: int) -> None:
    found = read_or_refused(decode_labels, flipped(encode_labels(LABELS), position, mask))
    assert found in (None, LABELS)


@pytest.mark.parametrize("name", ["", "x" * 1025, "a\nb", "1200", "-1", "\x9f", "\ud800"])
def test_a_name_that_cannot_be_is_refused(name: str) -> None:
    with pytest.raises(Refused):
        check_name(name)


@given(st.integers(0, 2**63 - 1).map(Step), st.integers(1, 99))
def test_what_sets_aside_is_a_name_that_nobody_else_gives(step: Step, number: int) -> None:
    name = aside_name(step, number)
    assert is_aside(("best", check_name(name)))
    with pytest.raises(Refused, match="only a rollback"):
        check_given(name)


@pytest.mark.parametrize(
    "name", ["aside", "aside-", "aside-3-best", "aside-3.", "an aside-3", "aside-\u0663"]
)
def test_what_only_looks_so_is_a_name_like_others(name: str) -> None:
    assert not is_aside((check_given(name),))


@pytest.mark.parametrize("name", ["best", "epoch=3-val=0.25.ckpt", "/data/x y.ckpt", "2.0", "ä"])
def test_a_path_is_a_name(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "bad",
    [
        replace(LABELS, names=("b", "a")),
        replace(LABELS, names=("12",)),
        replace(LABELS, version=Generation(-1, 0)),
        replace(LABELS, checkpoint=replace(LABELS.checkpoint, step=Step(-1))),
    ],
)
def test_a_document_that_cannot_be_is_refused(bad: Labels) -> None:
    with pytest.raises(Corrupt):
        decode_labels(encode_labels(bad))
