"""One message on the wire: prefix, meta, bulk."""

from __future__ import annotations

from typing import Final

import msgspec

from ckpt.format.checksum import Buffer
from ckpt.protocol.messages import Message

PREFIX_BYTES: Final = 48
ZERO_KEY: Final = bytes(32)
"""The key of both directions until the handshake ends."""


class FrameHead(msgspec.Struct, frozen=True, gc=False):
    """A checked prefix: what follows it."""

    type: int
    meta_bytes: int
    bulk_bytes: int
    request: int
    epoch: int
    wire: bytes
    """The prefix as it came."""


class FrameWriter:
    """I make the frames of one direction of one connection, in the order in which they are sent."""

    def __init__(self, key: bytes = ZERO_KEY) -> None:
        raise NotImplementedError

    def set_key(self, key: bytes) -> None:
        """Use the session key from the next frame on; the sequence goes on."""
        raise NotImplementedError

    def encode(self, message: Message, request: int, bulk: Buffer = b"", epoch: int = 0) -> bytes:
        """Prefix and meta; the caller sends the bulk behind them."""
        raise NotImplementedError


class FrameReader:
    """I check the frames of one direction of one connection, in the order in which they came."""

    def __init__(self, key: bytes = ZERO_KEY) -> None:
        raise NotImplementedError

    def set_key(self, key: bytes) -> None:
        """Expect the session key from the next frame on; the sequence goes on."""
        raise NotImplementedError

    def prefix(self, view: Buffer) -> FrameHead:
        """From the first PREFIX_BYTES of a frame; raises PeerError."""
        raise NotImplementedError

    def message(self, head: FrameHead, meta: Buffer) -> Message:
        """From exactly `head.meta_bytes`; raises PeerError."""
        raise NotImplementedError

    def check_bulk(self, head: FrameHead, message: Message, bulk: Buffer) -> None:
        """Raises PeerError unless the bulk is what the sender framed; before the next `message`."""
        raise NotImplementedError
