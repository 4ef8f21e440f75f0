"""The list of files that a commit names, as it crosses the wire."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt.base.errors import Corrupt, Refused
from ckpt.format.members import Member, decode_members, encode_members

MEMBERS = (Member("a/1", 5, b"f" * 16), Member("b", 0, b"g" * 16))


def test_a_list_comes_back_by_name() -> None:
    assert decode_members(encode_members(reversed(MEMBERS))) == MEMBERS
    assert decode_members(encode_members(())) == ()


@given(st.binary(max_size=40))
def test_what_does_not_parse_is_corrupt_and_nothing_else(data: bytes) -> None:
    try:
        decode_members(data)
    except Corrupt:
        return


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x91\xa1x", encode_members(MEMBERS)[:-1]])
def test_a_list_that_is_cut_off_or_of_another_kind_is_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt, match="does not parse"):
        decode_members(data)


def test_a_name_that_comes_twice_is_corrupt() -> None:
    twice = encode_members((MEMBERS[0], MEMBERS[0]))
    with pytest.raises(Corrupt, match="not in order"):
        decode_members(twice)


def test_a_list_is_as_long_as_one_message_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    members = [Member(f"1/{number}", 5, b"f" * 16) for number in range(3)]
    document = encode_members(members)
    monkeypatch.setattr("ckpt.format.members.FRAME_BULK_BYTES_MAX", len(document))
    assert encode_members(members) == document
    monkeypatch.setattr("ckpt.format.members.FRAME_BULK_BYTES_MAX", len(document) - 1)
    with pytest.raises(Refused, match="3 files"):
        encode_members(members)
