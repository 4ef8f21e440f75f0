"""Tags are those of the standard, whatever pieces the bytes come in."""

from __future__ import annotations

import random
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt.base.errors import CkptError
from ckpt.base.limits import BLOCK_BYTES
from ckpt.native import libcrypto
from ckpt.native.gcm import KEY_BYTES, TAG_BYTES
from ckpt.native.gmac import Gmac
from ckpt.native.landing import GUARD_FAILED, WHOLE, Landing
from tests.waiting import wait_until

KEY = bytes(range(KEY_BYTES))


def tag(mac: Gmac, number: int, *parts: bytes | bytearray | memoryview) -> bytes:
    mac.begin(number)
    for part in parts:
        mac.add(part)
    return mac.end()


def test_the_standard_s_own_cases() -> None:
    """The GCM specification's case 13 (McGrew and Viega), and one of NIST's CAVP with AAD alone."""
    assert tag(Gmac(bytes(32)), 0).hex() == "530f8afbc74536b9a963b4f1c4cb738b"
    mac = Gmac(bytes.fromhex("78dc4e0aaf52d935c3c01eea57428f00ca1fd475f5da86a49c8dd73d68c8e223"))
    number = int.from_bytes(bytes.fromhex("d79cf22d504cc793c3fb6c8a"), "little")
    found = tag(mac, number, bytes.fromhex("b96baa8c1c75a671bfb2d08d06be5f36"))
    assert found.hex() == "3e5d486aa2e30b22e040b85723a06e76"


@given(
    st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=4), st.integers(0, 2**64 - 1)
)
def test_pieces_and_kinds_of_memory_change_nothing(
    content: bytes, cuts: list[int], number: int
) -> None:
    mac = Gmac(KEY)
    whole = tag(mac, number, content)
    assert len(whole) == TAG_BYTES
    ends = sorted(min(cut, len(content)) for cut in cuts)
    pieces = [
        content[begin:end] for begin, end in zip([0, *ends], [*ends, len(content)], strict=True)
    ]
    assert tag(mac, number, *pieces) == whole
    for memory in (bytearray(content), memoryview(content), memoryview(bytearray(content))):
        assert tag(mac, number, memory) == whole


def test_key_number_and_each_bit_count() -> None:
    content = random.Random(1).randbytes(1000)
    mac = Gmac(KEY)
    seen = {tag(mac, number, content) for number in range(64)}
    seen.add(tag(Gmac(KEY[::-1]), 0, content))
    for bit in range(0, 8000, 129):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        seen.add(tag(mac, 0, changed))
    assert len(seen) == 64 + 1 + len(range(0, 8000, 129))


@pytest.mark.parametrize("length", [1, BLOCK_BYTES, 3 * BLOCK_BYTES + 77])
@pytest.mark.parametrize("filled", [0, 1, BLOCK_BYTES])
def test_what_lands_is_added_once_and_in_order(length: int, filled: int) -> None:
    filled = min(filled, length)
    sent = random.Random(length).randbytes(length)
    view = memoryview(bytearray(sent[:filled] + bytes(length - filled)))
    mac = Gmac(KEY)
    mac.begin(7)
    landing = Landing(view, filled, mac)
    sender, receiver = socket.socketpair()
    with sender, receiver:
        receiver.setblocking(False)
        sender.setblocking(False)
        rest = memoryview(sent)[filled:]
        while rest:
            rest = rest[sender.send(rest[:50_000]) :]
            landing.receive(receiver.fileno())
        wait_until(lambda: landing.receive(receiver.fileno()) == WHOLE, "all bytes landed")
    assert mac.end() == tag(Gmac(KEY), 7, sent)


def test_a_mac_that_was_not_begun_is_no_tag() -> None:
    """libcrypto refuses; nothing is called whole."""
    landing = Landing(memoryview(bytearray(10)), 10, Gmac(KEY))
    assert landing.receive(-1) == GUARD_FAILED


def test_a_host_without_libcrypto_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libcrypto, "_candidates", lambda: iter(["/nowhere/a", "libz.so.1"]))
    libcrypto.find_libcrypto.cache_clear()
    try:
        with pytest.raises(CkptError, match="no libcrypto") as caught:
            Gmac(KEY)
        assert 'wire = "plain"' in caught.value.hint
    finally:
        libcrypto.find_libcrypto.cache_clear()
