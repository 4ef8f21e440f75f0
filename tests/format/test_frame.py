"""Frames: every message comes back, nothing else does, and only PeerError leaves the decoder."""

from __future__ import annotations

import hmac
import struct
import types
import typing
from enum import Enum

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt.base.errors import PeerError, Refused
from ckpt.base.ids import BootId, TargetId
from ckpt.base.limits import FRAME_BULK_BYTES_MAX, FRAME_META_BYTES_MAX
from ckpt.format.checksum import crc32
from ckpt.format.frame import PREFIX_BYTES, FrameHead, FrameReader, FrameWriter, LentPlace
from ckpt.format.frame_guards import ZERO_KEY
from ckpt.format.messages import MESSAGE_TYPES, Message
from ckpt.format.messages.asking import Answer
from ckpt.format.messages.hello import ClientHello, Failed, Role
from ckpt.format.messages.reading import RangesDone
from ckpt.format.messages.targets import RenewLease
from ckpt.format.messages.writing import CreditGranted, Fragment
from ckpt.native.gmac import Gmac
from tests.format.strategies import flipped, masks, positions

KEY = bytes(range(32))
HELLO = ClientHello(1, Role.STAGER, bytes(32))


def sample(kind: object) -> object:
    """Some value of a field's type."""
    if isinstance(kind, typing.NewType):
        return sample(kind.__supertype__)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return sample(args[0])
    if origin is tuple:
        alike = len(args) == 2 and args[1] is ...
        return (sample(args[0]),) * 2 if alike else tuple(sample(each) for each in args)
    if origin is dict:
        return {"frames": 3}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next(iter(kind))
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = typing.get_type_hints(kind)
        return kind(**{name: sample(hints[name]) for name in kind.__struct_fields__})
    values = {bool: True, int: (1 << 63) + 5, float: 0.1, str: "näme", bytes: b"\x00\xff" * 8}
    return values[kind]  # type: ignore[index]


def read(reader: FrameReader, frame: bytes, bulk: bytes = b"") -> Message:
    """The frame's message, its bulk checked."""
    head = reader.prefix(memoryview(frame)[:PREFIX_BYTES])
    message = reader.message(head, memoryview(frame)[PREFIX_BYTES:])
    reader.check_bulk(head, message, crc32(bulk))
    return message


@pytest.mark.parametrize("cls", MESSAGE_TYPES.values(), ids=lambda cls: cls.__name__)
def test_every_message_comes_back_equal(cls: type[Message]) -> None:
    message = typing.cast(Message, sample(cls))
    frame = FrameWriter(KEY).encode(message, request=7, epoch=9)
    reader = FrameReader(KEY)
    head = reader.prefix(frame)
    assert (head.request, head.epoch, head.bulk_bytes) == (7, 9, 0)
    assert head.meta_bytes == len(frame) - PREFIX_BYTES
    assert reader.message(head, frame[PREFIX_BYTES:]) == message


def test_type_numbers_are_one_to_one() -> None:
    assert len(set(MESSAGE_TYPES.values())) == len(MESSAGE_TYPES)
    assert set(MESSAGE_TYPES.values()) == set(typing.get_args(Message))


def test_bulk_is_guarded_by_the_message_or_by_the_meta() -> None:
    bulk = b"x" * 5000
    for message in (Fragment(3, crc32(bulk)), Answer()):
        writer, reader = FrameWriter(KEY), FrameReader(KEY)
        assert read(reader, writer.encode(message, 1, bulk), bulk) == message
        with pytest.raises(PeerError, match="checksum"):
            read(reader, writer.encode(message, 1, bulk), flipped(bulk, 77, 1))
        with pytest.raises(PeerError, match="checksum"):
            read(reader, writer.encode(message, 1, bulk), bulk[:-1])


def test_a_fragment_that_lies_about_its_checksum_is_refused() -> None:
    with pytest.raises(PeerError):
        read(FrameReader(KEY), FrameWriter(KEY).encode(Fragment(3, 5), 1, b"abc"), b"abc")


def tagging() -> tuple[FrameWriter, FrameReader]:
    """Both ends of a direction whose bulks have tags."""
    writer, reader = FrameWriter(KEY), FrameReader(KEY)
    writer.tag_bulks(Gmac(KEY))
    reader.want_tags(Gmac(KEY))
    return writer, reader


def take(reader: FrameReader, frame: bytes, *bulk: bytes) -> Message:
    """As a connection does."""
    head = reader.prefix(frame[:PREFIX_BYTES])
    message = reader.message(head, frame[PREFIX_BYTES:])
    if head.guarded:
        mac = reader.begin_tag(head)
        for part in bulk:
            mac.add(part)
        reader.check_tag(head)
    return message


def test_a_tag_is_of_this_bulk_in_this_frame() -> None:
    writer, reader = tagging()
    bulk = b"x" * 5000
    frames = [writer.encode(Fragment(3, crc32(bulk)), 1, bulk) for _ in range(3)]
    assert len({frame[-16:] for frame in frames}) == 3, "no tag fits another frame's bulk"
    assert take(reader, frames[0], bulk[:7], bulk[7:]) == Fragment(3, crc32(bulk))
    with pytest.raises(PeerError, match="tag differs"):
        take(reader, frames[1], flipped(bulk, 77, 1))
    with pytest.raises(PeerError, match="tag differs"):
        take(reader, frames[2], bulk[:-1])


def test_tags_are_neither_left_out_nor_taken_unasked() -> None:
    writer, reader = tagging()
    with pytest.raises(PeerError, match="has no tag"):
        take(reader, FrameWriter(KEY).encode(Answer(), 1, b"bulk"), b"bulk")
    with pytest.raises(PeerError, match="flags 2"):
        take(FrameReader(KEY), writer.encode(Answer(), 1, b"bulk"), b"bulk")
    writer, reader = tagging()
    assert take(reader, writer.encode(Answer(), 1)) == Answer(), "no bulk, no tag"
    lent = writer.encode(Answer(), 1, b"bulk", lent=LentPlace(0, 7))
    head = reader.prefix(lent[:PREFIX_BYTES])
    assert (head.lent, head.guarded) == (True, False), "what is lent stays on its host"


@given(positions, masks)
def test_any_changed_bit_of_a_tagged_frame_is_refused(position: int, mask: int) -> None:
    writer, reader = tagging()
    frame = writer.encode(RenewLease(TargetId("t"), BootId(1), 2, 3), 1, b"bulk")
    with pytest.raises(PeerError):
        read_damaged(flipped(frame, position, mask), b"bulk", reader)


@given(positions, masks, st.booleans())
def test_any_changed_bit_is_refused(position: int, mask: int, with_bulk: bool) -> None:
    bulk = b"payload" if with_bulk else b""
    frame = FrameWriter(KEY).encode(RenewLease(TargetId("t"), BootId(1), 2, 3), 1, bulk)
    with pytest.raises(PeerError):
        read_damaged(flipped(frame, position, mask), bulk)


def read_damaged(frame: bytes, bulk: bytes, reader: FrameReader | None = None) -> Message:
    """As a connection would: the meta is as long as the prefix says, if so much is there."""
    reader = reader or FrameReader(KEY)
    head = reader.prefix(frame[:PREFIX_BYTES])
    meta = frame[PREFIX_BYTES : PREFIX_BYTES + head.meta_bytes]
    if len(meta) != head.meta_bytes:
        raise PeerError("the connection ended within a frame")
    message = reader.message(head, meta)
    reader.check_bulk(head, message, crc32(bulk))
    return message


@given(st.binary(min_size=PREFIX_BYTES, max_size=PREFIX_BYTES))
def test_random_bytes_are_no_prefix(noise: bytes) -> None:
    with pytest.raises(PeerError):
        FrameReader(KEY).prefix(noise)


@given(st.sampled_from(sorted(MESSAGE_TYPES)), st.binary(max_size=400))
def test_a_hostile_meta_is_refused_or_read(number: int, noise: bytes) -> None:
    assert isinstance(hostile(number, noise), (*MESSAGE_TYPES.values(), PeerError))


@given(st.sampled_from(sorted(MESSAGE_TYPES)), positions, masks)
def test_a_mangled_meta_is_refused_or_read(number: int, position: int, mask: int) -> None:
    meta = msgspec.msgpack.encode(sample(MESSAGE_TYPES[number]))
    found = hostile(number, flipped(meta or b"\x80", position, mask))
    assert isinstance(found, (*MESSAGE_TYPES.values(), PeerError))


@pytest.mark.parametrize(
    "noise",
    [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\x91" * 60_000],
    ids=["huge array", "huge map", "deep"],
)
def test_a_bomb_is_refused(noise: bytes) -> None:
    for number in MESSAGE_TYPES:
        assert isinstance(hostile(number, noise), PeerError)


def test_text_that_is_not_utf8_is_refused() -> None:
    assert isinstance(hostile(5, b"\x82\xa4code\xa1\xff\xa7message\xa1m"), PeerError)


def hostile(number: int, meta: bytes) -> Message | PeerError:
    """What a reader makes of any meta from a peer that knows the session key."""
    head = struct.pack("<4sBBHIIQQ", b"CKPF", 1, number, 0, len(meta), 0, 1, 0)
    mac = hmac.digest(KEY, bytes(8) + head + bytes(16) + meta, "sha256")[:16]
    reader = FrameReader(KEY)
    try:
        return reader.message(reader.prefix(head + mac), meta)
    except PeerError as error:
        return error


def test_repeated_skipped_and_foreign_frames_are_refused() -> None:
    writer = FrameWriter(KEY)
    first, second, third = (writer.encode(CreditGranted(credit), 1) for credit in (1, 2, 3))
    reader = FrameReader(KEY)
    assert read(reader, first) == CreditGranted(1)
    with pytest.raises(PeerError, match="mac"):
        read(reader, first)
    with pytest.raises(PeerError, match="mac"):
        read(reader, third)
    assert read(reader, second) == CreditGranted(2)
    with pytest.raises(PeerError, match="mac"):
        read(FrameReader(bytes(31) + b"\x01"), first)


def test_the_sequence_goes_on_through_the_handshake() -> None:
    writer, reader = FrameWriter(), FrameReader()
    assert read(reader, writer.encode(HELLO, 0)) == HELLO
    writer.set_key(KEY)
    reader.set_key(KEY)
    assert read(reader, writer.encode(RangesDone(), 1)) == RangesDone()
    fresh = FrameReader(KEY)
    with pytest.raises(PeerError, match="mac"):
        read(fresh, writer.encode(RangesDone(), 2))


@pytest.mark.parametrize(
    ("message", "bulk"),
    [(CreditGranted(1), b""), (HELLO, b"x"), (Failed("refused", "m" * 4096), b"")],
    ids=["another type", "bulk", "too long"],
)
def test_only_short_handshake_messages_are_taken_before_the_handshake(
    message: Message, bulk: bytes
) -> None:
    with pytest.raises(PeerError, match="before the handshake"):
        FrameReader(ZERO_KEY).prefix(FrameWriter(ZERO_KEY).encode(message, 0, bulk))


def test_sizes_over_the_limits_are_refused_on_both_sides() -> None:
    long = Failed("aborted", "m" * FRAME_META_BYTES_MAX)
    writer = FrameWriter(KEY)
    with pytest.raises(Refused, match="Failed"):
        writer.encode(long, 1)
    with pytest.raises(Refused):
        writer.encode(Answer(), 1, bytes(FRAME_BULK_BYTES_MAX + 1))
    frame = bytearray(writer.encode(Answer(), 1))
    for offset, size in ((8, FRAME_META_BYTES_MAX + 1), (12, FRAME_BULK_BYTES_MAX + 1)):
        huge = bytearray(frame)
        huge[offset : offset + 4] = size.to_bytes(4, "little")
        with pytest.raises(PeerError, match="too large"):
            FrameReader(KEY).prefix(huge)


def test_a_refused_message_uses_no_sequence_number() -> None:
    writer, reader = FrameWriter(KEY), FrameReader(KEY)
    with pytest.raises(Refused):
        writer.encode(Failed("refused", "m" * FRAME_META_BYTES_MAX), 1)
    assert read(reader, writer.encode(RangesDone(), 2)) == RangesDone()


def test_fields_of_a_newer_peer_are_ignored_and_missing_ones_take_their_default() -> None:
    newer = msgspec.msgpack.encode({"code": "busy", "message": "m", "since_the_future": [1, 2]})
    assert hostile(5, newer) == Failed("busy", "m")


def test_a_head_keeps_the_prefix_as_it_came() -> None:
    frame = FrameWriter(KEY).encode(RangesDone(), 3)
    head = FrameReader(KEY).prefix(frame)
    assert isinstance(head, FrameHead)
    assert head.wire == frame[:PREFIX_BYTES]
