"""One message on the wire: prefix, meta, bulk.

    offset  size  type  field
         0     4  bytes magic `CKPF`
         4     1  u8    version of the frame, 1
         5     1  u8    type: ckpt.format.messages.MESSAGE_TYPES
         6     2  u16   flags: 1 the bulk is lent, 2 the bulk has a tag
         8     4  u32   meta_bytes
        12     4  u32   bulk_bytes
        16     8  u64   request
        24     8  u64   epoch of the cluster map
        32    16  bytes mac
        48     .  .     meta: the message as a MessagePack map by field name; then, when there is
                        bulk and the message has no field `crc`, a u32 with the bulk's CRC-32;
                        then, when the bulk has a tag, its 16 bytes; then, when the bulk is lent,
                        u32 region and u64 offset
         .     .  bytes bulk; none where it is lent: it lies in the sender's memory

All numbers are little-endian. The mac is the first 16 bytes of HMAC-SHA256 under the session key
of this direction, over the frame's sequence number (u64, from 0, counted in each direction of a
connection, also through the handshake), the prefix with its mac zeroed, and the meta. So a frame
cannot be forged, changed, repeated, left out or moved to another connection. Bulk is guarded by
its CRC, which stands in the meta, and where the session's wire says so (`Wire.MAC`) by its tag:
AES-256-GMAC under the bulk key of this direction, its nonce the sequence number (u64, then four
zeros), over the bulk. What is lent never leaves its host, and has none.

Where the session's wire is `Wire.ENCRYPT`, each frame after the handshake is sealed (AES-256-GCM,
ckpt.native.gcm) under the seal key of this direction, and has neither mac nor flag 2:

    offset  size  type  field
         0     4  u32   head_bytes: of prefix and meta
         4     .  bytes the prefix without its mac, and the meta, encrypted
         .    16  bytes tag of these and of head_bytes
         .     .  bytes bulk, encrypted; none where it is lent
         .    16  bytes tag of the bulk, where there is one

Until the session key is set, the key is zeros, and only handshake messages without bulk are taken.

Cost: one frame for each fragment of 512 KiB, so a few microseconds; nothing here copies bulk.
"""

from __future__ import annotations

import hmac
import struct
from typing import Final

import msgspec

from ckpt.base.errors import PeerError, Refused
from ckpt.base.limits import (
    FRAME_BULK_BYTES_MAX,
    FRAME_META_BYTES_MAX,
    UNAUTHENTICATED_BYTES_MAX,
)
from ckpt.format.checksum import Buffer, crc32
from ckpt.format.frame_guards import (
    MAC_BYTES,
    TAG_BYTES,
    ZERO_KEY,
    BulkCheck,
    BulkMac,
    FrameMac,
    HeadOpener,
    HeadSealer,
)
from ckpt.format.messages import MESSAGE_TYPES, Message
from ckpt.format.messages.hello import Failed

MAGIC: Final = b"CKPF"
VERSION: Final = 1
PREFIX_BYTES: Final = 48

_PREFIX = struct.Struct("<4sBBHIIQQ")
_LENT: Final = 1
_TAGGED: Final = 2
_CRC = struct.Struct("<I")
_PLACE = struct.Struct("<IQ")
_HEAD_BYTES = struct.Struct("<I")

_ENCODER: Final = msgspec.msgpack.Encoder()
_NUMBERS: Final = {cls: number for number, cls in MESSAGE_TYPES.items()}
_HANDSHAKE: Final = frozenset(
    number for number, cls in MESSAGE_TYPES.items() if number < 5 or cls is Failed
)
_HAS_CRC: Final = frozenset(
    number for number, cls in MESSAGE_TYPES.items() if "crc" in cls.__struct_fields__
)

assert _PREFIX.size + MAC_BYTES == PREFIX_BYTES


class LentPlace(msgspec.Struct, frozen=True, gc=False):
    """Where a lent bulk begins in the memory of its sender."""

    region: int
    offset: int


class FrameHead(msgspec.Struct, frozen=True, gc=False):
    """A checked prefix: what follows it. (A Struct, since it is made for every fragment.)"""

    type: int
    meta_bytes: int
    bulk_bytes: int
    request: int
    epoch: int
    lent: bool
    """The bulk does not follow: it lies where `FrameReader.lent` says."""
    guarded: bool
    """The bulk has a tag: `begin_tag` before the bulk comes, `check_tag` once it is whole."""
    tail_bytes: int
    """Of the bulk's tag, which follows it; 0: it stands in the meta, or there is none."""
    wire: bytes
    """The prefix as it came, or as it was before it was encrypted."""


class FrameWriter:
    """I make the frames of one direction of one connection, in the order in which they are sent."""

    __slots__ = ("_bulk_mac", "_mac", "_sealer", "_sequence")

    def __init__(self, key: bytes = ZERO_KEY) -> None:
        self._mac = FrameMac(key)
        self._bulk_mac: BulkMac | None = None
        #: Of all frames; None while they are not encrypted.
        self._sealer: HeadSealer | None = None
        self._sequence = 0

    @property
    def number(self) -> int:
        """The number of the last frame that was made: its bulk is to be sealed under it."""
        return self._sequence - 1

    def set_key(self, key: bytes) -> None:
        """Use the session key from the next frame on; the sequence continues."""
        self._mac = FrameMac(key)

    def tag_bulks(self, mac: BulkMac) -> None:
        """From the next frame on a bulk that is not lent has a tag."""
        self._bulk_mac = mac

    def seal(self, sealer: HeadSealer) -> None:
        """From the next frame on prefix and meta are encrypted; bulks are the caller's to seal."""
        self._sealer = sealer

    def encode(
        self,
        message: Message,
        request: int,
        bulk: Buffer = b"",
        epoch: int = 0,
        lent: LentPlace | None = None,
    ) -> bytes:
        """Prefix and meta, encrypted where frames are; the caller sends the bulk after them, unless
        it is lent.

        A message with a field `crc` holds the bulk's CRC-32 already. Raises Refused when the
        message is too large for one frame, holds a number that is, or text that is not Unicode, as
        the name of a file of other bytes becomes in Python; then no sequence number was used.
        """
        number = _NUMBERS[type(message)]
        try:
            meta = _ENCODER.encode(message)
        except UnicodeEncodeError as error:
            raise Refused(f"{error.object!r} is not valid Unicode") from None
        except OverflowError:
            raise Refused(f"a number in {type(message).__name__} has more than 64 bits") from None
        bulk_bytes = bulk.nbytes if isinstance(bulk, memoryview) else len(bulk)
        if bulk_bytes and number not in _HAS_CRC:
            meta += _CRC.pack(crc32(bulk))
        mac = self._bulk_mac if bulk_bytes and lent is None else None
        if lent is not None:
            meta += _PLACE.pack(lent.region, lent.offset)
        meta_bytes = len(meta) + (0 if mac is None else TAG_BYTES)
        if meta_bytes > FRAME_META_BYTES_MAX or bulk_bytes > FRAME_BULK_BYTES_MAX:
            raise Refused(
                f"{type(message).__name__} of {meta_bytes} + {bulk_bytes} bytes "
                "does not fit one frame"
            )
        flags = 0 if lent is None else _LENT
        if mac is not None:
            flags = _TAGGED
            mac.begin(self._sequence)
            mac.add(bulk)
            meta += mac.end()
        head = _PREFIX.pack(MAGIC, VERSION, number, flags, len(meta), bulk_bytes, request, epoch)
        self._sequence += 1
        if self._sealer is None:
            return head + self._mac.of(self._sequence - 1, head, meta) + meta
        text = head + meta
        label = _HEAD_BYTES.pack(len(text))
        return label + self._sealer.seal(self._sequence - 1, label, text)


class FrameReader:
    """I check the frames of one direction of one connection, in the order in which they came.

    Call `prefix`, `message` and, if the bulk matters, `check_bulk`, once for each frame. After a
    PeerError the connection must be cut.
    """

    __slots__ = (
        "_bulk_check", "_bulk_crc", "_head", "_keyed", "_mac", "_opener", "_sequence", "_tag",
        "lent", "prefix_bytes",
    )  # fmt: skip

    def __init__(self, key: bytes = ZERO_KEY) -> None:
        self._mac = FrameMac(key)
        self._keyed = key != ZERO_KEY
        self._sequence = 0
        self.prefix_bytes = PREFIX_BYTES
        """What `prefix` takes of the next frame."""
        self.lent: LentPlace | None = None
        """Where the bulk of the last message lies; None: it follows, or there is none."""
        self._head: FrameHead | None = None
        #: Of bulks that come; None while they need no tag.
        self._bulk_check: BulkCheck | None = None
        #: Of all frames, and the same as `_bulk_check`; None while they are not encrypted.
        self._opener: HeadOpener | None = None
        #: Of the bulk of `_head`'s frame, as its sender made it; empty where it has none.
        self._tag = b""
        #: CRC-32 of the bulk of `_head`'s frame; None when the message says it or there is none.
        self._bulk_crc: int | None = None

    def set_key(self, key: bytes) -> None:
        """Expect the session key from the next frame on; the sequence continues."""
        self._mac = FrameMac(key)
        self._keyed = key != ZERO_KEY

    def want_tags(self, check: BulkCheck) -> None:
        """From the next frame on a bulk that is not lent and has no tag is refused."""
        self._bulk_check = check

    def unseal(self, opener: HeadOpener) -> None:
        """From the next frame on everything must be encrypted."""
        self._opener = self._bulk_check = opener
        self.prefix_bytes = _HEAD_BYTES.size

    @property
    def head(self) -> FrameHead:
        """Of the last message, and all of it: what `prefix` said of an encrypted one was no more
        than `meta_bytes`.
        """
        assert self._head is not None
        return self._head

    def prefix(self, view: Buffer) -> FrameHead:
        """From the first `prefix_bytes` of a frame; raises PeerError. `message` finds out whether
        they are what was sent.
        """
        wire = bytes(view[: self.prefix_bytes])
        assert len(wire) == self.prefix_bytes
        return self._read_prefix(wire) if self._opener is None else _sealed_head(wire)

    def _read_prefix(self, wire: bytes) -> FrameHead:
        magic, version, number, flags, meta_bytes, bulk_bytes, request, epoch = _PREFIX.unpack_from(
            wire
        )
        if magic != MAGIC or version != VERSION:
            raise _no_frame(wire)
        if number not in MESSAGE_TYPES:
            raise PeerError(f"unknown frame type {number}")
        if meta_bytes > FRAME_META_BYTES_MAX or bulk_bytes > FRAME_BULK_BYTES_MAX:
            raise PeerError(f"frame of {meta_bytes} + {bulk_bytes} bytes is too large")
        sealed = self._opener is not None
        known = flags in (0, _LENT, _TAGGED) and (bulk_bytes or not flags)
        if not known or (flags == _TAGGED and (sealed or self._bulk_check is None)):
            raise PeerError(
                f"frame of type {number} with {bulk_bytes} bulk bytes has flags {flags}"
            )
        if bulk_bytes and not flags and self._bulk_check is not None and not sealed:
            raise PeerError(f"a bulk of {bulk_bytes} bytes has no tag, which this session demands")
        if not self._keyed:
            allowed = number in _HANDSHAKE and not bulk_bytes
            if not allowed or PREFIX_BYTES + meta_bytes > UNAUTHENTICATED_BYTES_MAX:
                raise PeerError(
                    f"frame type {number} of {meta_bytes} + {bulk_bytes} bytes before the handshake"
                )
        has_tail = sealed and bulk_bytes > 0 and flags != _LENT
        return FrameHead(
            number, meta_bytes, bulk_bytes, request, epoch, flags == _LENT,
            flags == _TAGGED or has_tail, TAG_BYTES if has_tail else 0, wire,
        )  # fmt: skip

    def message(self, head: FrameHead, meta: Buffer) -> Message:
        """From exactly `head.meta_bytes`; raises PeerError. `self.head` says of which frame."""
        body = bytes(meta)
        assert len(body) == head.meta_bytes
        if self._opener is not None:
            head, body = self._open(self._opener, head, body)
        else:
            mac = self._mac.of(self._sequence, head.wire[: _PREFIX.size], body)
            if not hmac.compare_digest(mac, head.wire[_PREFIX.size :]):
                raise PeerError(f"frame {self._sequence} of type {head.type} fails its mac")
        self._sequence += 1
        self._head = head
        return _decoded(head.type, self._strip(head, body))

    def _open(self, opener: HeadOpener, head: FrameHead, sealed: bytes) -> tuple[FrameHead, bytes]:
        """Prefix and meta of an encrypted frame."""
        text = opener.open(self._sequence, head.wire, sealed)
        if text is None:
            raise PeerError(f"frame {self._sequence} is not what its peer said: its tag differs")
        found = self._read_prefix(text[: _PREFIX.size])
        body = text[_PREFIX.size :]
        if len(body) != found.meta_bytes:
            raise PeerError(f"frame of type {found.type} is not as long as it says")
        return found, body

    def _strip(self, head: FrameHead, body: bytes) -> bytes:
        """Keep what follows the message, and return that."""
        self._bulk_crc, self.lent, self._tag = None, None, b""
        if head.lent:
            if len(body) < _PLACE.size:
                raise PeerError(f"frame of type {head.type} does not say where its bulk lies")
            self.lent = LentPlace(*_PLACE.unpack_from(body, len(body) - _PLACE.size))
            body = body[: -_PLACE.size]
        elif head.guarded and not head.tail_bytes:
            if len(body) < TAG_BYTES:
                raise PeerError(f"frame of type {head.type} lacks the tag of its bulk")
            body, self._tag = body[:-TAG_BYTES], body[-TAG_BYTES:]
        if head.bulk_bytes and head.type not in _HAS_CRC:
            if len(body) < _CRC.size:
                raise PeerError(f"frame of type {head.type} has bulk without a checksum")
            self._bulk_crc = _CRC.unpack_from(body, len(body) - _CRC.size)[0]
            body = body[: -_CRC.size]
        return body

    def begin_tag(self, head: FrameHead) -> BulkCheck:
        """Whoever takes the last message's bulk in adds it to this, which is what was given to
        `want_tags` or `unseal`.
        """
        assert head is self._head
        assert self._bulk_check is not None
        self._bulk_check.begin(self._sequence - 1)
        return self._bulk_check

    def check_tag(self, head: FrameHead, tail: Buffer = b"") -> None:
        """Raises PeerError unless what was added since `begin_tag` is the bulk that was sent.
        `tail`: the `head.tail_bytes` that followed it.
        """
        assert head is self._head
        assert self._bulk_check is not None
        assert len(tail) == head.tail_bytes
        if not self._bulk_check.fits(tail if head.tail_bytes else self._tag):
            raise PeerError(
                f"bulk of {head.bulk_bytes} bytes is not what its sender sent: its tag differs"
            )

    def check_bulk(self, head: FrameHead, message: Message, crc: int) -> None:
        """Raises PeerError unless the bulk of `head.bulk_bytes`, whose CRC-32 this is, is the one
        that was framed; before the next `message`.
        """
        assert head is self._head, "the bulk of an earlier frame can be checked no more"
        wanted: int = getattr(message, "crc", 0) if self._bulk_crc is None else self._bulk_crc
        if crc != wanted:
            raise PeerError(f"bulk of {head.bulk_bytes} bytes fails its checksum")


def _no_frame(wire: bytes) -> PeerError:
    if wire.startswith(b"HTTP/"):
        hint = "the port of the page and metrics (--http) is another one: name that of --listen"
        return PeerError("it answers in HTTP", hint=hint)
    return PeerError(f"not a frame of version {VERSION}: it begins with {wire[:5]!r}")


def _sealed_head(wire: bytes) -> FrameHead:
    """What an encrypted frame says in the clear; all else is in what follows it."""
    (head_bytes,) = _HEAD_BYTES.unpack(wire)
    if not _PREFIX.size <= head_bytes <= _PREFIX.size + FRAME_META_BYTES_MAX:
        raise PeerError(f"not an encrypted frame: a head of {head_bytes} bytes")
    return FrameHead(0, head_bytes + TAG_BYTES, 0, 0, 0, False, False, 0, wire)


def _decoded(number: int, body: bytes) -> Message:
    """Raises PeerError."""
    try:
        return _DECODERS[number].decode(body)
    # msgspec lets invalid UTF-8 and too deep nesting out as they are.
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PeerError(f"frame of type {number} does not parse: {error}") from None


class _Decoders(dict[int, msgspec.msgpack.Decoder[Message]]):
    """By message type, each made when its first message comes: a process needs a few of them, and
    all would be a twentieth of its start.
    """

    def __missing__(self, number: int) -> msgspec.msgpack.Decoder[Message]:
        made = self[number] = msgspec.msgpack.Decoder(MESSAGE_TYPES[number])
        return made


_DECODERS: Final = _Decoders()
