"""Spans of payloads come back equal; anything that is no list of them is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt.base.errors import Refused
from ckpt.base.ids import Rank
from ckpt.base.limits import PAYLOAD_BYTES_MAX, WORLD_SIZE_MAX
from ckpt.format.spans import OURS, PayloadSpan, decode_spans, encode_spans

GOOD = PayloadSpan(OURS, Rank(0), 0, 1)


@st.composite
def spans(draw: st.DrawFn) -> PayloadSpan:
    start = draw(st.integers(0, PAYLOAD_BYTES_MAX - 1))
    end = draw(st.integers(start + 1, PAYLOAD_BYTES_MAX))
    peer, rank = draw(st.integers(OURS, 1000)), draw(st.integers(0, WORLD_SIZE_MAX - 1))
    return PayloadSpan(peer, Rank(rank), start, end)


@given(st.lists(spans(), max_size=5))
def test_spans_come_back_equal(some: list[PayloadSpan]) -> None:
    assert decode_spans(encode_spans(some)) == some


def test_the_least_that_can_be_is_one() -> None:
    assert decode_spans(encode_spans([GOOD])) == [GOOD]


@pytest.mark.parametrize(
    "bad",
    [
        GOOD._replace(peer=OURS - 1), GOOD._replace(rank=Rank(-1)), GOOD._replace(start=-1),
        GOOD._replace(end=0), GOOD._replace(start=2),
    ],
    ids=["peer", "rank", "start", "empty", "backward"],
)  # fmt: skip
def test_a_span_that_cannot_be_is_refused(bad: PayloadSpan) -> None:
    with pytest.raises(Refused, match="a span that"):
        decode_spans(encode_spans([GOOD, bad]))


def test_a_list_that_is_cut_off_is_refused() -> None:
    with pytest.raises(Refused, match="no list of spans"):
        decode_spans(encode_spans([GOOD])[:-1])
