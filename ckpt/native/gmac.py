"""Authenticates bulks on their way: AES-256-GMAC (NIST SP 800-38D), computed by libcrypto.

A tag costs what GHASH costs, about 0.14 CPU s for a GB here, and the interpreter's lock is free
meanwhile. Under one key no number may come twice: each tag has its frame's.
"""

from __future__ import annotations

import hmac
from typing import Final

from ckpt.native.gcm import KEY_BYTES, CipherContext
from ckpt.native.libcrypto import Encrypting
from ckpt.native.sums import Buffer

_NONCE_BYTES: Final = 12


class Gmac:
    """One key, and one tag at a time. Used by one thread at a time."""

    def __init__(self, key: bytes) -> None:
        """Raises CkptError where there is no libcrypto."""
        assert len(key) == KEY_BYTES
        self._context = CipherContext(Encrypting.YES, key)
        self.state = self._context.guard(decrypts=False)
        """For `Landing`, which adds what comes."""

    def begin(self, number: int) -> None:
        """A tag of the bytes that are added from now on."""
        self._context.begin(number.to_bytes(_NONCE_BYTES, "little"))

    def add(self, view: Buffer) -> None:
        """The next bytes; `view` is contiguous. What may not be written to is copied: such bulks
        are documents.
        """
        self._context.update(view, None)

    def end(self) -> bytes:
        """The tag, TAG_BYTES long."""
        return self._context.tag()

    def fits(self, tag: Buffer) -> bool:
        """Whether this is the tag; compared in constant time."""
        return hmac.compare_digest(self.end(), tag)
