"""What guards a frame: the mac over its prefix and meta, and what a session's keys do beyond that,
which frame.py only calls: tags of bulks, and encryption of all.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final, Protocol

from ckpt.format.checksum import Buffer

KEY_BYTES: Final = 32
ZERO_KEY: Final = bytes(KEY_BYTES)
"""The key of both directions until the handshake ends."""
_SHA256_BLOCK_BYTES: Final = 64
_INNER_PAD: Final = bytes(byte ^ 0x36 for byte in range(256))
_OUTER_PAD: Final = bytes(byte ^ 0x5C for byte in range(256))
_SEQUENCE = struct.Struct("<Q")
MAC_BYTES: Final = 16
TAG_BYTES: Final = 16
_NO_MAC: Final = bytes(MAC_BYTES)


class BulkMac(Protocol):
    """Makes tags under the bulk key of one direction."""

    def begin(self, number: int) -> None:
        """A tag of the bytes that are added from now on; no number comes twice."""

    def add(self, view: Buffer) -> None:
        """The next bytes."""

    def end(self) -> bytes:
        """The tag, TAG_BYTES long."""


class BulkCheck(Protocol):
    """Checks tags under the bulk key of one direction."""

    def begin(self, number: int) -> None:
        """The tag of the bytes that are added from now on; no number comes twice."""

    def add(self, view: Buffer) -> None:
        """The next bytes, which are decrypted where they lie if they were encrypted."""

    def fits(self, tag: Buffer) -> bool:
        """Whether this is their tag, TAG_BYTES long."""


class HeadSealer(Protocol):
    """Encrypts under the seal key of one direction."""

    def seal(self, number: int, label: bytes, text: bytes) -> bytes:
        """The text, encrypted, and a tag of it and of the label; no number comes twice."""


class HeadOpener(BulkCheck, Protocol):
    """Decrypts under the seal key of one direction: bulks as well."""

    def open(self, number: int, label: bytes, sealed: Buffer) -> bytes | None:
        """The text; None when something else was sealed."""


class FrameMac:
    """HMAC-SHA256 (RFC 2104), its two keyed states made once: a copy is cheaper than the key.

    One is made for each direction of a connection; a frame costs two copies of a few hundred bytes.
    """

    __slots__ = ("_inner", "_outer")

    def __init__(self, key: bytes) -> None:
        assert len(key) == KEY_BYTES
        block = key.ljust(_SHA256_BLOCK_BYTES, b"\0")
        self._inner = hashlib.sha256(block.translate(_INNER_PAD))
        self._outer = hashlib.sha256(block.translate(_OUTER_PAD))

    def of(self, sequence: int, head: bytes, meta: bytes) -> bytes:
        """The first MAC_BYTES over sequence number, prefix with its mac zeroed, and meta."""
        inner = self._inner.copy()
        inner.update(_SEQUENCE.pack(sequence) + head + _NO_MAC + meta)
        outer = self._outer.copy()
        outer.update(inner.digest())
        return outer.digest()[:MAC_BYTES]
