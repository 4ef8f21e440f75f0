"""What is sealed is what the standard says, opens with its own number, label and key alone, and no
nonce is used twice under one key.
"""

from __future__ import annotations

import errno
import random
import socket
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt.base.errors import CkptError
from ckpt.base.limits import BLOCK_BYTES
from ckpt.native import gcm
from ckpt.native.gcm import BULK, HEAD, KEY_BYTES, TAG_BYTES, KeyChain, Opener, Sealer
from ckpt.native.landing import WHOLE, Landing
from ckpt.native.sealing import Sealing
from ckpt.native.sums import sums_of
from tests.format.strategies import flipped
from tests.waiting import wait_until

KEY = bytes(range(KEY_BYTES))


def sealed(number: int, *parts: bytes | memoryview, key: bytes = KEY) -> tuple[bytearray, bytes]:
    """A bulk, and its tag."""
    sealer, into = Sealer(key, BULK), bytearray(sum(map(len, parts)))
    sealer.begin(number)
    at = 0
    for part in parts:
        sealer.add(part, memoryview(into)[at : at + len(part)])
        at += len(part)
    return into, sealer.end()


def test_the_standard_s_own_case() -> None:
    """The GCM specification's case 16 (McGrew and Viega): AES-256, with associated data."""
    key = bytes.fromhex("feffe9928665731c6d6a8f9467308308" * 2)
    nonce = bytes.fromhex("cafebabefacedbaddecaf888")
    number, part = (int.from_bytes(each, "little") for each in (nonce[:8], nonce[8:]))
    text = bytes.fromhex(
        "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e24"
        "49a6b525b16aedf5aa0de657ba637b39"
    )
    label = bytes.fromhex("feedfacedeadbeeffeedfacedeadbeefabaddad2")
    wanted = (
        "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb08e48590dbb3da7b08b10"
        "56828838c5f61e6393ba7a0abcc9f66276fc6ece0f4e1768cddf8853bb2d551b"
    )
    assert keyless(Sealer(key, part), number, label, text).hex() == wanted


def keyless(sealer: Sealer, number: int, label: bytes, text: bytes) -> bytes:
    """By its own key, whatever the number: the chain has its own test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gcm, "FRAMES_PER_KEY", 1 << 64)
        return sealer.seal(number, label, text)


def test_what_was_sealed_opens_with_its_number_and_label_alone() -> None:
    whole = Sealer(KEY, HEAD).seal(7, b"label", b"what was said")
    assert len(whole) == len(b"what was said") + TAG_BYTES
    assert Opener(KEY).open(7, b"label", whole) == b"what was said"
    assert Opener(KEY).open(8, b"label", whole) is None
    assert Opener(KEY).open(7, b"lebal", whole) is None
    assert Opener(KEY[::-1]).open(7, b"label", whole) is None
    assert Opener(KEY).open(7, b"label", Sealer(KEY, BULK).seal(7, b"label", b"x")) is None
    for position in range(len(whole)):
        assert Opener(KEY).open(7, b"label", flipped(whole, position, 1)) is None


def test_an_opener_goes_on_after_what_did_not_fit() -> None:
    opener, sealer = Opener(KEY), Sealer(KEY, HEAD)
    assert opener.open(1, b"", flipped(sealer.seal(1, b"", b"one"), 0, 1)) is None
    assert opener.open(2, b"", sealer.seal(2, b"", b"two")) == b"two"


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=4))
def test_the_pieces_that_bytes_come_in_make_no_difference(content: bytes, cuts: list[int]) -> None:
    ends = sorted(min(cut, len(content)) for cut in cuts)
    pieces = [
        content[begin:end] for begin, end in zip([0, *ends], [*ends, len(content)], strict=True)
    ]
    whole, tag = sealed(5, content)
    assert sealed(5, *pieces) == (whole, tag)
    opener = Opener(KEY)
    opener.begin(5)
    opener.add(whole)
    assert (opener.fits(tag), bytes(whole)) == (True, content)


def test_memory_that_is_sealed_stays_as_it_is() -> None:
    content = random.Random(2).randbytes(100_000)
    memory = bytearray(content)
    assert sealed(3, memoryview(memory)) == sealed(3, content)
    assert memory == content


def test_a_key_is_given_up_before_a_session_has_used_it_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gcm, "FRAMES_PER_KEY", 4)
    chain = KeyChain(KEY)
    keys = [chain.of(number) for number in range(12)]
    assert keys[0] == KEY
    assert [keys.count(key) for key in dict.fromkeys(keys)] == [4, 4, 4]
    assert KeyChain(KEY).of(11) == keys[11], "numbers may be passed over"
    with pytest.raises(AssertionError):
        chain.of(7)

    sealer, opener = Sealer(KEY, HEAD), Opener(KEY)
    texts = []
    for number in range(12):
        texts.append(sealer.seal(number, b"", b"the same text"))
        assert opener.open(number, b"", texts[-1]) == b"the same text"
    monkeypatch.setattr(gcm, "FRAMES_PER_KEY", 1 << 16)
    by_one_key = [Sealer(KEY, HEAD).seal(number, b"", b"the same text") for number in range(12)]
    assert [a == b for a, b in zip(texts, by_one_key, strict=True)] == [True] * 4 + [False] * 8


@pytest.mark.parametrize("length", [1, BLOCK_BYTES, 3 * BLOCK_BYTES + 77])
@pytest.mark.parametrize("filled", [0, 1, BLOCK_BYTES, 1 << 30])
def test_what_lands_is_decrypted_in_its_place_and_its_tag_comes_after(
    length: int, filled: int
) -> None:
    content = random.Random(length).randbytes(length)
    text, tag = sealed(7, content)
    filled = min(filled, length)
    came_along = 5 if filled == length else 0
    view = memoryview(bytearray(text[:filled] + bytes(length - filled)))
    opener = Opener(KEY)
    opener.begin(7)
    landing = Landing(view, filled, opener, TAG_BYTES, tag[:came_along])
    sender, receiver = socket.socketpair()
    with sender, receiver:
        receiver.setblocking(False)
        sender.setblocking(False)
        rest = memoryview(text + tag)[filled + came_along :]
        assert landing.rest == len(rest)
        while rest:
            rest = rest[sender.send(rest[:50_000]) :]
            landing.receive(receiver.fileno())
        wait_until(lambda: landing.receive(receiver.fileno()) == WHOLE, "all bytes landed")
    assert view == content
    assert landing.sums() == sums_of(content), "sums are of what was decrypted"
    assert landing.tail == tag
    assert opener.fits(landing.tail)


def test_what_was_changed_while_it_landed_does_not_fit() -> None:
    text, tag = sealed(7, bytes(1000))
    opener = Opener(KEY)
    opener.begin(7)
    opener.add(bytearray(flipped(bytes(text), 500, 1)))
    assert not opener.fits(tag)


def test_a_tail_that_comes_before_its_bulk_is_refused() -> None:
    for filled, tail in ((9, b"t"), (10, b"t" * 17)):
        with pytest.raises(ValueError, match="cannot land"):
            Landing(memoryview(bytearray(10)), filled, None, TAG_BYTES, tail)


@pytest.mark.parametrize("readonly", [False, True])
@pytest.mark.parametrize("length", [1, 1000, 300_001])
def test_what_is_sent_is_sealed_slice_by_slice_as_the_socket_takes_it(
    length: int, readonly: bool
) -> None:
    content = random.Random(length).randbytes(length)
    memory = memoryview(content if readonly else bytearray(content))
    sealer = Sealer(KEY, BULK)
    sealer.begin(7)
    sealing = Sealing(memory, sealer.state, memoryview(bytearray(1000)))
    came = bytearray()
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        far.setblocking(False)

        def moved() -> bool:
            outcome = sealing.send(near.fileno())
            assert outcome in (WHOLE, errno.EAGAIN)
            with suppress(BlockingIOError):
                while part := far.recv(50_000):
                    came.extend(part)
            assert len(came) == sealing.sent
            return outcome == WHOLE

        wait_until(moved, "all was sent")
    assert memory == content
    assert (bytes(came), sealer.end()) == (bytes(sealed(7, content)[0]), sealed(7, content)[1])


def test_what_cannot_be_sealed_is_refused() -> None:
    sealer = Sealer(KEY, BULK)
    for view, place in ((b"", bytearray(9)), (b"text", b"readonly"), (b"text", bytearray())):
        with pytest.raises(ValueError, match="cannot be sealed"):
            Sealing(memoryview(view), sealer.state, memoryview(place))


def test_a_nonce_that_was_used_up_encrypts_no_more() -> None:
    sealer = Sealer(KEY, BULK)
    sealer.begin(1)
    sealer.end()
    with pytest.raises(CkptError, match="refuses"):
        sealer.add(b"bytes", memoryview(bytearray(5)))


def test_a_key_of_another_length_is_a_mistake() -> None:
    with pytest.raises(AssertionError):
        Opener(KEY[:16])
