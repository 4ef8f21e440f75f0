"""Authenticates bulks on their way: AES-256-GMAC (NIST SP 800-38D), computed by libcrypto.

A tag costs what GHASH costs, about 0.14 CPU s for a GB here, and the interpreter's lock is free
meanwhile. Under one key no number may come twice: each tag has its frame's.
"""

from __future__ import annotations

import ctypes
from typing import Final

from ckpt.base.errors import CkptError
from ckpt.native.libcrypto import find_libcrypto
from ckpt.native.library import MacState
from ckpt.native.sums import Buffer

KEY_BYTES: Final = 32
TAG_BYTES: Final = 16
_NONCE_BYTES: Final = 12
_GET_TAG: Final = 0x10
"""EVP_CTRL_AEAD_GET_TAG of openssl/evp.h."""
_PART_BYTES_MAX: Final = (1 << 31) - 1


class Gmac:
    """One key, and one tag at a time. Used by one thread at a time."""

    def __init__(self, key: bytes) -> None:
        """Raises CkptError where there is no libcrypto."""
        assert len(key) == KEY_BYTES
        self._crypto = find_libcrypto()
        self._written = ctypes.c_int()
        self._context: int | None = self._crypto.new_context()
        if self._context is None:
            raise MemoryError("no memory for a cipher's context")
        self._check(self._crypto.begin(self._context, self._crypto.aes_256_gcm(), None, key, None))
        self.state = MacState(self._context, self._crypto.update_address)
        """For `Landing`, which adds what comes."""

    def __del__(self) -> None:
        context, self._context = getattr(self, "_context", None), None
        if context is not None:
            self._crypto.free_context(context)

    def begin(self, number: int) -> None:
        """A tag of the bytes that are added from now on."""
        nonce = number.to_bytes(_NONCE_BYTES, "little")
        self._check(self._crypto.begin(self._context, None, None, None, nonce))

    def add(self, view: Buffer) -> None:
        """The next bytes; `view` is contiguous. What may not be written to is copied: such bulks
        are documents.
        """
        flat = memoryview(view).cast("B")
        assert flat.nbytes <= _PART_BYTES_MAX
        written = ctypes.byref(self._written)
        if not flat.nbytes:
            return
        data = bytes(flat) if flat.readonly else ctypes.byref(ctypes.c_char.from_buffer(flat))
        # As data that is authenticated and not encrypted: it has no place to go.
        self._check(self._crypto.update(self._context, None, written, data, flat.nbytes))

    def end(self) -> bytes:
        """The tag, TAG_BYTES long."""
        tag = ctypes.create_string_buffer(TAG_BYTES)
        self._check(self._crypto.end(self._context, tag, ctypes.byref(self._written)))
        self._check(self._crypto.control(self._context, _GET_TAG, TAG_BYTES, tag))
        return tag.raw

    def _check(self, outcome: int) -> None:
        if outcome != 1:
            raise CkptError("libcrypto refuses AES-256-GCM")
