"""Encrypted frames: every message comes back, nothing can be read of it, and nothing but what was
said next is taken.
"""

from __future__ import annotations

import random
import struct
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt.base.errors import PeerError, Refused
from ckpt.base.ids import BootId, TargetId
from ckpt.base.limits import FRAME_META_BYTES_MAX
from ckpt.format.checksum import crc32
from ckpt.format.frame import FrameReader, FrameWriter, LentPlace
from ckpt.format.messages import MESSAGE_TYPES, Message
from ckpt.format.messages.asking import Answer, Ask
from ckpt.format.messages.hello import Failed
from ckpt.format.messages.reading import RangesDone
from ckpt.format.messages.targets import RenewLease
from ckpt.format.messages.writing import CreditGranted, Fragment
from ckpt.native.gcm import BULK, HEAD, TAG_BYTES, Opener, Sealer
from tests.format.strategies import flipped, masks, positions
from tests.format.test_frame import sample

KEY = bytes(range(32))
LENGTH_BYTES = 4


class Sender:
    """One direction, whole frames at a time."""

    def __init__(self, key: bytes = KEY) -> None:
        self.writer = FrameWriter(key)
        self.writer.seal(Sealer(key, HEAD))
        self.bulks = Sealer(key, BULK)

    def say(self, message: Message, bulk: bytes = b"", lent: LentPlace | None = None) -> bytes:
        head = self.writer.encode(message, 7, bulk, 9, lent)
        if not bulk or lent is not None:
            return head
        into = bytearray(len(bulk))
        self.bulks.begin(self.writer.number)
        self.bulks.add(bulk, memoryview(into))
        return head + into + self.bulks.end()


def receiver(key: bytes = KEY) -> FrameReader:
    reader = FrameReader(key)
    reader.unseal(Opener(key))
    return reader


def hear(reader: FrameReader, frame: bytes) -> tuple[Message, bytes]:
    """As a connection does; raises PeerError also for a stream that ends within the frame."""
    assert reader.prefix_bytes == LENGTH_BYTES
    opening = reader.prefix(frame[:LENGTH_BYTES])
    end = LENGTH_BYTES + opening.meta_bytes
    if len(frame) < end:
        raise PeerError("the stream ended within a frame")
    message = reader.message(opening, frame[LENGTH_BYTES:end])
    head = reader.head
    bulk = bytearray()
    if head.guarded:
        bulk += frame[end : end + head.bulk_bytes]
        tail = frame[end + head.bulk_bytes :]
        if len(tail) != TAG_BYTES:
            raise PeerError("the stream ended within a frame")
        reader.begin_tag(head).add(bulk)
        reader.check_tag(head, tail)
        reader.check_bulk(head, message, crc32(bulk))
    return message, bytes(bulk)


@pytest.mark.parametrize("cls", MESSAGE_TYPES.values(), ids=lambda cls: cls.__name__)
def test_every_message_comes_back_equal(cls: type[Message]) -> None:
    message = typing.cast(Message, sample(cls))
    frame, reader = Sender().say(message), receiver()
    assert hear(reader, frame) == (message, b"")
    assert (reader.head.request, reader.head.epoch, reader.head.bulk_bytes) == (7, 9, 0)


def test_neither_a_name_nor_a_byte_of_a_bulk_is_in_a_frame() -> None:
    bulk = random.Random(1).randbytes(5000)
    for message in (Fragment(3, crc32(bulk)), Ask("a secret name")):
        frame = Sender().say(message, bulk)
        assert hear(receiver(), frame) == (message, bulk)
        assert frame[:LENGTH_BYTES] == struct.pack("<I", len(frame) - 5000 - 4 - 2 * TAG_BYTES)
        for part in (b"a secret name", b"CKPF", bulk[:8], bulk[-8:]):
            assert part not in frame


def test_the_same_said_twice_looks_different() -> None:
    sender, reader = Sender(), receiver()
    frames = [sender.say(Answer(), b"the same bulk") for _ in range(3)]
    for at in range(LENGTH_BYTES, len(frames[0]) - 8):
        assert len({frame[at : at + 8] for frame in frames}) == 3
    for frame in frames:
        assert hear(reader, frame) == (Answer(), b"the same bulk")


@given(positions, masks, st.booleans())
def test_any_changed_bit_is_refused(position: int, mask: int, with_bulk: bool) -> None:
    message = RenewLease(TargetId("t"), BootId(1), 2, 3)
    frame = Sender().say(message, b"payload" if with_bulk else b"")
    with pytest.raises(PeerError):
        hear(receiver(), flipped(frame, position, mask))


@given(st.integers(0, 200))
def test_a_frame_that_was_cut_short_is_refused(count: int) -> None:
    frame = Sender().say(Answer(), b"bulk")
    short = frame[: min(max(count, LENGTH_BYTES), len(frame) - 1)]
    with pytest.raises(PeerError):
        hear(receiver(), short)


def test_repeated_skipped_exchanged_and_foreign_frames_are_refused() -> None:
    sender, reader = Sender(), receiver()
    first, second, third = (sender.say(CreditGranted(n), b"b" * n) for n in (1, 2, 3))
    assert hear(reader, first) == (CreditGranted(1), b"b")
    for wrong in (first, third):
        with pytest.raises(PeerError, match="tag differs"):
            hear(reader, wrong)
    assert hear(reader, second) == (CreditGranted(2), b"bb")
    with pytest.raises(PeerError, match="tag differs"):
        hear(receiver(bytes(31) + b"\x01"), first)


def test_a_bulk_of_another_frame_is_refused() -> None:
    sender, reader = Sender(), receiver()
    bulk = bytes(100)
    one, two = (sender.say(Fragment(3, crc32(bulk)), bulk) for _ in range(2))
    spliced = one[: -100 - TAG_BYTES] + two[-100 - TAG_BYTES :]
    with pytest.raises(PeerError, match="tag differs"):
        hear(reader, spliced)


def test_a_head_is_no_bulk_and_a_bulk_no_head() -> None:
    """They have one key and one number, and never one nonce."""
    text = b"as long as it is"
    bulks = Sealer(KEY, BULK)
    bulks.begin(0)
    into = bytearray(len(text))
    bulks.add(text, memoryview(into))
    assert Sealer(KEY, HEAD).seal(0, b"", text) != bytes(into) + bulks.end()


def test_what_is_lent_has_no_tag_and_a_tag_in_the_meta_is_refused() -> None:
    sender, reader = Sender(), receiver()
    message, bulk = hear(reader, sender.say(Answer(), b"bulk", LentPlace(3, 7)))
    assert (message, bulk, reader.lent) == (Answer(), b"", LentPlace(3, 7))
    with pytest.raises(PeerError, match="flags 2"):
        hear(reader, resealed(1, flags=2, bulk_bytes=4, meta=b"\x80"))


def test_what_a_head_says_of_itself_must_be_so() -> None:
    for wrong in (resealed(0, meta_bytes=9), resealed(0, number=255), resealed(0, version=2)):
        with pytest.raises(PeerError):
            hear(receiver(), wrong)


def resealed(
    sequence: int, *, flags: int = 0, bulk_bytes: int = 0, meta: bytes = b"\x80",
    meta_bytes: int = 1, number: int = 22, version: int = 1,
) -> bytes:  # fmt: skip
    """Any head from a peer that knows the key."""
    fields = b"CKPF", version, number, flags, meta_bytes, bulk_bytes, 1, 0
    text = struct.pack("<4sBBHIIQQ", *fields) + meta
    label = struct.pack("<I", len(text))
    return label + Sealer(KEY, HEAD).seal(sequence, label, text)


@pytest.mark.parametrize("head_bytes", [0, 31, 32 + FRAME_META_BYTES_MAX + 1, (1 << 32) - 1])
def test_a_head_of_another_size_than_any_has_is_refused_at_once(head_bytes: int) -> None:
    with pytest.raises(PeerError, match=f"a head of {head_bytes} bytes"):
        receiver().prefix(struct.pack("<I", head_bytes))


def test_a_frame_in_the_clear_is_refused() -> None:
    frame = FrameWriter(KEY).encode(RangesDone(), 1)
    with pytest.raises(PeerError, match="not an encrypted frame"):
        receiver().prefix(frame[:LENGTH_BYTES])


def test_the_sequence_goes_on_from_what_was_said_in_the_clear() -> None:
    sender, reader = Sender(), FrameReader(KEY)
    plain = FrameWriter(KEY)
    for _ in range(2):
        frame = plain.encode(RangesDone(), 1)
        head = reader.prefix(frame[: reader.prefix_bytes])
        reader.message(head, frame[reader.prefix_bytes :])
    reader.unseal(Opener(KEY))
    frames = [sender.say(CreditGranted(number)) for number in range(3)]
    with pytest.raises(PeerError, match="tag differs"):
        hear(reader, frames[0])
    assert hear(reader, frames[2]) == (CreditGranted(2), b"")


def test_a_refused_message_uses_no_number() -> None:
    sender, reader = Sender(), receiver()
    with pytest.raises(Refused):
        sender.say(Failed("refused", "m" * FRAME_META_BYTES_MAX))
    assert hear(reader, sender.say(RangesDone())) == (RangesDone(), b"")
